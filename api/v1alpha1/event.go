package v1alpha1

// The reasons of Events that are neither a [Result] nor a [Reason].
const (
	// EventGranted: a node is granted its turn.
	EventGranted = "Granted"
	// EventBackingOut: a turn is being backed out.
	EventBackingOut = "BackingOut"
	// EventInvalidIntent: the payload of paused, detached or a request does not parse. The
	// node is paused or detached nevertheless; a request is ignored.
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
	// EventDrainDelayed: something has blocked the node's drain for ten minutes. The
	// host writes it, and EventDrainUnblocked once nothing blocks the drain.
	EventDrainDelayed   = "DrainDelayed"
	EventDrainUnblocked = "DrainUnblocked"
	// EventDrainForced: a forced drain deleted a pod that could not be evicted. The
	// host writes it.
	EventDrainForced = "DrainForced"
	// EventStopLifted: the emergency stop is over.
	EventStopLifted = "StopLifted"
	// EventReleased: no more nodes of the policy have failed than it allows.
	EventReleased = "Released"
	// EventPolicyValid: a policy that was invalid is valid.
	EventPolicyValid = "PolicyValid"
)

// EventDoc is one reason of lockkeeper's Events (events.k8s.io/v1).
type EventDoc struct {
	Reason string
	// About is the kind of the object that has the Event.
	About string
	// Warning is the Event's type: a user may have to do something. Otherwise it is
	// Normal.
	Warning bool
	Action  string // what the coordinator or the host did, the Event's action
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
	aboutPod    = "Pod"
)

