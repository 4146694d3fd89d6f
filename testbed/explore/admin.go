package explore

import "lockkeeper.dev/lockkeeper/api/v1alpha1"

// adminSteps yields the steps of admins on a Node. Each chain of steps begins with a fault. The step that undoes a
// fault is free, so an admin may, for example, resume a paused node at any time.
func (m *model) adminSteps(s *state, i int, yield func(*event, *state)) {
	n := &s.n[i]
	do := m.on(s, i, yield)
	api := m.objects[n.api]
	write := func(f func(o *object)) func(*node, *event) {
		return func(t *node, e *event) {
			o := api
			f(&o)
			e.writer, e.before, e.after = adminWrites, api, o
			m.set(t, o, byOther)
		}
	}
	if !api.exists() {
		do(recreateNode, 0, func(t *node, _ *event) {
			m.set(t, object{uid: fresh, young: m.Settle, boot: t.boot, ready: true}, byOther)
		})
		return
	}
	edit := func(k kind, f func(o *object)) {
		if m.fault(s, k) {
			do(k, 0, write(f))
		}
	}
	if api.paused {
		do(resume, 0, write(func(o *object) { o.paused = false }))
	} else {
		edit(pause, func(o *object) { o.paused = true })
	}
	if api.detached != 0 {
		do(attach, 0, write(func(o *object) { o.detached = 0 }))
	} else {
		edit(detach, func(o *object) { o.detached = 1 })
		edit(forceDetach, func(o *object) { o.detached = 2 })
	}
	if api.managed != 0 {
		do(manage, 0, write(func(o *object) { o.managed = 0 }))
	} else {
		edit(unmanage, func(o *object) { o.managed = 1 })
	}
	if api.st() != v1alpha1.StateAbsent {
		if m.fault(s, strip) {
			do(strip, 0, func(t *node, e *event) {
				write(func(o *object) { o.state = 0 })(t, e)
				// An admin who overwrites the label takes the turn away. After that only the mark counts.
				t.freed = t.freed || t.down || api.committed()
			})
		}
	}
	m.requestSteps(s, &api, do, write)
	for _, t := range []uint8{api.turn, api.last.turn} {
		failed := t != 0 && (t == api.turn && results[api.grant.result] == v1alpha1.ResultFailed ||
			t == api.turn && api.says(v1alpha1.ReportFailed) || t == api.last.turn && results[api.last.result] == v1alpha1.ResultFailed)
		if failed && api.retry != t {
			do(clearTurn, 0, write(func(o *object) { o.retry = t }))
		}
	}
	if m.fault(s, cordon) && !api.unsched {
		do(cordon, 0, func(t *node, e *event) {
			write(func(o *object) { o.unsched = true })(t, e)
			// The host has not removed its mark yet, so a cordon that an admin sets now looks like a cordon of the
			// host. The documentation says so.
			t.admin = !api.mark
		})
	}
	if m.fault(s, uncordon) && api.unsched {
		do(uncordon, 0, write(func(o *object) { o.unsched = false }))
	}
	for arg, who := range []guardedAgainst{guardLeaders, guardHost} {
		if m.fault(s, guard) && n.guard&who == 0 {
			do(guard, int8(arg), func(t *node, _ *event) { t.guard |= who })
		}
	}
	if n.guard != 0 {
		do(unguard, 0, func(t *node, _ *event) { t.guard = 0 })
	}
	if m.fault(s, deleteNode) {
		do(deleteNode, 0, func(t *node, e *event) {
			m.set(t, object{}, byOther)
			// A deleted Node frees its slot, even if its host continues to work.
			t.freed = t.freed || t.down || api.committed()
		})
	}
}

// requestSteps yields what admins do with requests. A request that is set again has another text.
func (m *model) requestSteps(s *state, api *object, do doer, write func(func(*object)) func(*node, *event)) {
	for _, r := range []struct {
		kind  kind
		of    func(*object) *uint8
		asked uint8
	}{{request, func(o *object) *uint8 { return &o.request }, 1}, {requestNow, func(o *object) *uint8 { return &o.now }, 2}} {
		if !m.fault(s, r.kind) {
			continue
		}
		do(r.kind, 0, func(t *node, e *event) {
			write(func(o *object) { *r.of(o) = 1 + *r.of(o)%2 })(t, e)
			t.asked |= r.asked
		})
	}
	if m.fault(s, withdraw) && api.requested() {
		do(withdraw, 0, write(func(o *object) { o.request, o.now = 0, 0 }))
	}
}

