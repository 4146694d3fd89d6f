package report

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Slot is a node that counts as unavailable, and so takes a slot of the budgets.
type Slot struct {
	Node string           `json:"node"`
	Use  v1alpha1.SlotUse `json:"use"`
	// Since is since when it does; null if the Node does not say.
	Since *time.Time `json:"since,omitempty"`
	// Policies are those in whose maxUnavailable it counts.
	Policies []string `json:"policies,omitempty"`
}

func slotOf(t rollout.Slot) Slot {
	s := Slot{Node: t.Node, Use: t.Use, Policies: t.Policies}
	if !t.Since.IsZero() {
		s.Since = new(t.Since.UTC())
	}
	return s
}

// taken says which nodes take slots and why, one line, or "".
func (r *Report) taken() string {
	slots := make([]rollout.Slot, 0, len(r.Slots))
	for _, s := range r.Slots {
		t := rollout.Slot{Node: s.Node, Use: s.Use}
		if s.Since != nil {
			t.Since = *s.Since
		}
		slots = append(slots, t)
	}
	if text := rollout.Taken(slots); text != "" {
		return "Unavailable" + text + "."
	}
	return ""
}

// slotWords say that a node in no turn takes a slot, or nothing.
func (n *Node) slotWords(now time.Time) string {
	if n.Slot == nil || n.State.InTurn() {
		return ""
	}
	text := "takes a slot: it " + n.Slot.Use.Means()
	if n.Slot.Since != nil {
		text += ", for " + since(now, n.Slot.Since)
	}
	return text
}