var eventDocs = func() []EventDoc {
	failed := ReasonFailed.Doc()
	docs := []EventDoc{
		{EventGranted, aboutNode, false, "Grant", "the node is granted its turn; the note names the turn, its first state and the changes", "nothing"},
		{string(ResultDone), aboutNode, false, "End", "the turn is over and the changes are in effect", "nothing"},
		{string(ResultCancelled), aboutNode, false, "End", "the turn ended early, and the node did not fail: the changes vanished, an admin took the node out, its policy no longer allowed the turn (`Window`, `HeldBack`, `Canary`), or a new leader found more turns than the budget allows (`OverBudget`); the note says which", "nothing"},
		{string(ResultBackedOut), aboutNode, true, "End", "the turn was backed out and is over; the node tries again later, after all others", "see the reason in the note; `lockkeeper retry NODE` lets it try at once"},
		{string(ResultFailed), aboutNode, true, "End", failed.Means, failed.Do},
		{EventBackingOut, aboutNode, true, "BackOut", "the turn is being backed out: the node is given back; the note says why", "see the reason in the note"},
		{EventUnsettled, aboutNode, true, "Wait", "the outcome of a write to the node has been unknown for a minute; the coordinator grants nothing to any node until it knows the outcome", "see the error in the note, and check whether the API server answers requests for this Node"},
		{EventTakesSlot, aboutNode, true, "Wait", "the node is cordoned or being deleted by another owner, or not Ready, so it takes a slot of the budget, and other nodes have waited for a slot for ten minutes", "uncordon or repair the node, or take it out with lockkeeper.dev/managed=false"},
		{EventDrainDelayed, aboutNode, true, "Wait", "a pod has not left the node for ten minutes; the note names the pod, the PodDisruptionBudget with its figures, or what else keeps it", "see [blockers](reasons.md#blockers)"},
		{EventDrainUnblocked, aboutNode, false, "Continue", "nothing blocks the drain now", "nothing"},
		{EventDrainForced, aboutPod, true, "Delete", "the drain is overdue and its policy has `onTimeout: Force`, so the pod was deleted although its eviction was refused; the note has the refusal", "nothing, if the pod's application is well; else see the PodDisruptionBudget or webhook that refused"},
		{EventStoreRewound, aboutLease, true, "Settle", "the API server's store went back in time: it was restored from a backup; the coordinator has listed everything again and grants nothing for the policies' settle time", "set an emergency stop or a pause again that was set after the backup: it is gone; check that the nodes are in the states that you expect: lockkeeper does not remember reboots after the backup"},
		{EventInvalidIntent, aboutNode, true, "Accept", "the payload of `lockkeeper.dev/paused`, `detached`, `request` or `request-now` does not parse; the node is paused or detached nevertheless, and a request is ignored", "fix or remove the annotation that the note names"},
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

// EventDocs are all reasons of lockkeeper's Events, in the order of the
// documentation. docs/events.md is rendered from it.
func EventDocs() []EventDoc { return eventDocs }

// EventOf returns the row of a reason. ok is false for a reason without an Event: a node
// that is held for it needs no user's action.
func EventOf(reason string) (doc EventDoc, ok bool) {
	for _, d := range eventDocs {
		if d.Reason == reason {
			return d, true
		}
	}
	return EventDoc{}, false
}

// MessageID is a kind of event in the journal: the value of the field
// MESSAGE_ID, 32 hexadecimal digits. It never changes and is never used for
// anything else, so that `journalctl MESSAGE_ID=…` and alerts built on it
// keep working. What each means is in the catalog that
// `journalctl -x` reads, packaging/lockkeeper.catalog.
type MessageID string

// The kinds of events.
const (
	// MessageStarted: the service runs.
	MessageStarted MessageID = "57b4bd509e924811b507d8d94750ebc9"
	// MessageStops: the service stops.
	MessageStops MessageID = "4978810ba888487cb0956086567531db"
	// MessageReloaded: the configuration was read again.
	MessageReloaded MessageID = "a1a3c9c8a9034d56af65f14084c53bb0"
	// MessageBadReload: a reload was refused.
	MessageBadReload MessageID = "baa15346555c4cd7a460d39dbd4ebb32"
	// MessageTurnBegins: a turn begins.
	MessageTurnBegins MessageID = "99039ae2c5d84745aa8e8d1acdfdd4ab"
	// MessageStateEntered: a node is in another state.
	MessageStateEntered MessageID = "03a2c83da50041fdbaa6ee5190fea2e0"
	// MessageTurnEnded: a turn ended, by whatever result but Failed.
	MessageTurnEnded MessageID = "feaba5aebe8a487ebe250598cb54e95b"
	// MessageTurnFailed: a turn ended as Failed.
	MessageTurnFailed MessageID = "1a9d282fefcc4e91ba79fc36fc26bc02"
	// MessageHeld: a node waits, with the reason.
	MessageHeld MessageID = "c3a41332326848ecbda073e3865a5860"
	// MessageHeldNoMore: what a node waited for is over.
	MessageHeldNoMore MessageID = "b4c8532ed9574f20aec09688f3226622"
	// MessageWants: what the host wants has changed.
	MessageWants MessageID = "8fdb8cbb1d4e495ea6988e063379da40"
	// MessageCommitted: the host committed to a disruption.
	MessageCommitted MessageID = "38292e5ee34048cc85f7e13fdc48053d"
	// MessageStageDone: the host has done what its state asks of it.
	MessageStageDone MessageID = "c73d045c09b5425f83dfe4e8aac9028c"
	// MessageRefused: the host refuses what its state asks of it.
	MessageRefused MessageID = "98692f1f11a445e7af2cae4c829ec87c"
	// MessageStageFailed: what the host did in its state did not work.
	MessageStageFailed MessageID = "4734472431534195b8b642f0b5690ad3"
	// MessageCordoned: the host cordoned its node.
	MessageCordoned MessageID = "498047b09c8c4deeaa8e5424ffdb38d8"
	// MessageUncordoned: the host uncordoned its node.
	MessageUncordoned MessageID = "acddd16f5320442194de2158e363b346"
	// MessageEvicting: the host begins to evict its pods.
	MessageEvicting MessageID = "0b18c3df1f4c418ab693a4c92942046d"
	// MessageRebootCalled: logind is asked to reboot.
	MessageRebootCalled MessageID = "68486d5411c34e59ba47f381b1d21a20"
	// MessageRebootPermitted: a FleetLock client gets permission to reboot the host.
	MessageRebootPermitted MessageID = "72f78b3f71bd4410a8eade9c9811de56"
	// MessageRebootRefused: logind would not reboot.
	MessageRebootRefused MessageID = "498b1bcb87e644358aadc922c6943018"
	// MessageShutdown: the host begins to shut down.
	MessageShutdown MessageID = "ddb7af8349df4f3a8641e5a15350e9e3"
	// MessageHooksRun: the host's own hook units are started.
	MessageHooksRun MessageID = "5e02abe3291a428fbca8b33d59dd766b"
	// MessageHooksDone: the host's own hook units are done.
	MessageHooksDone MessageID = "129e5856446a45768adc1464972d324d"
	// MessageHooksFailed: a hook unit of the host failed, or took too long.
	MessageHooksFailed MessageID = "9f949b47feb14ce1b8b9f92daf5b80c4"
	// MessageHooksOverdue: hook units take longer than [hooks] timeout, and are waited for.
	MessageHooksOverdue MessageID = "5ac57ccf402f4ae3ab16a7dbd7435821"
	// MessageTrouble: the host's loop cannot continue for now, or a leader cannot decide or grant.
	MessageTrouble MessageID = "b7956d4cc98043719367efe7de46dfc3"
	// MessageGranted: the coordinator grants a turn.
	MessageGranted MessageID = "9d7478535c2b48809699e5798a3c5f7d"
	// MessageElected: this instance coordinates.
	MessageElected MessageID = "87f8587d314340518c7ccf2aa0c6a57f"
	// MessageTermOver: this instance coordinates no more.
	MessageTermOver MessageID = "ef8d61dc89554978ac7e82a6bca23469"
	// MessageStandsBy: this instance does not coordinate, and why.
	MessageStandsBy MessageID = "b381734774c846bf801cac2c75a3f220"
	// MessageStopped: the emergency stop is set.
	MessageStopped MessageID = "f204105fee214ccda5fcc7798cda5e81"
	// MessageStopOver: the emergency stop is over.
	MessageStopOver MessageID = "b8498bd2ca3e4cc1962c2a1968d19fb8"
	// MessageWriteRefused: the API server refuses a write of the coordinator's.
	MessageWriteRefused MessageID = "0c3b3336519541ad967a585039f78da0"
	// MessageCredentialRenewed: the coordinator's token was renewed.
	MessageCredentialRenewed MessageID = "390881b88c0b4399ac88dab77ede745c"
	// MessageCredentialExposed: users other than root can read or change the
	// coordinator's credential.
	MessageCredentialExposed MessageID = "962d7a6c4e464005b7e2dd494a25a23f"
	// MessageCredentialEnds: the coordinator's credential ends soon, or has.
	MessageCredentialEnds MessageID = "8b9d591c9a1643a988d484e5e8989cc2"
)

// Occasion is what a notification is about: a value of the key notify.on in the
// coordinator's file.
type Occasion string

// The occasions.
const (
	OccasionTurnEnded Occasion = "turn-ended" // [ResultDone], [ResultCancelled] or [ResultBackedOut]
	OccasionFailed    Occasion = "failed"     // of one node
	OccasionHalted    Occasion = "halted"     // of one policy
	OccasionHeld      Occasion = "held"       // of one or more nodes
	OccasionStop      Occasion = "stop"       // the emergency stop
)

// OccasionDoc is an occasion with what it means.
type OccasionDoc struct {
	Occasion Occasion
	Means    string
}

// OccasionDocs are all occasions, in the order of the documentation.
func OccasionDocs() []OccasionDoc {
	return []OccasionDoc{
		{OccasionTurnEnded, "a node's turn ended without a failure: `Done`, `Cancelled` or `BackedOut`"},
		{OccasionFailed, "a node's turn ended `Failed`, or the node stays in its turn because it failed or is overdue"},
		{OccasionHalted, "more nodes of a policy have failed than it allows, so it grants no more turns (`Halted`); and the end of that (`Released`)"},
		{OccasionHeld, "nodes have been held for longer than `held_longer_than`, for any reason; nodes that were taken out, and nodes whose policy only observes, do not count"},
		{OccasionStop, "the emergency stop is set (`Stopped`) or lifted (`StopLifted`)"},
	}
}

// NotifyFormat is the form of a notification: a value of the key notify.format in
// the coordinator's file.
type NotifyFormat string

// The formats.
const (
	NotifySlack   NotifyFormat = "slack"   // an incoming webhook of Slack
	NotifyTeams   NotifyFormat = "teams"   // a workflow of Microsoft Teams that a webhook request starts
	NotifyGeneric NotifyFormat = "generic" // lockkeeper's own JSON object
)

// Results of a notification, values of the label of [MetricNotifications].
const (
	NotificationSent    = "sent"    // the receiver accepted it
	NotificationFailed  = "failed"  // the receiver refused it, or did not accept it in time
	NotificationDropped = "dropped" // the queue was full, or the process ended
)
