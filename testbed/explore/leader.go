package explore

import (
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// snapshot contains everything that Decide's argument is built from.
type snapshot struct {
	term      int8
	stopped   bool
	dark      bool
	uncertain [maxNodes]bool
	refused   [maxNodes]bool
	views     [maxNodes]uint32 // 0: the Node does not exist
	control   [maxNodes]bool
	pool      [maxNodes]uint8
}

// round is the result of one decision: the writes, by node. 0 means no write.
type round struct {
	obj   [maxNodes]uint32
	grant [maxNodes]bool
}

// poolView is a version of a Node in a pool.
type poolView struct {
	view uint32
	pool uint8
}

// facts returns what the cores see of a version of the Node. They do not change what its pointers lead to.
func (m *model) facts(view uint32, pool uint8, name string) turn.Node {
	n, ok := m.read[poolView{view, pool}]
	if !ok {
		n = m.objects[view].facts("")
		if n.Grant != nil {
			n.Grant.Terms, n.Grant.Policy = m.policy.Terms, m.policy.Name
			if pool != 0 {
				n.Grant.Policy = id("p", pool)
			}
		}
		n.Labels = map[string]string{"pool": id("p", pool)}
		m.read[poolView{view, pool}] = n
	}
	n.Name = name
	return n
}

// decide calls the real Decide under every order of the nodes' names, because the protocol must not depend on the order
// in which equal candidates get their grants.
func (m *model) decide(k snapshot) []round {
	if r, ok := m.decides[k]; ok {
		return r
	}
	rounds := []round{}
	for _, order := range m.orders {
		s := rollout.Snapshot{
			Now: now, Epoch: id("e", uint8(k.term)+1), Stopped: k.stopped, Policies: m.policiesIn(k.dark), Uncertain: map[string]bool{}, Refused: map[string]string{},
		}
		names := map[string]int{}
		for i, view := range k.views[:m.Nodes] {
			name := id("n", uint8(order[i])+1)
			names[name] = i
			if view != 0 {
				n := m.facts(view, k.pool[i], name)
				n.ControlPlane = k.control[i]
				s.Nodes = append(s.Nodes, n)
				if k.uncertain[i] {
					s.Uncertain[name] = true
				}
				if k.refused[i] {
					s.Refused[name] = "explored"
				}
			}
		}
		var r round
		for _, v := range m.Bug.decide(s).Verdicts {
			if i := names[v.Node]; v.Move != nil && !k.refused[i] {
				if next := m.object(m.objects[k.views[i]].moved(v.Move)); next != k.views[i] {
					r.obj[i], r.grant[i] = next, v.Move.Disturbs()
				}
			}
		}
		if !contains(rounds, r) {
			rounds = append(rounds, r)
		}
	}
	m.decides[k] = rounds
	return rounds
}

func contains[T comparable](rounds []T, r T) bool {
	return slices.Contains(rounds, r)
}

// rounds returns the rounds that a term may decide now, or nil while it may not decide.
func (m *model) rounds(s *state, k int) []round {
	if !s.terms[k].listed || !m.holds(s, k) && s.terms[k].rounds >= m.Stale {
		return nil
	}
	q := snapshot{term: int8(k), stopped: s.terms[k].stopSeen, dark: s.dark}
	for i := range m.Nodes {
		t := &s.n[i].terms[k]
		q.control[i], q.pool[i] = s.n[i].control, s.n[i].pool
		if t.write == toSend {
			return nil // the current round is not finished
		}
		q.uncertain[i], q.refused[i] = t.write != noWrite, t.refused
		if q.views[i] = t.view; t.vcur {
			q.views[i] = s.n[i].api
		}
	}
	return m.decide(q)
}

// holds reports whether the term holds the Lease.
func (m *model) holds(s *state, k int) bool { return s.lease.exists && s.lease.holder == uint8(k)+1 }

// counts counts a round of a term that has lost the Lease.
func (m *model) counts(s *state, k int) {
	if !m.holds(s, k) {
		s.terms[k].rounds++
	}
}

// termSteps yields the steps of one term of a coordinator.
func (m *model) termSteps(s *state, k int, yield func(*event, *state)) {
	if !s.terms[k].live {
		return
	}
	do := func(kind kind, node, arg int, f func(t *state, e *event)) {
		t, e := *s, &event{action: action{kind, int8(node), int8(k), int8(arg)}, node: node, term: k}
		f(&t, e)
		if t == *s {
			return
		}
		if kind >= crash {
			t.faults--
		}
		yield(e, &t)
	}
	if !s.terms[k].listed {
		do(list, -1, 0, func(t *state, _ *event) {
			t.terms[k].listed = true
			m.seesAll(t, k)
		})
	} else {
		do(watch, -1, 0, func(t *state, _ *event) { m.seesAll(t, k) })
	}
	if m.holds(s, k) {
		do(watchLease, -1, 0, func(t *state, _ *event) { t.terms[k].stopSeen = t.lease.stop })
	} else if m.Bug == TermSurvives && s.lease.exists && s.lease.holder == 0 {
		do(watchLease, -1, 0, func(t *state, _ *event) { t.lease.holder = uint8(k) + 1 })
	} else {
		m.ends(s, k, watchLease, do)
	}
	if m.fault(s, crashLeader) {
		m.ends(s, k, crashLeader, do)
	}
	m.roundSteps(s, k, do)
	m.sendSteps(s, k, do)
}

// seesAll updates the view of the term: the watch delivers all nodes in one stream.
func (m *model) seesAll(s *state, k int) {
	for i := range m.Nodes {
		t := &s.n[i].terms[k]
		t.vcur, t.view = true, 0
	}
}

type termDoer func(kind kind, node, arg int, f func(*state, *event))

// roundSteps yields the decisions. A single write lands at once because, as with a host, a later decision is equivalent
// to a slow term. Several writes are sent one after another, and any step may come in between.
func (m *model) roundSteps(s *state, k int, do termDoer) {
	for arg, r := range m.rounds(s, k) {
		count, at := 0, -1
		for i, obj := range r.obj[:m.Nodes] {
			t := &s.n[i].terms[k]
			switch {
			case obj == 0:
			case t.vcur:
				count++
				at = i
			default:
				do(lateDecision, i, 0, func(t *state, _ *event) { t.n[i].terms[k].vcur, t.n[i].terms[k].view = true, 0 })
			}
		}
		switch {
		case count == 1 && m.Lag:
			do(decide, at, arg, func(t *state, e *event) { m.counts(t, k); m.leaderWrites(t, k, at, r.obj[at], e) })
			if m.fault(s, loseWrite) {
				do(loseWrite, at, arg, func(t *state, _ *event) {
					w := &t.n[at].terms[k]
					w.write, w.obj = unknown, r.obj[at]
				})
			}
		case count > 0:
			if count > 1 || m.Lag {
				at = -1
			}
			do(decide, at, arg, func(t *state, _ *event) {
				m.counts(t, k)
				for i, obj := range r.obj[:m.Nodes] {
					if w := &t.n[i].terms[k]; obj != 0 && w.vcur {
						w.write, w.obj, w.grant = toSend, obj, r.grant[i]
					}
				}
			})
		}
	}
}

// sendSteps yields the steps that continue a round and that settle lost writes.
func (m *model) sendSteps(s *state, k int, do termDoer) {
	moves, lost := false, false
	for i := range m.Nodes {
		t := &s.n[i].terms[k]
		moves = moves || t.write == toSend && !t.grant
		lost = lost || t.write == unknown || t.write == unknownOf
	}
	for i := range m.Nodes {
		w := s.n[i].terms[k]
		if w.refused {
			do(tryAgain, i, 0, func(t *state, _ *event) { t.n[i].terms[k].refused = false })
		}
		switch w.write {
		case toSend:
			if w.grant && moves {
				continue // moves of existing turns are sent before grants
			}
			if w.grant && lost {
				do(sendWrite, i, 0, func(t *state, _ *event) { drop(&t.n[i].terms[k]) })
				continue
			}
			do(sendWrite, i, 0, func(t *state, e *event) { m.leaderWrites(t, k, i, w.obj, e) })
			if m.fault(s, loseWrite) {
				do(loseWrite, i, 0, func(t *state, _ *event) {
					t.n[i].terms[k].write, t.n[i].terms[k].grant = unknown, false
					if m.Bug == ProxyDeletes {
						t.n[i].terms[k] = sight{}
						m.orphan(&t.n[i], w.obj)
					}
				})
			}
		case unknown:
			do(landUnknown, i, 0, func(t *state, e *event) {
				e.writer, e.before, e.after = leadWrites, m.objects[t.n[i].api], m.objects[w.obj]
				m.set(&t.n[i], m.objects[w.obj], byOther)
				ghostLeaderWrote(&t.n[i], e)
			})
			switch {
			case s.n[i].guard&guardLeaders == 0:
				do(settleWrite, i, 0, func(t *state, e *event) { m.leaderWrites(t, k, i, w.obj, e) })
			case m.Bug == RefusalSettles: // the product does not, because the first try may still land
				do(settleWrite, i, 0, func(t *state, _ *event) { drop(&t.n[i].terms[k]); m.orphan(&t.n[i], w.obj) })
			}
		case unknownOf:
			do(settleWrite, i, 0, func(t *state, _ *event) { t.n[i].terms[k] = sight{vcur: true, refused: w.refused} })
		}
	}
}

func drop(t *sight) { *t = sight{vcur: t.vcur, view: t.view, refused: t.refused} }

// leaderWrites lands a term's write, which was decided on the current Node, unless the API server refuses it.
func (m *model) leaderWrites(s *state, k, i int, obj uint32, e *event) {
	n := &s.n[i]
	if n.guard&guardLeaders != 0 {
		drop(&n.terms[k])
		n.terms[k].refused = true
		return
	}
	e.node, e.writer, e.before, e.after = i, leadWrites, m.objects[n.api], m.objects[obj]
	n.terms[k] = sight{vcur: true, refused: n.terms[k].refused}
	m.set(n, m.objects[obj], k)
	ghostLeaderWrote(n, e)
}

// ends yields the ends of a term: it crashed, or noticed that it lost the Lease. Its writes in flight may or may not
// land later.
func (m *model) ends(s *state, k int, kind kind, do termDoer) {
	end := func(arg, late int, obj uint32) {
		do(kind, -1, arg, func(t *state, _ *event) {
			for i := range m.Nodes {
				n := &t.n[i]
				if w := n.terms[k]; w.write == unknown {
					m.orphan(n, w.obj)
				}
				n.terms[k] = sight{}
			}
			if late >= 0 {
				m.orphan(&t.n[late], obj)
			}
			t.terms[k] = term{}
			lost := uint8(fresh + 1)
			if t.lease.holder == uint8(k)+1 {
				lost = epochLost
			}
			m.rename(t, func(e uint8) uint8 {
				if e == uint8(k)+1 {
					return lost
				}
				return e
			})
		})
	}
	end(0, -1, 0)
	arg := 0
	for i := range m.Nodes {
		if w := s.n[i].terms[k]; w.write == toSend {
			arg++
			end(arg, i, w.obj)
		}
	}
	for _, r := range m.rounds(s, k) {
		for i, obj := range r.obj[:m.Nodes] {
			if obj != 0 && s.n[i].terms[k].vcur {
				arg++
				end(arg, i, obj)
			}
		}
	}
}

// The functions below maintain the ghosts when a write lands.

func ghostHostWrote(n *node, e *event) {
	a := &e.after
	if a.turn == 0 || a.wants == 0 {
		return
	}
	if !e.publishes || e.before.committed() {
		return
	}
	if n.cancelled = 0; wantsList[a.wants-1] == v1alpha1.WantsNothing {
		n.cancelled = a.turn
	}
}

func ghostLeaderWrote(n *node, e *event) {
	if e.after.state != e.before.state {
		n.aged = n.aged && e.after.grant.stage > 0 // the write was in flight while the time passed
	}
	if e.after.st() == v1alpha1.StateRebooting && e.before.st() != v1alpha1.StateRebooting {
		n.promoted = n.boot == e.after.boot
	}
	if e.after.st() != v1alpha1.StateRebooting {
		n.promoted = false
	}
}
