package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// A how is what happens to the leader.
type how int

const (
	stopped  how = iota // its process, by SIGSTOP
	cutOff              // by the network: what it and its host send arrives when it is let back in, in whatever order
	leaseCut            // from the Lease alone
	stays               // nothing; only the Lease is meddled with
)

func (h how) String() string {
	return [...]string{"stopped", "cut off", "cut off from the Lease", "left alone"}[h]
}

// An at is the moment in which it happens.
type at int

const (
	anyTime   at = iota
	write        // a leader's write to a Node, before it is sent; it arrives when it is let go
	unheard      // a leader's write that was carried out, and the leader does not know
	grant        // as write, of a grant
	commit       // a host's commit, decided and not sent; it arrives when it is let go
	committed    // some host has committed
	renewed      // the leader has just renewed the Lease
)

func (a at) String() string {
	return [...]string{
		"at any time", "with a write to a Node on its way", "with a write carried out and not heard of", "with a grant on its way",
		"with a host's commit on its way", "when a host has committed", "when it has just renewed the Lease",
	}[a]
}

// A stroke is one leader that is taken away, and what comes of it.
type stroke struct {
	how how
	at  at
	// nth is which one of these requests, from 1, or how many writes to Nodes are let pass before.
	nth   int
	lease meddling
	// slow: the successor's writes to Nodes are held back until the hosts have had time for what was let go.
	slow bool
	// stale: what the successor is shown of Nodes, where it is content with a cache, is as old as the stroke, or as since says.
	stale bool
	since string
	// cordon: a person cordons another node meanwhile.
	cordon bool
	// revive: before the old leader is back, a person puts the Lease back as it was, and the old leader's own view of Nodes is old.
	revive bool
	// meanwhile is done when the successor leads; nil for nothing.
	meanwhile func(r *round)
	// linger is how many writes to Nodes the successor has for itself.
	linger int
	// sure: all that is waited for has to come. Otherwise a stroke that misses is a miss.
	sure bool
}

func (s *stroke) String() string {
	parts := []string{fmt.Sprintf("the leader is %s %s (%d)", s.how, s.at, s.nth)}
	for _, with := range []struct {
		is   bool
		text string
	}{
		{s.slow, "a slow successor"}, {s.stale, "a successor with an old view"}, {s.cordon, "a person cordons"},
		{s.lease.do != nil, s.lease.name}, {s.revive, "a person puts the Lease back as it was, for an old leader with an old view"},
	} {
		if with.is {
			parts = append(parts, with.text)
		}
	}
	return fmt.Sprintf("%s; back after %d writes", strings.Join(parts, ", "), s.linger)
}

// chance bounds the wait for what need not come.
const chance = 2 * time.Second

// play takes the leader away, has a successor take over, and lets the old one come back.
func (r *round) play(s *stroke) {
	r.T.Helper()
	r.stroke, r.old, r.before = s, nil, ""
	if s.stale && s.since == "" {
		_, s.since = r.list()
	}
	r.strike()
	r.T.Logf("TAKEN AWAY: %s, of the term %s", s, r.before)
	if s.cordon {
		r.cordonAnother()
	}
	if s.lease.do != nil {
		r.T.Logf("A PERSON: %s", s.lease.name)
		s.lease.do(r)
	}
	var next string
	r.until("a successor of "+r.before, func() bool {
		next = r.Epoch()
		return next != r.before && r.HostOf(next) != nil
	})
	r.T.Logf("SUCCESSOR: %s", next)
	if s.meanwhile != nil {
		s.meanwhile(r)
	}
	r.letGo(next)
	if !s.sure {
		r.linger(s.linger)
	}
	if s.revive {
		r.PatchLease(map[string]any{"spec": r.backup})
	}
	r.T.Logf("BACK")
	r.back()
	if s.revive {
		r.wait("another term, or a node that is committed in the old one", func() bool {
			return r.Epoch() != r.before || slices.ContainsFunc(r.nodes(), func(n turn.Node) bool { return n.Grant != nil && n.Grant.Epoch == r.before && n.Mark })
		})
		r.release(&r.revived)
	}
	for _, name := range r.cordoned {
		r.uncordon(name)
	}
	r.cordoned = nil
}

// wait is for what has to come in a stroke that is sure.
func (r *round) wait(what string, cond func() bool) {
	r.T.Helper()
	if r.stroke.sure {
		r.until(what, cond)
	} else if !sees(chance, cond) {
		r.T.Logf("missed: %s", what)
	}
}

// letGo lets go what was caught when the leader went, and what holds its successor back.
func (r *round) letGo(next string) {
	r.T.Helper()
	s := r.stroke
	name := ""
	if r.caught != nil {
		name = r.caught.Name
	}
	if s.at == commit && name != "" {
		r.wait("the successor to write to "+name, func() bool {
			n := r.node(name)
			return n.Grant == nil || n.Grant.Epoch != r.before
		})
	}
	if r.trap != nil {
		r.trap.letGo()
		r.until("what was let go to arrive", func() bool { _, ok := r.arrived(); return ok || r.caught == nil })
	}
	if s.slow {
		if name == "" {
			r.linger(s.linger)
		} else {
			r.wait("a host to judge what was let go", func() bool {
				code, _ := r.arrived()
				return code == http.StatusConflict || r.judged(name)
			})
		}
		r.release(&r.slow)
	}
	if s.stale {
		r.wait("a node that is committed in the term "+next, func() bool {
			for _, n := range r.nodes() {
				if n.Grant != nil && n.Grant.Epoch == next && (n.Mark || n.Committed()) {
					return true
				}
			}
			return false
		})
		r.release(&r.stale)
	}
}

