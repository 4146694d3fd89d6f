package explore

// doer yields one step of one node.
type doer func(k kind, arg int8, f func(*node, *event))

// on returns a doer for node i. The doer yields a step only if it changes something, and subtracts a fault if the step
// is one.
func (m *model) on(s *state, i int, yield func(*event, *state)) doer {
	return func(k kind, arg int8, f func(*node, *event)) {
		t, e := *s, &event{action: action{k, int8(i), -1, arg}, node: i, host: s.n[i]}
		f(&t.n[i], e)
		if t.n[i] == s.n[i] {
			return
		}
		if k >= crash {
			t.faults--
		}
		yield(e, &t)
	}
}

// fault reports whether a fault of this kind may still happen.
func (m *model) fault(s *state, k kind) bool { return s.faults > 0 && m.Kinds&(1<<(k-crash)) != 0 }

// boots takes the machine through a boot. Afterwards a staged update is either active or rolled back.
func (n *node) boots(updated bool) {
	n.boot, n.down, n.sick, n.promoted, n.freed, n.asked, n.may = fresh, false, false, false, false, 0, false
	if updated && n.change != 0 {
		n.version = n.change
	}
	n.change, n.stepsDone, n.recorded = 0, 0, 0
	n.dies()
}

// dies ends the process.
func (n *node) dies() {
	n.proc, n.vcur, n.view, n.asking, n.open = false, false, 0, askingUnknown, false
}

// machineSteps yields the steps that happen on a machine without lockkeeper.
func (m *model) machineSteps(s *state, i int, yield func(*event, *state)) {
	n := &s.n[i]
	do := m.on(s, i, yield)
	api := &m.objects[n.api]
	write := func(f func(o *object)) func(*node, *event) {
		return func(t *node, _ *event) {
			o := *api
			f(&o)
			m.set(t, o, byOther)
		}
	}
	if !n.proc {
		do(start, 0, func(t *node, _ *event) { t.proc, t.started, t.vcur, t.shut = true, fresh, true, 0 })
	}
	if n.down {
		do(goDown, 0, func(t *node, _ *event) { t.boots(true) })
		if m.fault(s, rollback) {
			do(rollback, 0, func(t *node, _ *event) { t.boots(false) })
		}
		if m.fault(s, sicken) {
			do(sicken, 0, func(t *node, _ *event) { t.boots(true); t.sick = true })
		}
	}
	if n.sick {
		do(heal, 0, func(t *node, _ *event) { t.sick = false })
	}
	if api.exists() && (api.boot != n.boot || !api.ready) {
		do(report, 0, write(func(o *object) { o.boot, o.ready, o.readyLong = n.boot, true, o.ready && o.readyLong }))
	}
	if api.exists() && api.boot != n.boot && api.ready {
		do(notReady, 0, write(func(o *object) { o.ready, o.readyLong = false, false }))
	}
	if m.Settle && (api.young || api.last.settles) {
		do(settled, 0, func(t *node, _ *event) { m.each(t, func(o *object) { o.young, o.last.settles = false, false }) })
	}
	if m.Blocks != NoBlocks {
		m.blockSteps(s, n, do, write)
	}
	if m.After {
		m.canarySteps(s, n, do, write)
	}
	if m.Hooks && api.turn != 0 {
		for h, stage := range hookStages {
			if api.st() == stage {
				do(confirm, 0, write(func(o *object) { o.hooks[h] = o.turn }))
			}
		}
	}
	for arg, obj := range n.orphans {
		if obj != 0 {
			do(landOrphan, int8(arg), func(t *node, e *event) {
				e.writer, e.before, e.after = lateHost, *api, m.objects[obj]
				m.set(t, m.objects[obj], byOther)
				if b, a := &e.before, &e.after; b.state != a.state || b.turn != a.turn || b.grant != a.grant || b.last != a.last {
					e.writer = lateLeader
					ghostLeaderWrote(t, e)
				} else {
					e.publishes = b.wants != a.wants || b.host != a.host
					ghostHostWrote(t, e)
				}
			})
		}
	}
	m.clientSteps(s, n, do)
	m.machineFaults(s, n, do)
}

func (m *model) machineFaults(s *state, n *node, do doer) {
	if m.fault(s, crash) {
		late := m.lateWrite(n)
		for arg := range int8(4) {
			updated, lands := arg%2 == 0, arg >= 2
			if !updated && n.change == 0 || lands && late == 0 {
				continue
			}
			do(crash, arg, func(t *node, _ *event) {
				t.boots(updated)
				if lands {
					m.orphan(t, late)
				}
			})
		}
	}
	if m.fault(s, killProcess) && n.proc {
		late := m.lateWrite(n)
		do(killProcess, 0, func(t *node, _ *event) { t.dies() })
		if late != 0 {
			do(killProcess, 1, func(t *node, _ *event) { t.dies(); m.orphan(t, late) })
		}
	}
	if m.fault(s, cancel) && n.change != 0 {
		do(cancel, 0, func(t *node, _ *event) { t.change = 0 })
	}
	if m.fault(s, restage) && n.change == 0 {
		do(restage, 0, func(t *node, _ *event) { t.change = t.version + 1 })
	}
	if m.fault(s, latePod) && !n.pods {
		do(latePod, 0, func(t *node, _ *event) { t.pods, t.latePod = true, true })
	}
	if m.fault(s, age) {
		do(age, 0, func(t *node, _ *event) {
			m.ages(t)
			led := m.holds(s, 0) && s.terms[0].live || m.holds(s, 1) && s.terms[1].live
			t.aged = t.aged || led
		})
	}
}

// ages lets longer than every timeout pass for everything that is recorded on one Node, for every reader. Decide
// compares times of different Nodes only for the settle time, which passes in steps of its own.
func (m *model) ages(n *node) {
	m.each(n, func(o *object) {
		if o.grant.turn != 0 {
			o.grant.started = min(o.grant.started+1, 9)
			o.grant.stage = min(o.grant.stage+1, 9)
			if o.grant.frozen > 0 {
				o.grant.frozen = min(o.grant.frozen+1, 9)
			}
		}
		o.last.backoff = false
		if o.host.blocked != 0 {
			o.host.blocked = blockedLong
		}
	})
}
