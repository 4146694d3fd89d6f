package v1alpha1

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
		{OccasionHeld, "nodes have been held for longer than `held_longer_than`, whatever the reasons"},
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
	NotificationSent   = "sent"   // the receiver accepted it
	NotificationFailed = "failed" // the receiver refused it, or did not accept it in time
	NotificationLost   = "lost"   // the queue was full, or the process ended
)