// arrived is what the API server said to the request that was caught, 0 for nothing; ok is false while it is on its way.
func (r *round) arrived() (code int, ok bool) {
	if r.caught == nil {
		return 0, false
	}
	for _, proxies := range r.Proxies {
		for _, p := range proxies.All() {
			all, _ := p.Records()
			for i := range all {
				if q := &all[i]; q.Proxy == r.caught.Proxy && q.Time.Equal(r.caught.Time) && q.Number == r.caught.Number && q.Is(r.caught.Verb, r.caught.Resource) {
					return q.Code, true
				}
			}
		}
	}
	return 0, false
}

// judged reports whether a host has committed, or says why it does not.
func (r *round) judged(name string) bool {
	n := r.node(name)
	return n.Mark || n.Committed() || n.InTurn() && strings.Contains(r.Fleet.Host(name).Notify().Status, "another leader's")
}

// linger lets the fleet continue for some writes to Nodes, if it has any.
func (r *round) linger(writes int) {
	want := r.Referee.Report().NodeEvents + writes
	sees(chance, func() bool { return r.Referee.Report().NodeEvents >= want })
}

// strike waits for the moment and takes the leader away.
func (r *round) strike() {
	r.T.Helper()
	s := r.stroke
	r.trap, r.caught = nil, nil
	switch s.at {
	case anyTime:
		r.linger(s.nth)
	case committed:
		r.wait("a host to commit", func() bool {
			for _, n := range r.nodes() {
				if n.Mark {
					return true
				}
			}
			return false
		})
	default:
		r.trap = r.set(s)
		r.wait("a request that the leader is to be taken away at", func() bool { return r.trap.sprung() != nil })
		if r.caught = r.trap.disarm(); r.caught != nil {
			r.T.Logf("caught: %s of %s", r.caught, r.caught.Proxy)
			return
		}
	}
	r.until("a leader", func() bool {
		epoch := r.Epoch()
		return r.HostOf(epoch) != nil && r.away(epoch)
	})
}

// away takes the leader of a term away. It may be called from a wire.
func (r *round) away(epoch string) bool {
	old, s := r.HostOf(epoch), r.stroke
	r.old, r.before = old, epoch
	if s.revive {
		var err error
		if r.backup, err = r.leaseSpec(); err != nil {
			return false
		}
	}
	for name, w := range r.Proxies {
		if w.Coordinator == nil || name == old.Name() {
			continue
		}
		if s.slow {
			r.slow = append(r.slow, hold(w.Coordinator, func(q *faultproxy.Request) bool { return q.Is("patch", "nodes") }))
		}
		if s.stale {
			r.stale = append(r.stale, r.fall(w.Coordinator, s.since))
		}
	}
	if s.revive {
		r.revived = append(r.revived, r.fall(r.Proxies[old.Name()].Coordinator, ""))
	}
	switch w := r.Proxies[old.Name()]; s.how {
	case stopped:
		if old.Pause() != nil {
			return false // its host goes down
		}
	case cutOff:
		for _, p := range w.All() {
			r.cut = append(r.cut, hold(p, func(*faultproxy.Request) bool { return true }))
			p.CutWatches()
		}
	case leaseCut:
		r.cut = append(r.cut, hold(w.Coordinator, func(q *faultproxy.Request) bool { return q.Resource == "leases" }))
	case stays:
	}
	if s.revive {
		r.Proxies[old.Name()].Coordinator.CutWatches()
	}
	return true
}

// back lets the old leader continue.
func (r *round) back() {
	r.release(&r.slow)
	r.release(&r.stale)
	r.release(&r.cut)
	if r.trap != nil {
		r.trap.letGo()
	}
	if r.stroke.how == stopped && r.old != nil {
		_ = r.old.Continue() // unless its host went down meanwhile
	}
}

func (r *round) release(holds *[]func()) {
	for _, release := range *holds {
		release()
	}
	*holds = nil
}

// cordonAnother is a person's cordon of a node that is in no turn and is not the leader's.
func (r *round) cordonAnother() {
	r.T.Helper()
	r.wait("a node to cordon", func() bool {
		nodes := r.nodes()
		for i := range nodes {
			n := &nodes[len(nodes)-1-i]
			if n.State == v1alpha1.StateIdle && !n.Unschedulable && r.HostOf(n.Name) != r.old && r.cordon(n, true) {
				r.T.Logf("A PERSON: cordons %s", n.Name)
				r.cordoned = append(r.cordoned, n.Name)
				return true
			}
		}
		return false
	})
}
