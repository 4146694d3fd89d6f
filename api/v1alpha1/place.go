package v1alpha1

// Place is where a reason appears. Every reason is also in the journal of the host
// or of the coordinator.
type Place string

// The places.
const (
	// PlaceHeld: LabelHeld, and MetricHeldNodes.
	PlaceHeld Place = "held"
	// PlaceWaits: waits of the HostUpdate, and what PlaceHost has.
	PlaceWaits Place = "waits"
	// PlaceHost: the host's status line, and MetricHostWaits.
	PlaceHost Place = "host"
	// PlaceAck: the host reports it in AnnotationAck.
	PlaceAck Place = "ack"
	// PlaceEnd: AnnotationLast, history of the HostUpdate, and the Event about the
	// turn's end.
	PlaceEnd Place = "end"
	// PlaceEvent: an Event of its own.
	PlaceEvent Place = "Event"
	// PlaceStatus: `lockkeeper status NODE`.
	PlaceStatus Place = "status"
)

// Places are where the reason appears, in the order of the constants.
func (r Reason) Places() []Place {
	var all []Place
	add := func(p Place, is bool) {
		if is {
			all = append(all, p)
		}
	}
	waits, host := true, false
	switch r {
	case ReasonOverBudget, ReasonReplaced, ReasonCleared, ReasonOverdue: // the coordinator's findings
		waits = false
	case ReasonApplyFailed: // a report, after which the host waits for the coordinator
		waits = false
	case ReasonDetached, ReasonUnmanaged: // no HostUpdate is written while the node is out
		waits, host = false, true
	}
	_, event := EventOf(string(r))
	add(PlaceHeld, r.Holds())
	add(PlaceWaits, waits)
	add(PlaceHost, host)
	switch r {
	case ReasonUncordoned, ReasonPlanChanged, ReasonBootChanged, ReasonRebootRefused, ReasonHookFailed, ReasonApplyFailed,
		ReasonNotUpdated, ReasonStillWanted, ReasonUnhealthy:
		add(PlaceAck, true)
	}
	add(PlaceEnd, r.Ends())
	add(PlaceEvent, event)
	add(PlaceStatus, r != ReasonReplaced)
	return all
}
