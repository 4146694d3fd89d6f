package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Slot is a node that counts as unavailable, and why. Its JSON form is part of that of
// `lockkeeper status -o json`.
type Slot struct {
	// Node is the Node's name.
	Node string `json:"node"`
	// Use says why the node counts as unavailable. The label `reason` of the metrics has the same
	// values.
	Use v1alpha1.SlotUse `json:"reason"`
	// Owner is the program that deletes the node, if the reason is Deleted.
	Owner string `json:"owner,omitempty"`
	// Since is when it began to count, in UTC. It is missing if the Node does not say.
	Since time.Time `json:"since,omitzero"`
	// Policies lists the policies in whose `maxUnavailable` the node counts.
	Policies []string `json:"policies,omitempty"`
}

// slotUse returns why the node counts as unavailable, or "" if it does not.
func (d *decision) slotUse(n *turn.Node) v1alpha1.SlotUse {
	switch {
	case d.Uncertain[n.Name]:
		return v1alpha1.SlotUnsettled
	case byUs(n) && d.failed(n):
		return v1alpha1.SlotFailed
	case byUs(n):
		return v1alpha1.SlotInTurn
	case !managed(n):
		return ""
	case n.Deleted:
		return v1alpha1.SlotDeleted
	case !n.Ready:
		return v1alpha1.SlotNotReady
	case n.Unschedulable:
		return v1alpha1.SlotCordoned
	}
	return ""
}

// slot returns the Slot of a node that counts as unavailable.
func (d *decision) slot(e *entry) Slot {
	s := Slot{Node: e.Name, Use: d.slotUse(e.Node)}
	switch {
	case s.Use == v1alpha1.SlotDeleted:
		s.Owner, s.Since = e.OwnerName, e.OwnerSince.UTC()
	case s.Use == v1alpha1.SlotNotReady:
		s.Since = e.ReadySince.UTC()
	case e.InTurn() && e.Ours():
		s.Since = e.Grant.StartedAt.UTC()
	}
	for _, g := range d.counting(e.Node) {
		if g != nil {
			s.Policies = append(s.Policies, g.Name)
		}
	}
	return s
}

// slots returns all slots, by name.
func (d *decision) slots() []Slot {
	all := make([]Slot, 0, len(d.taken))
	for _, e := range d.taken {
		all = append(all, d.slot(e))
	}
	return all
}

// slotsShown is how many nodes that take slots a sentence names. It counts the others.
const slotsShown = 3

// ByUse returns the slots in the order of [v1alpha1.SlotUses], and by name.
func ByUse(slots []Slot) []Slot {
	slots, uses := slices.Clone(slots), v1alpha1.SlotUses()
	slices.SortFunc(slots, func(a, b Slot) int {
		return cmp.Or(cmp.Compare(slices.Index(uses, a.Use), slices.Index(uses, b.Use)), cmp.Compare(a.Node, b.Node))
	})
	return slots
}

// Taken returns which nodes take slots and why, such as ": a is cordoned by another owner, b
// is in its turn", or "" if there are none. It begins with those that end only when someone
// acts.
func Taken(slots []Slot) string {
	if len(slots) == 0 {
		return ""
	}
	slots = ByUse(slots)
	var parts []string
	for _, s := range slots[:min(len(slots), slotsShown)] {
		text := s.Node + " " + s.Means()
		if (s.Use == v1alpha1.SlotNotReady || s.Use == v1alpha1.SlotDeleted) && !s.Since.IsZero() {
			text += " since " + s.Since.UTC().Format(time.DateTime) + " UTC"
		}
		parts = append(parts, text)
	}
	if more := len(slots) - slotsShown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return ": " + strings.Join(parts, ", ")
}

// Means returns the end of a sentence that begins with the node's name.
func (s *Slot) Means() string {
	if s.Owner != "" {
		return s.Use.Means() + " by " + s.Owner
	}
	return s.Use.Means()
}

// Blocking returns the slots for which nodes wait and that no turn takes: nodes that another
// owner cordoned or deletes, or that are not Ready. Nodes that wait until their policy's nodes have
// settled wait for no slot.
func (o *Outcome) Blocking() []Slot {
	waits := map[string]bool{} // by policy
	for i := range o.Verdicts {
		if o.Verdicts[i].Held == v1alpha1.ReasonBudget {
			waits[o.Verdicts[i].Policy] = true
		}
	}
	someWait := false
	for i := range o.Policies {
		if !o.Policies[i].Settling.IsZero() {
			delete(waits, o.Policies[i].Name)
		}
		someWait = someWait || waits[o.Policies[i].Name]
	}
	// Where the total is used up, it does not matter whose slot it is.
	all := someWait && o.Unavailable >= o.Budget
	var blocking []Slot
	for _, s := range o.Slots {
		if s.Use != v1alpha1.SlotCordoned && s.Use != v1alpha1.SlotNotReady && s.Use != v1alpha1.SlotDeleted {
			continue
		}
		if all || slices.ContainsFunc(s.Policies, func(p string) bool { return waits[p] }) {
			blocking = append(blocking, s)
		}
	}
	return blocking
}

// slotsText returns which nodes take the slots of a policy, or all slots if g is nil. It
// leaves out the nodes that are granted their turn in this decision.
func (d *decision) slotsText(g *group) string {
	text := &d.takers
	if g != nil {
		text = &g.takers
	}
	if *text != "" {
		return *text
	}
	var of []Slot
	for _, e := range d.taken {
		if in := d.counting(e.Node); g == nil || in[0] == g || in[1] == g {
			of = append(of, d.slot(e))
		}
	}
	*text = Taken(of)
	return *text
}
