package v1alpha1

import "strings"

// SlotUse is why a node counts as unavailable, and so takes a slot of the
// budgets (maxUnavailable and maxUnavailableTotal). It is a label's value in
// metrics and a field's in `lockkeeper status -o json`.
type SlotUse string

// Why a node takes a slot. A node has the first that is true of it.
const (
	// SlotUnsettled: the outcome of a write to the node is not known.
	SlotUnsettled SlotUse = "Unsettled"
	// SlotFailed: its turn failed or is overdue, and is not over.
	SlotFailed SlotUse = "Failed"
	// SlotInTurn: it is in a turn, or has a cordon of lockkeeper's.
	SlotInTurn SlotUse = "InTurn"
	// SlotNotReady: it is managed and in no turn, and its Ready condition is not
	// True.
	SlotNotReady SlotUse = "NotReady"
	// SlotCordoned: it is managed and in no turn, and someone else cordoned it.
	SlotCordoned SlotUse = "Cordoned"
)

// SlotUses are all uses, those first that end only when someone acts.
func SlotUses() []SlotUse {
	return []SlotUse{SlotCordoned, SlotFailed, SlotNotReady, SlotUnsettled, SlotInTurn}
}

// slotUses names all uses, for a document.
func slotUses() string {
	var all []string
	for _, u := range SlotUses() {
		all = append(all, string(u))
	}
	return strings.Join(all, ", ")
}

// Means says it of a node, as the end of a sentence that begins with its name;
// "" for a use that is none.
func (u SlotUse) Means() string {
	switch u {
	case SlotUnsettled:
		return "has a write whose outcome is not known"
	case SlotFailed:
		return "failed in its turn"
	case SlotInTurn:
		return "is in its turn"
	case SlotNotReady:
		return "is not Ready"
	case SlotCordoned:
		return "is cordoned by another owner"
	}
	return ""
}
