package v1alpha1

// The reasons of Events that are neither a [Result] nor a [Reason].
const (
	// EventGranted: a node is granted its turn.
	EventGranted = "Granted"
	// EventBackingOut: a turn is being backed out.
	EventBackingOut = "BackingOut"
	// EventInvalidIntent: the payload of paused or detached does not parse; the
	// node is paused or detached nevertheless.
	EventInvalidIntent = "InvalidIntent"
	// EventResumed: the annotation paused was removed from the node.
	EventResumed = "Resumed"
	// EventAttached: the annotation detached was removed from the node.
	EventAttached = "Attached"
	// EventUnsettled: the outcome of a write to the node has been unknown for a
	// minute.
	EventUnsettled = "Unsettled"
	// EventTakesSlot: others have waited for ten minutes for a slot that the node
	// takes, and it is not in a turn.
	EventTakesSlot = "TakesSlot"
	// EventStoreRewound: the API server's store went back in time.
	EventStoreRewound = "StoreRewound"
	// EventDrainBlocked: something has blocked the node's drain for ten minutes. The
	// host writes it, and EventDrainUnblocked once nothing blocks the drain.
	EventDrainBlocked   = "DrainBlocked"
	EventDrainUnblocked = "DrainUnblocked"
	// EventStopLifted: the emergency stop is over.
	EventStopLifted = "StopLifted"
	// EventReleased: no more nodes of the policy have failed than it allows.
	EventReleased = "Released"
	// EventPolicyValid: a policy that was invalid is valid.
	EventPolicyValid = "PolicyValid"
)

// EventDoc is one reason of the coordinator's Events (events.k8s.io/v1).
type EventDoc struct {
	Reason string
	// About is the kind of the object that has the Event.
	About string
	// Warning is the Event's type: a user may have to do something. Otherwise it is
	// Normal.
	Warning bool
	Action  string // what the coordinator did, the Event's action
	Means   string
	Do      string
}

// Type is the Event's type.
func (d EventDoc) Type() string {
	if d.Warning {
		return "Warning"
	}
	return "Normal"
}

// personal lists the reasons that end only when a user does something, so that they
// have an Event. The others come and go by themselves.
var personal = []Reason{
	ReasonStopped, ReasonForbidden, ReasonVersionSkew, ReasonHostSilent, ReasonOverdue,
	ReasonNoPolicy, ReasonUnknownState, ReasonOtherManager,
	ReasonHeldBack,
}

// What an Event is about.
const (
	aboutNode   = "Node"
	aboutLease  = "Lease"
	aboutPolicy = "DisruptionPolicy"
)

var eventDocs = func() []EventDoc {
	failed := ReasonFailed.Doc()
	docs := []EventDoc{
		{EventGranted, aboutNode, false, "Grant", "the node is granted its turn; the note names the turn, its first state and the changes", "nothing"},
		{string(ResultDone), aboutNode, false, "End", "the turn is over and the changes are in effect", "nothing"},
		{string(ResultCancelled), aboutNode, false, "End", "the turn is over because the changes vanished, or an admin detached the node or set managed=false", "nothing"},
		{string(ResultBackedOut), aboutNode, true, "End", "the turn was backed out and is over; the node tries again later, after all others", "see the reason in the note; `lockkeeper retry NODE` lets it try at once"},
		{string(ResultFailed), aboutNode, true, "End", failed.Means, failed.Do},
		{EventBackingOut, aboutNode, true, "BackOut", "the turn is being backed out: the node is given back; the note says why", "see the reason in the note"},
		{EventUnsettled, aboutNode, true, "Wait", "the outcome of a write to the node has been unknown for a minute; the coordinator grants nothing to any node until it knows the outcome", "see the error in the note, and check whether the API server answers requests for this Node"},
		{EventTakesSlot, aboutNode, true, "Wait", "the node is cordoned by another owner or not Ready, so it takes a slot of the budget, and other nodes have waited for a slot for ten minutes", "uncordon or repair the node, or take it out with lockkeeper.dev/managed=false"},
		{EventDrainBlocked, aboutNode, true, "Wait", "a pod has not left the node for ten minutes; the note names the pod, the PodDisruptionBudget with its figures, or what else keeps it", "see [blockers](reasons.md#blockers)"},
		{EventDrainUnblocked, aboutNode, false, "Continue", "nothing blocks the drain now", "nothing"},
		{EventStoreRewound, aboutLease, true, "Settle", "the API server's store went back in time: it was restored from a backup; the coordinator has listed everything again and grants nothing for the policies' settle time", "check that the nodes are in the states that you expect: lockkeeper does not remember reboots after the backup"},
		{EventInvalidIntent, aboutNode, true, "Accept", "the payload of `lockkeeper.dev/paused` or `lockkeeper.dev/detached` does not parse; the node is paused or detached nevertheless", "fix or remove the annotation that the note names"},
	}
	paused, detached := ReasonPaused.Doc(), ReasonDetached.Doc()
	const removed = "; the note says who had set the annotation and why. The API server's audit log says who removed it"
	docs = append(docs,
		EventDoc{string(ReasonPaused), aboutNode, false, "Pause", paused.Means, paused.Do},
		EventDoc{EventResumed, aboutNode, false, "Resume", "the node is no longer paused" + removed, "nothing"},
		EventDoc{string(ReasonDetached), aboutNode, false, "Detach", detached.Means, detached.Do},
		EventDoc{EventAttached, aboutNode, false, "Attach", "the node is no longer detached; lockkeeper manages it again" + removed, "nothing"},
	)
	for _, r := range []Reason{ReasonHalted, ReasonInvalidPolicy} {
		d := r.Doc()
		docs = append(docs, EventDoc{string(r), aboutPolicy, true, "Hold", d.Means, d.Do})
	}
	docs = append(docs,
		EventDoc{EventReleased, aboutPolicy, false, "Release", "no more nodes have failed than the policy allows, so turns begin again", "nothing"},
		EventDoc{EventPolicyValid, aboutPolicy, false, "Release", "the policy was invalid and is valid again", "nothing"},
		EventDoc{EventStopLifted, aboutLease, false, "Release", "the emergency stop is over", "nothing"},
	)
	for _, r := range personal {
		d := r.Doc()
		docs = append(docs, EventDoc{string(r), aboutNode, true, "Hold", d.Means, d.Do})
	}
	return docs
}()

// EventDocs are all reasons of the coordinator's Events, in the order of the
// documentation. docs/events.md is rendered from it.
func EventDocs() []EventDoc { return eventDocs }

// EventOf returns the row of a reason; ok is false for one that no Event has:
// a node that is held for it needs nobody.
func EventOf(reason string) (doc EventDoc, ok bool) {
	for _, d := range eventDocs {
		if d.Reason == reason {
			return d, true
		}
	}
	return EventDoc{}, false
}
