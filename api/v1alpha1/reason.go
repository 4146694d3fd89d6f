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
	// ReasonInvalidPolicy: a policy that selects the node is invalid, to the coordinator or to
	// the node's host.
	ReasonInvalidPolicy Reason = "InvalidPolicy"
	// ReasonWouldGrant: the policy only observes; the node's turn would be
	// now.
	ReasonWouldGrant Reason = "WouldGrant"
	// ReasonCanary: the nodes of another policy have not run the OS version for long
	// enough.
	ReasonCanary Reason = "Canary"
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
	// ReasonFleetLock: the reboot is up to the host's FleetLock client, which has not asked for
	// permission again, or has it and has not rebooted.
	ReasonFleetLock Reason = "FleetLock"
	// ReasonLoadBalancerDelay: load balancers get time to stop sending traffic to the node
	// before its first pod is evicted.
	ReasonLoadBalancerDelay Reason = "LoadBalancerDelay"
	// ReasonOwnCordonLeft: a node in no turn has a cordon of lockkeeper's.
	ReasonOwnCordonLeft Reason = "OwnCordonLeft"
)

// Vetoes of a host.
const (
	// ReasonHostPaused: paused is set in the host's file.
	ReasonHostPaused Reason = "HostPaused"
	// ReasonObserve: mode = "observe" in the host's file.
	ReasonObserve Reason = "Observe"
	// ReasonWindow: no window is open, or a blackout holds.
	ReasonWindow Reason = "Window"
	// ReasonMinUptime: the host booted less than min_uptime ago.
	ReasonMinUptime Reason = "MinUptime"
	// ReasonHeldBack: the reboot would boot an OS version that a policy holds
	// back.
	ReasonHeldBack Reason = "HeldBack"
	// ReasonOtherManager: another program works on the node, or another reboot manager is
	// active on the host.
	ReasonOtherManager Reason = "OtherManager"
	// ReasonDrainBlocked: the plan drains, and the host has pods that the policy's drain must
	// not evict (Block). In a turn: such a pod came before the host had cordoned its node.
	ReasonDrainBlocked Reason = "DrainBlocked"
)

// IsVeto reports whether the reason is one that a host may give for a veto.
func (r Reason) IsVeto() bool {
	switch r {
	case ReasonHostPaused, ReasonObserve, ReasonWindow, ReasonMinUptime, ReasonHeldBack, ReasonOtherManager, ReasonDrainBlocked, ReasonSourceUnreadable, ReasonInvalidRecord, ReasonInvalidPolicy:
		return true
	}
	return false
}

// Holds reports whether the coordinator writes the reason in the label held. It
// writes neither those that only a host knows nor those that end a turn, and it
// repairs an invalid grant at once.
func (r Reason) Holds() bool {
	switch r {
	case ReasonNone, ReasonInhibited, ReasonSessions, ReasonFleetLock, ReasonLoadBalancerDelay, ReasonNoCoordinator, ReasonInvalidGrant:
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
	case ReasonUnmanaged, ReasonDetached, ReasonHostSilent, ReasonOverdue, ReasonHeldBack, ReasonDrainBlocked, ReasonOwnCordonLeft, ReasonWindow, ReasonCanary, ReasonInvalidGrant:
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
	// ReasonForbidden: the API server refuses a request of the host, or of the
	// coordinator about it, or the host's credential.
	ReasonForbidden Reason = "Forbidden"
)

// Why a host refused or failed, and why a turn was backed out.
const (
	// ReasonUncordoned: a user uncordoned the node during the turn.
	ReasonUncordoned Reason = "Uncordoned"
	// ReasonWantGone: the want vanished or fell below what the state needs.
	ReasonWantGone Reason = "WantGone"
	// ReasonPlanChanged: the turn was not granted for the steps that the host published, the
	// plan needs a drain now and the turn has none, or the turn is past its drain and the host
	// has not committed to one.
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
	// ReasonCleared: an admin's retry ended a turn that had failed or was overdue.
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
		ReasonNotUpdated, ReasonStillWanted, ReasonUnhealthy, ReasonDrainBlocked:
		add(PlaceAck, true)
	}
	add(PlaceEnd, r.Ends())
	add(PlaceEvent, event)
	add(PlaceStatus, r != ReasonReplaced)
	return all
}