// leaseSteps yields the steps that change the Lease from outside.
func (m *model) leaseSteps(s *state, yield func(*event, *state)) {
	do := func(k kind, f func(t *state)) {
		t, e := *s, &event{action: action{k, -1, -1, 0}, node: -1}
		f(&t)
		if k >= crash {
			t.faults--
		}
		yield(e, &t)
	}
	l := s.lease
	m.campaigns(s, do)
	// The next process on the host of a leader that died frees the Lease.
	if living := l.holder == 1 || l.holder == 2; l.holder == epochLost || m.Bug == LockBelieved && living {
		do(freeLease, func(t *state) { m.clearHolder(t) })
	}
	if m.Blackouts {
		if s.dark {
			do(blackoutEnds, func(t *state) { t.dark = false })
		} else {
			do(blackoutBegins, func(t *state) { t.dark = true })
		}
	}
	if !l.exists {
		do(recreateLease, func(t *state) { t.lease = lease{exists: true} })
		return
	}
	if l.stop {
		do(goOn, func(t *state) { t.lease.stop = false })
	} else if m.fault(s, stop) {
		do(stop, func(t *state) { t.lease.stop = true })
	}
	if m.fault(s, blankLease) && l.holder != 0 {
		do(blankLease, func(t *state) { m.clearHolder(t) })
	}
	if m.fault(s, deleteLease) {
		do(deleteLease, func(t *state) { m.clearHolder(t); t.lease = lease{} })
	}
}

// clearHolder removes the holder from the Lease.
func (m *model) clearHolder(s *state) {
	if s.lease.holder == epochLost {
		m.rename(s, func(e uint8) uint8 {
			if e == epochLost {
				return fresh
			}
			return e
		})
	}
	s.lease.holder = 0
}

// rename renames epochs in the whole state.
func (m *model) rename(s *state, f func(uint8) uint8) {
	s.lease.holder = f(s.lease.holder)
	for i := range m.Nodes {
		n := &s.n[i]
		m.each(n, func(o *object) { o.grant.epoch = f(o.grant.epoch) })
		n.lh = f(n.lh)
	}
}

// campaigns lets a new term win the Lease if it has no holder or if its holder is dead. As a fault, a new term also
// wins if the holder is alive but too slow.
func (m *model) campaigns(s *state, do func(kind, func(*state))) {
	if !s.lease.exists || s.terms[0].live && s.terms[1].live {
		return
	}
	k := campaign
	if h := s.lease.holder; h == 1 || h == 2 {
		if k = takeOver; !m.fault(s, takeOver) {
			return
		}
	}
	do(k, func(t *state) {
		if m.Bug == EpochContinued && t.lease.holder == epochLost {
			m.rename(t, func(e uint8) uint8 {
				if e == epochLost {
					return 1
				}
				return e
			})
		}
		m.clearHolder(t)
		if t.terms[0].live {
			m.makeRoom(t)
		}
		t.terms[0] = term{live: true, stopSeen: t.lease.stop}
		t.lease.holder = 1
		for i := range m.Nodes {
			t.n[i].terms[0] = sight{}
			if m.Bug == CachedList && !t.terms[1].live {
				// The bug: the new term uses the Nodes that its process listed when it started, and has not watched
				// since.
				t.n[i].terms[0], t.terms[0].listed = t.n[i].terms[1], true
			}
		}
	})
}

// makeRoom moves the older living term to the second slot.
func (m *model) makeRoom(s *state) {
	s.terms[1], s.terms[0] = s.terms[0], term{}
	m.rename(s, func(e uint8) uint8 {
		if e == 1 {
			return 2
		}
		return e
	})
	for i := range m.Nodes {
		n := &s.n[i]
		n.terms[1], n.terms[0] = n.terms[0], sight{}
	}
}
