package coordinator

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// heldPeriod is the shortest time between two notifications about held nodes. It is needed
// because the nodes of a fleet begin to wait one after the other.
const heldPeriod = 10 * time.Minute

// heldNode is a node that this leader has seen held without interruption.
type heldNode struct {
	since    time.Time
	reported bool
}

// report writes an Event and sends a notification about the same fact. So a leader that
// does not repeat one does not repeat the other. The caller sets all fields of m except
// the text.
func (e *events) report(about *corev1.ObjectReference, reason, note string, m notify.Message) {
	e.write(about, reason, note)
	m.Text = fmt.Sprintf("%s %s: %s: %s", about.Kind, about.Name, reason, note)
	e.send(m)
}

// reportHeld sends one notification about all nodes that have been held for longer
// than heldAfter and were not reported yet. It ignores nodes that an admin or the host's
// file took out, and nodes whose policy only observes, because they wait for nothing.
func (e *events) reportHeld(now time.Time, verdicts []rollout.Verdict) {
	if e.heldAfter == 0 {
		return
	}
	was := e.held
	e.held = make(map[string]heldNode, len(was))
	var due []*rollout.Verdict
	for i := range verdicts {
		v := &verdicts[i]
		h := was[v.Node]
		switch v.Held {
		case v1alpha1.ReasonNone:
			if v.Move != nil && v.Move.Disturbs() && !h.since.IsZero() {
				e.held[v.Node] = h // the API server may refuse the grant, as it may have done before
			}
			continue
		case v1alpha1.ReasonDetached, v1alpha1.ReasonUnmanaged, v1alpha1.ReasonWouldGrant:
			continue
		}
		if h.since.IsZero() {
			h.since = now
		}
		e.held[v.Node] = h
		if !h.reported && now.Sub(h.since) >= e.heldAfter {
			due = append(due, v)
		}
	}
	if len(due) == 0 || now.Sub(e.heldSent) < heldPeriod {
		return
	}
	e.heldSent = now
	m := notify.Message{Occasion: v1alpha1.OccasionHeld, Policy: due[0].Policy, Reason: due[0].Held}
	var named []string
	for _, v := range due {
		e.held[v.Node] = heldNode{e.held[v.Node].since, true}
		m.Nodes = append(m.Nodes, v.Node)
		if len(named) < notify.MaxNames {
			named = append(named, fmt.Sprintf("%s (%s)", v.Node, v.Held))
		}
		if v.Held != m.Reason {
			m.Reason = v1alpha1.ReasonNone
		}
		if v.Policy != m.Policy {
			m.Policy = ""
		}
	}
	more := ""
	if n := len(due) - len(named); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	m.Text = fmt.Sprintf("%d nodes held for longer than %s: %s%s; `lockkeeper status NODE` says what each waits for", len(due), e.heldAfter, strings.Join(named, ", "), more)
	if len(due) == 1 {
		m.Text = fmt.Sprintf("Node %s: held for longer than %s: %s", due[0].Node, e.heldAfter, heldNote(due[0]))
	}
	e.send(m)
}
