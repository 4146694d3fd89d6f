package simulate

import (
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// watch checks every change of a Node against the limits: the budgets, the control plane, windows, blackouts, canaries and gates. It counts
// itself and does not use the counts of the leader.
type watch struct {
	tally      []tally // by policy
	all        tally
	controlled int // control-plane nodes that are unavailable
	broken     error
}

// tally counts the nodes of one policy, or all nodes.
type tally struct {
	nodes, managed int
	gone, most     int
	mostAt         time.Time
	results        map[v1alpha1.Result]int // of the turns that ended
	first, last    time.Time               // of a grant, of the end of a turn
}

// breaks records the first broken limit.
func (s *sim) breaks(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf("%s: %s", s.stamp(), fmt.Sprintf(format, args...))
	}
}

// count updates the counts after a change of the host's Node. In a simulation only turns make nodes unavailable.
func (s *sim) count(h *host) {
	n := h.node
	gone := n.InTurn() || n.Mark || n.Unschedulable || !n.Ready
	if gone == h.gone {
		return
	}
	h.gone = gone
	by := 1
	if !gone {
		by = -1
	}
	s.all.add(by, s.now)
	if n.ControlPlane {
		s.controlled += by
	}
	if h.rank < 0 {
		if gone {
			s.breaks("%s is disrupted, and no policy selects it", n.Name)
		}
		return
	}
	t, p := &s.tally[h.rank], &s.Policies[h.rank]
	t.add(by, s.now)
	if !gone {
		return
	}
	if most := p.MaxUnavailable.Of(t.managed); t.gone > most {
		s.breaks("%s makes %d nodes of policy %s unavailable at once, %d allowed (%s)", n.Name, t.gone, p.Name, most, p.MaxUnavailable)
	}
	if most, by := s.total(); by != "" && s.all.gone > most {
		s.breaks("%s makes %d nodes unavailable at once, %d allowed in all by policy %s", n.Name, s.all.gone, most, by)
	}
	if s.controlled > 1 {
		s.breaks("%s makes %d control-plane nodes unavailable at once", n.Name, s.controlled)
	}
}

func (t *tally) add(by int, now time.Time) {
	if t.gone += by; t.gone > t.most {
		t.most, t.mostAt = t.gone, now
	}
}

func (t *tally) ended(turn *Turn) {
	if t.results == nil {
		t.results = map[v1alpha1.Result]int{}
	}
	t.last = turn.Ended
	t.results[turn.Result]++
}

// total returns the smallest maxUnavailableTotal and the name of its policy, or "".
func (s *sim) total() (most int, by string) {
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.MaxUnavailableTotal == nil || *p.MaxUnavailableTotal == (policy.Limit{}) {
			continue
		}
		if n := p.MaxUnavailableTotal.Of(s.all.managed); by == "" || n < most {
			most, by = n, p.Name
		}
	}
	return most, by
}

// granted checks a grant against windows, blackouts, canaries, gates and the policy.
func (s *sim) granted(h *host) {
	h.began = s.now
	if h.rank < 0 {
		return // count reports this
	}
	p := &s.Policies[h.rank]
	if open, _, _ := p.OpenUntil(s.now, p.ExpectedDuration); !open {
		s.breaks("%s is granted a turn outside of the windows of policy %s", h.node.Name, p.Name)
	}
	for _, g := range p.Gates {
		if !s.open(p.Name, g.Name) {
			s.breaks("%s is granted a turn while gate %s of policy %s is closed", h.node.Name, g.Name, p.Name)
		}
	}
	s.provenFor(h, p)
	if p.Observe || p.Paused || len(p.Problems) > 0 {
		s.breaks("%s is granted a turn by policy %s: observing %t, paused %t, invalid %t", h.node.Name, p.Name, p.Observe, p.Paused, len(p.Problems) > 0)
	}
	if t := &s.tally[h.rank]; t.first.IsZero() {
		t.first = s.now
	}
	if s.all.first.IsZero() {
		s.all.first = s.now
	}
}

// provenFor checks a grant against the machines that its policy waits for.
func (s *sim) provenFor(h *host, p *policy.Policy) {
	for _, c := range h.changes {
		if c.Source != v1alpha1.SourceOSUpdate {
			continue
		}
		for _, after := range p.After {
			for _, o := range s.hosts {
				if o.rank >= 0 && s.Policies[o.rank].Name == after.Policy && (!o.up || o.version != c.Version || s.now.Sub(o.bootAt) < after.For) {
					s.breaks("%s is granted a turn for %s, and %s of policy %s has not run it for %v", h.node.Name, c.Version, o.node.Name, after.Policy, after.For)
				}
			}
		}
	}
}

// open reports whether the gate is open now according to the fleet's file.
func (s *sim) open(policy, gate string) bool {
	return !slices.ContainsFunc(s.Gates, func(g Gate) bool {
		return g.Policy == policy && g.Gate == gate && slices.ContainsFunc(g.Closed, func(c Closed) bool { return c.holds(s.now, s.Start) })
	})
}
