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

// how is what happens to the leader.
type how int

const (
	stopped  how = iota // its process gets SIGSTOP
	cutOff              // from the network: requests from its host arrive when the network is back, in any order
	leaseCut            // only its requests for the Lease fail
	stays               // nothing; only the Lease changes
)

func (h how) String() string {
	return [...]string{"stopped", "cut off", "cut off from the Lease", "left alone"}[h]
}

// at is the moment at which it happens.
type at int

const (
	anyTime    at = iota
	write         // a leader's write to a Node, before it is sent; it arrives after letGo
	answerLost    // a leader's write took effect, but the leader does not know
	grant         // like write, but for a grant
	commit        // a host's commit, decided but not sent; it arrives after letGo
	committed     // a host has committed
	renewed       // the leader has just renewed the Lease
)

func (a at) String() string {
	return [...]string{
		"at any time", "with a write to a Node in flight", "with a write that took effect and whose answer is lost", "with a grant in flight",
		"with a host's commit in flight", "when a host has committed", "right after a renewal of the Lease",
	}[a]
}

// stroke takes one leader away, and defines what happens in the meantime.
type stroke struct {
	how how
	at  at
	// nth selects one of these requests, from 1, or is the number of writes to Nodes that pass before.
	nth   int
	lease meddling
	// slow holds the successor's writes to Nodes back until the hosts had time to process the released request.
	slow bool
	// stale makes the successor's cached reads of Nodes as old as the stroke, or as old as since.
	stale bool
	since string
	// cordon makes an admin cordon another node in the meantime.
	cordon bool
	// revive makes an admin restore the Lease before the old leader is back. The old leader then has an old view of
	// Nodes.
	revive bool
	// meanwhile runs when the successor leads; it may be nil.
	meanwhile func(r *round)
	// linger is the number of writes to Nodes that the successor makes alone.
	linger int
	// sure requires that each expected event happens. Otherwise a missed event is only logged.
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

// chance bounds the wait for an event that need not happen.
const chance = 2 * time.Second

// play takes the leader away, waits for a successor to take over, and brings the old leader back.
func (r *round) play(s *stroke) {
	r.T.Helper()
	r.stroke, r.old, r.before = s, nil, ""
	if s.stale && s.since == "" {
		_, s.since = r.list()
	}
	r.strike()
	r.T.Logf("TAKEN AWAY: %s, in term %s", s, r.before)
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
		r.wait("another term, or a node with a commit in the old one", func() bool {
			return r.Epoch() != r.before || slices.ContainsFunc(r.nodes(), func(n turn.Node) bool { return n.Grant != nil && n.Grant.Epoch == r.before && n.Mark })
		})
		r.release(&r.revived)
	}
	for _, name := range r.cordoned {
		r.uncordon(name)
	}
	r.cordoned = nil
}

// wait waits for an event. The event has to happen if the stroke is sure.
func (r *round) wait(what string, cond func() bool) {
	r.T.Helper()
	if r.stroke.sure {
		r.until(what, cond)
	} else if !sees(chance, cond) {
		r.T.Logf("missed: %s", what)
	}
}

// letGo releases the request that was caught when the leader was taken away, and then the requests and views of its
// successor.
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
		r.until("the released request to arrive", func() bool { _, ok := r.arrived(); return ok || r.caught == nil })
	}
	if s.slow {
		if name == "" {
			r.linger(s.linger)
		} else {
			r.wait("a host to process the released request", func() bool {
				code, _ := r.arrived()
				return code == http.StatusConflict || r.judged(name)
			})
		}
		r.release(&r.slow)
	}
	if s.stale {
		r.wait("a node with a commit in term "+next, func() bool {
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

// arrived returns the API server's status code for the caught request, or 0 without one. ok is false while the request
// is in flight.
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

// judged reports whether a host has committed, or gives a reason why it does not.
func (r *round) judged(name string) bool {
	n := r.node(name)
	return n.Mark || n.Committed() || n.InTurn() && strings.Contains(r.Fleet.Host(name).Notify().Status, "another leader's")
}

// linger waits for some writes to Nodes, if the fleet has any to make.
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
		r.wait("the request at which the leader is taken away", func() bool { return r.trap.sprung() != nil })
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

// away takes the leader of a term away. A proxy may call it.
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
			return false // its host shuts down
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
		_ = r.old.Continue() // fails if its host went down in the meantime
	}
}

func (r *round) release(holds *[]func()) {
	for _, release := range *holds {
		release()
	}
	*holds = nil
}

// cordonAnother cordons, as an admin, a node that is not in a turn and is not the leader's.
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
