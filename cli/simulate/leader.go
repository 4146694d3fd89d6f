package simulate

import (
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// self returns the name of the Node of the coordinator's own host, which rolls last: the first control-plane node, if
// there is one.
func (s *sim) self() string {
	for i := range s.nodes {
		if s.nodes[i].ControlPlane {
			return s.nodes[i].Name
		}
	}
	return ""
}

// lead decides once and executes the decision like a leader: moves of existing turns first, then the grants.
func (s *sim) lead() error {
	s.decisions++
	out := s.decide(rollout.Snapshot{
		Now: s.now, Epoch: epoch, Self: s.self(), Policies: s.Policies, Gates: s.gates, Nodes: s.nodes,
	})
	if s.again = out.Again; !s.again.IsZero() {
		s.again = s.coarse(s.again)
	}
	for _, grants := range []bool{false, true} {
		for i := range out.Verdicts {
			v := &out.Verdicts[i]
			if v.Move == nil || v.Move.Disturbs() != grants {
				continue
			}
			if err := s.move(s.at[v.Node], v.Move); err != nil {
				return err
			}
		}
	}
	for i := range out.Verdicts {
		v := &out.Verdicts[i]
		h := s.at[v.Node]
		h.node.Held = v.Held
		if failed := v.Held == v1alpha1.ReasonFailed || v.Held == v1alpha1.ReasonOverdue && (h.node.State == v1alpha1.StateRebooting || h.node.State == v1alpha1.StateApplying); failed && h.node.InTurn() {
			s.failed(h, h.node.Turn, "the host "+notWell(h, v))
		}
	}
	s.tell(&out)
	return s.broken
}

func notWell(h *host, v *rollout.Verdict) string {
	if v.Held == v1alpha1.ReasonOverdue {
		return "is overdue in " + string(h.node.State)
	}
	return "failed: " + v.Detail
}

// failed records a failure, once for each turn, and schedules the retry by an admin.
func (s *sim) failed(h *host, of, what string) {
	if h.retryOf == of {
		return
	}
	h.retryOf = of
	s.failures++
	s.note(h.rank, "%s: %s", h.node.Name, what)
	if s.RetryAfter.Duration > 0 {
		s.in(s.RetryAfter.Duration, h.dice, func() {
			if h.node.InTurn() && h.node.Turn == of || !h.node.InTurn() && h.node.Last != nil && h.node.Last.Turn == of {
				s.note(h.rank, "%s: retry", h.node.Name)
				s.retry(h)
			}
		})
	}
}

// move executes a move.
func (s *sim) move(h *host, m *rollout.Move) error {
	n := h.node
	if m.On == turn.Granted {
		s.granted(h)
	}
	ended := m.From.InTurn() && !m.To.InTurn()
	stage := m.From != m.To
	if stage && m.From == v1alpha1.StateAbsent {
		s.all.managed++
		if h.rank >= 0 {
			s.tally[h.rank].managed++
		}
	}
	n.State = m.To
	for _, key := range m.Remove {
		switch name, hook := v1alpha1.HookName(key); {
		case hook:
			delete(n.Hooks, name)
		case key == v1alpha1.AnnotationCordon:
			n.Mark = false
		case key == v1alpha1.AnnotationRequest, key == v1alpha1.AnnotationRequestNow:
			n.Request, n.Requests = nil, v1alpha1.Requests{}
			h.changes = slices.DeleteFunc(h.changes, func(c v1alpha1.Change) bool { return c.Source == v1alpha1.SourceRequest })
			h.replan()
		}
	}
	switch {
	case m.Keep:
	case m.Grant == nil:
		n.Turn, n.Grant = "", nil
	default:
		g := *m.Grant
		if m.NewTurn {
			s.turns++
			g.Turn = fmt.Sprintf("t%d", s.turns)
		}
		n.Turn, n.Grant = g.Turn, &g
	}
	if m.Last != nil {
		n.Last = m.Last
	}
	if m.Runs != nil {
		n.Runs = m.Runs
	}
	if !n.InTurn() || s.Resolution.Duration <= time.Second {
		s.dirty = true // other moves may follow at once
	} else if soon := s.now.Add(s.Resolution.Duration); s.again.IsZero() || soon.Before(s.again) {
		// The next change can only come from a timeout of the new stage, which this decision did not consider. In a
		// large fleet the next decision at the resolution handles it.
		s.again = soon
	}
	if !stage && n.InTurn() && n.Grant.Force {
		s.drained(h, h.drainOf)
	}
	s.count(h)
	s.see(h)
	if ended && m.Last != nil {
		s.ended(h, m.Last)
	}
	if stage && n.State.HookStage() {
		return s.confirm(h)
	}
	return nil
}
