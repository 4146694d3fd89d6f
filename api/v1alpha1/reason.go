package v1alpha1

// Reason is why something does not move, was backed out, or failed: one CamelCase enum,
// with the same value in labels, logs, Events, metrics, status and docs.
type Reason string

// Valid reports whether the reason has the form of one: 1 to 63 ASCII
// letters and digits beginning with a capital. It need not be one of ours: a
// newer host may know more of them.
func (r Reason) Valid() bool {
	if len(r) < 1 || len(r) > 63 || r[0] < 'A' || r[0] > 'Z' {
		return false
	}
	for i := range len(r) {
		if !alphanumeric(r[i]) {
			return false
		}
	}
	return true
}

// Why a node in no turn is not granted one.
const (
	// ReasonNone: nothing holds the node.
	ReasonNone Reason = ""
	// ReasonBudget: as many nodes as the policy allows are unavailable, or
	// the fleet settles after the last of them.
	ReasonBudget Reason = "Budget"
	// ReasonControlPlane: another control-plane node is in a turn, not Ready
	// or unschedulable.
	ReasonControlPlane Reason = "ControlPlane"
	// ReasonHalted: more nodes failed than the policy allows.
	ReasonHalted Reason = "Halted"
	// ReasonBackoff: the last turn was backed out, and not-before is in the future.
	ReasonBackoff Reason = "Backoff"
	// ReasonTurnLimit: the node has had as many turns within 24 hours as its
	// policy allows.
	ReasonTurnLimit Reason = "TurnLimit"
	// ReasonNotReady: the node is not Ready.
	ReasonNotReady Reason = "NotReady"
	// ReasonVersionSkew: the host's protocol is not the coordinator's or the one
	// before.
	ReasonVersionSkew Reason = "VersionSkew"
	// ReasonHandover: turns of another term are not settled yet, or a write
	// has an outcome that is not known.
	ReasonHandover Reason = "Handover"
	// ReasonNoPolicy: no policy selects the node.
	ReasonNoPolicy Reason = "NoPolicy"
	// ReasonInvalidPolicy: the policy that selects the node is invalid.
	ReasonInvalidPolicy Reason = "InvalidPolicy"
	// ReasonWouldGrant: the policy only observes; the node's turn would be
	// now.
	ReasonWouldGrant Reason = "WouldGrant"
	// ReasonGateClosed: a gate of the policy is closed.
	ReasonGateClosed Reason = "GateClosed"
)

// Why a node waits, in a turn or in none.
const (
	// ReasonStopped: the emergency stop, or no Lease.
	ReasonStopped Reason = "Stopped"
	// ReasonPaused: an admin has paused the node, or its policy.
	ReasonPaused Reason = "Paused"
	// ReasonDetached: an admin has detached the node. It stays in LabelHeld while
	// the node is detached.
	ReasonDetached Reason = "Detached"
	// ReasonHostSilent: the host does not answer.
	ReasonHostSilent Reason = "HostSilent"
	// ReasonFailed: the host failed; see the reason in grant or last.
	ReasonFailed Reason = "Failed"
	// ReasonOverdue: the stage takes longer than its timeout.
	ReasonOverdue Reason = "Overdue"
	// ReasonUnknownState: the state label holds no state that is known.
	ReasonUnknownState Reason = "UnknownState"
	// ReasonInvalidGrant: the grant annotation cannot be read, or is another
	// turn's.
	ReasonInvalidGrant Reason = "InvalidGrant"
	// ReasonInvalidRecord: the host annotation cannot be read, or is too large.
	ReasonInvalidRecord Reason = "InvalidRecord"
	// ReasonSourceUnreadable: a source of changes has not been read in this boot, or it or
	// the policies cannot be read now.
	ReasonSourceUnreadable Reason = "SourceUnreadable"
	// ReasonInhibited: a process holds a block inhibitor against a shutdown.
	ReasonInhibited Reason = "Inhibited"
	// ReasonSessions: a user is logged in and has been warned.
	ReasonSessions Reason = "Sessions"
	// ReasonOwnCordonLeft: a node in no turn has a cordon of lockkeeper's.
	ReasonOwnCordonLeft Reason = "OwnCordonLeft"
)

// Vetoes of a host.
const (
	// ReasonHostPaused: paused is set in the host's file.
	ReasonHostPaused Reason = "HostPaused"
	// ReasonObserve: mode = "observe" in the host's file.
	ReasonObserve Reason = "Observe"
	// ReasonWindow: no window is open.
	ReasonWindow Reason = "Window"
	// ReasonMinUptime: the host booted less than min_uptime ago.
	ReasonMinUptime Reason = "MinUptime"
	// ReasonHeldBack: the reboot would boot an OS version that a policy holds
	// back.
	ReasonHeldBack Reason = "HeldBack"
	// ReasonOtherManager: another reboot manager is active on the host.
	ReasonOtherManager Reason = "OtherManager"
)