var reasonDocs = []ReasonDoc{
	{ReasonBudget, "as many nodes as the policy allows are unavailable, or the settle time after the last turn is not over", "nothing while the nodes that take the slots are in their turn; uncordon or repair the others, or take them out with lockkeeper.dev/managed=false"},
	{ReasonControlPlane, "another control-plane node is in a turn, not Ready or unschedulable", "bring that node back; control-plane nodes take their turns one at a time, whatever the policy says"},
	{ReasonHalted, "more nodes failed than the policy allows, so nothing is granted", "see why the nodes failed; `lockkeeper retry NODE` for each once it is repaired"},
	{ReasonBackoff, "the node's last turn was backed out; the node tries again later, after all others", "see the reason in lockkeeper.dev/last; `lockkeeper retry NODE` lets it try at once"},
	{ReasonTurnLimit, "the node has had as many turns within 24 hours as its policy's rollout.maxTurnsPerDay allows", "find out from its changes and the host's journal why it needs so many; then `lockkeeper retry NODE` for one more, or raise the limit in its policy"},
	{ReasonNotReady, "the node is not Ready, or its host has not seen its Node yet", "repair its kubelet; if the host cannot read its Node, its status line says why"},
	{ReasonVersionSkew, "the host's protocol is neither the coordinator's nor the one before", "upgrade lockkeeper on the host, or on the coordinators' hosts"},
	{ReasonHandover, "a new leader settles the turns that it found, or waits for the outcome of a write", "nothing if it lasts seconds; if it lasts longer, check the node that the detail and the Event Unsettled name"},
	{ReasonNoPolicy, "no policy selects the node", "label the node, or widen a policy's nodeSelector"},
	{ReasonInvalidPolicy, "a policy that selects the node is invalid", "see the policy's status, which names the field and what to write instead. If the policy is valid there, the host's status line names the field: upgrade lockkeeper on the host"},
	{ReasonWouldGrant, "the policy's mode is Observe; the node would be granted a turn now", "set the policy's mode to Act"},
	{ReasonCanary, "the policy waits until the nodes of another policy have run the OS version for a while (rollout.after)", "nothing while those nodes are on their way; otherwise repair the node that the detail names, or take it out with lockkeeper.dev/managed=false, or change rollout.after"},
	{ReasonGateClosed, "a gate of the policy is closed", "see the detail: which query returns something, or why Prometheus has not answered it"},
	{ReasonStopped, "the emergency stop is set, or the Lease is missing", "`lockkeeper resume --cluster`; if the Lease is missing, `lockkeeper init`"},
	{ReasonPaused, "an admin has paused the node or its policy", "`lockkeeper resume NODE`, or set paused: false in its policy"},
	{ReasonDetached, "an admin has detached the node: it belongs to another owner, and lockkeeper writes nothing to it", "nothing while it has another owner; `lockkeeper attach NODE` gives it back to lockkeeper"},
	{ReasonHostSilent, "the host does not answer: lockkeeper does not run there, or cannot reach the API server", "on the host: systemctl status lockkeeper"},
	{ReasonFailed, "the host did what its turn was for, and it did not work", "see the reason in lockkeeper.dev/grant or lockkeeper.dev/last, and the host's journal; then `lockkeeper retry NODE`"},
	{ReasonOverdue, "the stage takes longer than its timeout", "on the host, see what it waits for: systemctl status lockkeeper, and the journal; if the machine is gone for good, delete its Node"},
	{ReasonUnknownState, "the label lockkeeper.dev/state has an unknown value", "if a newer lockkeeper coordinates, or has coordinated, the node may be in the middle of its turn: upgrade the lockkeeper that reports this. Otherwise remove the label; lockkeeper sets it again"},
	{ReasonInvalidGrant, "the annotation lockkeeper.dev/grant cannot be read or is another turn's", "nothing; the coordinator repairs it. If it happens again, find out who edits it"},
	{ReasonInvalidRecord, "the annotation lockkeeper.dev/host cannot be read or is larger than 16 KiB, so the node is granted nothing", "see the detail and the host's journal; if lockkeeper did not write it, treat the host as compromised"},
	{ReasonOwnCordonLeft, "a node that is in no turn has a cordon of lockkeeper's", "nothing; the coordinator uncordons the node"},
	{ReasonSourceUnreadable, "a source of changes has not been read in this boot, or it or the policies cannot be read now", "see the host's journal, which names the source; or the coordinator's, if it cannot read the policies"},
	{ReasonInhibited, "a process on the host holds a block inhibitor against a shutdown, or logind does not say whether one does", "on the host: systemd-inhibit --list; if logind does not answer: systemctl status systemd-logind"},
	{ReasonSessions, "a user is logged in on the host and has been warned, or logind does not say whether one is", "nothing; the delay is bounded by session_delay. If logind does not answer, on the host: systemctl status systemd-logind"},
	{ReasonFleetLock, "the FleetLock client on the host (Zincati) is to reboot it: it has not asked for permission again, or has it and has not rebooted yet", "nothing for some minutes; then see the client's journal (journalctl -u zincati). If it has permission and does not reboot, reboot the host by hand"},
	{ReasonLoadBalancerDelay, "the node is cordoned and excluded from load balancers, and they get time to stop sending traffic to it before its first pod is evicted", "nothing; the delay is bounded by drain.loadBalancerDelay of the policy"},
	{ReasonHostPaused, "paused is set in the host's file", "clear paused in /etc/lockkeeper/lockkeeper.toml and reload"},
	{ReasonObserve, "the host only observes: mode = \"observe\" in its file", "set mode = \"act\" and reload"},
	{ReasonWindow, "no window is open, or a blackout of the policy holds", "nothing; see the windows in the host's file, or the windows and blackouts of the policy"},
	{ReasonMinUptime, "the host booted less than min_uptime ago", "nothing; it takes minutes"},
	{ReasonHeldBack, "a reboot would boot the OS version that is staged, which a policy holds back (holdBack), so the host commits nothing; changes that need no reboot continue", "withdraw the version on the host, or change holdBack in the policy's rule for OSUpdate"},
	{ReasonOtherManager, "another program works on the node, as a mark on the Node says (docs/other-owners.md), so it gets no turn; or another reboot manager is active on the host, so the host commits nothing: kured, FLUO's agent, locksmithd, Zincati, rebootmgr, unattended-upgrades with Automatic-Reboot, or the owner of /run/update-engine/coordinator.conf", "wait until the named owner is done, and remove a mark that it has left behind; to switch a reboot manager off, use the command that systemctl status lockkeeper names on the host"},
	{ReasonDrainBlocked, "the host has pods that its policy's drain must not evict (drain.block, drain.unmanaged or drain.emptyDir), so the node gets no turn; or such a pod came after the grant, and the turn was backed out before the cordon", "nothing: the node gets its turn once the pods that the host names are gone; or end them, or change drain in its policy"},
	{ReasonNoCoordinator, "the host wants something and no coordinator answers", "check that a host has the coordinator's kubeconfig and holds the Lease"},
	{ReasonForbidden, "the API server refuses a request of the host, or of the coordinator about it, or the host's credential", "see the host's and the coordinator's journal for the API server's message: apply the manifests, fix the admission webhook that it names, or renew the kubelet's credential"},
	{ReasonUncordoned, "a user uncordoned the node during the turn, so the turn was backed out", "pause or detach a node that is to stay as it is"},
	{ReasonWantGone, "the want vanished, or fell below what the state needs", "nothing; the node returns to service"},
	{ReasonPlanChanged, "the grant is not for the steps that the host has published, the plan needs a drain now and the turn has none, or the turn is past a drain to which the host has not committed", "nothing; the next turn is granted for the present plan. If it happens again, find out who else writes the annotation `grant`"},
	{ReasonBootChanged, "the host booted during the turn, before it applied its plan", "nothing; the next turn applies what is still pending"},
	{ReasonRebootRefused, "logind would not reboot the host", "see the host's journal for logind's message"},
	{ReasonHookFailed, "a hook unit of the host failed", "see the unit in the host's journal"},
	{ReasonApplyFailed, "a unit could not be reloaded or restarted", "see the unit in the host's journal"},
	{ReasonNotUpdated, "the OS version after the boot is the old one: a rollback, or a crash", "find out why the new version did not boot; then `lockkeeper retry NODE`"},
	{ReasonStillWanted, "the change is still there after the boot, or the file has changed again while it was applied", "find out why: a unit of the plan may write the file; then `lockkeeper retry NODE`"},
	{ReasonUnhealthy, "the host is not healthy yet after its boot, or was not healthy within [health] timeout, so the turn failed", "nothing while the host starts up; if it lasts, see boot-complete.target, the kubelet and the units named in [health]. If the host recovers, the turn continues"},
	{ReasonUnmanaged, "the node is not managed: an admin set lockkeeper.dev/managed=false, managed_by_default is false in its host's file, or its host leaves (`lockkeeper leave --this-host`)", "nothing if that is intended; to manage it again: `lockkeeper manage NODE`"},
	{ReasonOverBudget, "a new leader found more turns under way than the budget allows and backed this one out", "nothing; the node gets another turn"},
	{ReasonReplaced, "the Node object was deleted and created again during the turn", "nothing; the node starts over"},
	{ReasonCleared, "an admin's retry ended a turn that had failed or was overdue", "nothing"},
}