// IsVeto reports whether the reason is one that a host may give for a veto.
func (r Reason) IsVeto() bool {
	switch r {
	case ReasonHostPaused, ReasonObserve, ReasonWindow, ReasonMinUptime, ReasonHeldBack, ReasonOtherManager, ReasonSourceUnreadable:
		return true
	}
	return false
}

// Holds reports whether the coordinator writes the reason in the label held. It
// writes neither those that only a host knows nor those that end a turn, and it
// repairs an invalid grant at once.
func (r Reason) Holds() bool {
	switch r {
	case ReasonNone, ReasonInhibited, ReasonSessions, ReasonNoCoordinator, ReasonInvalidGrant:
		return false
	}
	return !r.endsOnly()
}

// endsOnly reports whether the reason is only one for which a turn ends or is backed
// out.
func (r Reason) endsOnly() bool {
	switch r {
	case ReasonUncordoned, ReasonWantGone, ReasonPlanChanged, ReasonBootChanged, ReasonRebootRefused, ReasonHookFailed, ReasonApplyFailed,
		ReasonNotUpdated, ReasonStillWanted, ReasonUnhealthy, ReasonOverBudget, ReasonReplaced, ReasonCleared:
		return true
	}
	return false
}

// Ends reports whether a turn may end for the reason.
func (r Reason) Ends() bool {
	switch r {
	case ReasonUnmanaged, ReasonDetached, ReasonHostSilent, ReasonOverdue, ReasonHeldBack, ReasonOwnCordonLeft, ReasonWindow, ReasonInvalidGrant:
		return true
	case ReasonUnhealthy: // the turn ends when the host has recovered, or an admin clears it
		return false
	case ReasonReplaced: // the turn's records go with the Node that it was granted to
		return false
	}
	return r.endsOnly()
}

// Reasons that a host finds by itself when no coordinator acts.
const (
	// ReasonNoCoordinator: the host wants something and no coordinator answers.
	ReasonNoCoordinator Reason = "NoCoordinator"
	// ReasonForbidden: the API server refuses what the host, or the
	// coordinator for it, has to write.
	ReasonForbidden Reason = "Forbidden"
)

// Why a host refused or failed, and why a turn was backed out.
const (
	// ReasonUncordoned: a user uncordoned the node during the turn.
	ReasonUncordoned Reason = "Uncordoned"
	// ReasonWantGone: the want vanished or fell below what the state needs.
	ReasonWantGone Reason = "WantGone"
	// ReasonPlanChanged: the plan needs a drain now, and the turn has none.
	ReasonPlanChanged Reason = "PlanChanged"
	// ReasonBootChanged: the host booted during the turn, before it applied.
	ReasonBootChanged Reason = "BootChanged"
	// ReasonRebootRefused: logind would not reboot.
	ReasonRebootRefused Reason = "RebootRefused"
	// ReasonHookFailed: a hook unit of the host failed.
	ReasonHookFailed Reason = "HookFailed"
	// ReasonApplyFailed: a unit could not be reloaded or restarted.
	ReasonApplyFailed Reason = "ApplyFailed"
	// ReasonNotUpdated: the OS version after the boot is the one left.
	ReasonNotUpdated Reason = "NotUpdated"
	// ReasonStillWanted: the change is still there after its turn, or there again.
	ReasonStillWanted Reason = "StillWanted"
	// ReasonUnhealthy: the host did not become healthy after the boot.
	ReasonUnhealthy Reason = "Unhealthy"
	// ReasonUnmanaged: the node is not managed, by LabelManaged or by the host's
	// file. It stays in LabelHeld after the coordinator has released the node.
	ReasonUnmanaged Reason = "Unmanaged"
	// ReasonOverBudget: a new leader found more turns than the budget allows.
	ReasonOverBudget Reason = "OverBudget"
	// ReasonReplaced: the Node object is not the one that was granted.
	ReasonReplaced Reason = "Replaced"
	// ReasonCleared: an admin's retry ended a turn that had failed.
	ReasonCleared Reason = "Cleared"
)

// ReasonDoc is a reason with what it means and what a person can do.
type ReasonDoc struct {
	Reason Reason
	Means  string
	Do     string
}

// ReasonDocs are all reasons, in the order of the documentation. docs/reasons.md
// is rendered from it and `lockkeeper status` explains with it.
func ReasonDocs() []ReasonDoc { return reasonDocs }

// Doc returns what the reason means, or the zero ReasonDoc for one that is
// not known here.
func (r Reason) Doc() ReasonDoc {
	for _, d := range reasonDocs {
		if d.Reason == r {
			return d
		}
	}
	return ReasonDoc{}
}
