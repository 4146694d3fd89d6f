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

// missing returns what the state waits for, "" if the turn can continue, and whether it is overdue
// and ends now.
func (d *decision) missing(n *turn.Node) (missing string, abort bool) {
	acked := n.Ack.Turn == n.Turn
	switch n.State {
	case v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon:
		return d.missingHooks(n, acked)
	case v1alpha1.StateDraining:
		if !n.HasReport(v1alpha1.ReportDone) {
			return "the host to drain", d.drainEnds(n)
		}
		if !n.HostReported() {
			return "the host to report what it wants in this boot", false
		}
	case v1alpha1.StateRebooting:
		switch {
		case !n.Rebooted() && n.Host != nil && n.Host.Permits == n.Turn:
			return "the FleetLock client, which may have permission, to reboot the host", d.notBegun(n)
		case !n.Rebooted():
			return "the host to reboot", d.notBegun(n)
		case !n.HasReport(v1alpha1.ReportDone):
			return "the host to report that it is healthy", false
		case !n.Ready:
			return "the node to be Ready", false
		}
	case v1alpha1.StateApplying:
		if !n.HasReport(v1alpha1.ReportDone) {
			return "the host to apply its plan", d.notBegun(n)
		}
	case v1alpha1.StateUncordoning:
		if !n.HasReport(v1alpha1.ReportDone) || n.Mark {
			// No node reaches idle with the mark. A slot that is freed before the uncordon
			// would be one node too many.
			return "the host to uncordon its node", false
		}
	}
	return "", false
}

// drainEnds reports whether the drain is overdue, and the turn ends: onTimeout is Abort, or Force and
// the host has not committed to the drain. Then there is nothing to force: a veto, such as a closed
// window of the host or another reboot manager, keeps the host from its cordon.
func (d *decision) drainEnds(n *turn.Node) bool {
	switch n.Grant.Terms.DrainTimeout {
	case v1alpha1.OnTimeoutAbort:
		return d.overdue(n)
	case v1alpha1.OnTimeoutForce:
		return !n.Mark && !n.HasReport(v1alpha1.ReportCommitted) && d.overdue(n)
	}
	return false
}

// notBegun reports whether the stage is overdue, and the host has not committed to a reboot or to
// its plan: volumes stay attached, pods that came after the drain do not leave, or something on the
// host inhibits shutdowns. Then the turn ends, like a drain that takes too long, unless the drain's
// onTimeout is Wait.
func (d *decision) notBegun(n *turn.Node) bool {
	return !n.Committed() && n.Grant.Terms.DrainTimeout != v1alpha1.OnTimeoutWait && d.overdue(n)
}

// othersHooks returns the policy's hooks that have not confirmed, and whether one of them is
// overdue with onTimeout Abort. before-uncordon has no Abort: an aborted turn goes there.
func (d *decision) othersHooks(n *turn.Node) (waits []string, abort bool) {
	for _, h := range n.Grant.Terms.Hooks(n.State) {
		if n.Hooks[h.Name] == n.Turn {
			continue
		}
		over := d.past(n, h.Timeout.Duration)
		if over && h.OnTimeout == v1alpha1.OnTimeoutContinue {
			continue
		}
		waits = append(waits, "hook "+h.Name)
		abort = abort || over && h.OnTimeout == v1alpha1.OnTimeoutAbort && n.State != v1alpha1.StateBeforeUncordon
	}
	return waits, abort
}

func (d *decision) missingHooks(n *turn.Node, acked bool) (string, bool) {
	g := n.Grant
	waits, abort := d.othersHooks(n)
	if n.Host != nil && slices.Contains(n.Host.HookStages, n.State) && !n.HasReport(v1alpha1.ReportDone) {
		waits = append(waits, "the host's hook units")
		abort = abort || n.State != v1alpha1.StateBeforeUncordon && d.past(n, g.Terms.HostHooks.Duration)
	}
	if v := volumes(n); v != "" && n.State == v1alpha1.StateBeforeReboot && detaches(g) {
		waits = append(waits, v)
		abort = abort || d.notBegun(n)
	}
	if n.State != v1alpha1.StateBeforeUncordon {
		if !acked {
			waits = append(waits, "the host to acknowledge its turn")
		}
		if acked && !n.HostReported() {
			// To advance, a turn needs a report from the present boot.
			waits = append(waits, "the host to report what it wants in this boot")
		}
	}
	return strings.Join(waits, ", "), abort
}

// past reports whether the stage has lasted longer than limit, not counting
// the time for which its clock was stopped. It counts from the grant, so it
// continues across a change of leaders.
func (d *decision) past(n *turn.Node, limit time.Duration) bool {
	end := n.Grant.StageAt.Add(limit + d.stoppedFor(n))
	if n.Grant.PausedSince == nil && d.own(n) && !d.Stopped { // otherwise the end moves on with the time
		d.wake(end)
	}
	return !end.After(d.Now)
}

// stoppedFor returns how long the clock of the node's stage has been stopped: by
// a pause or a stop, or for lack of a leader.
func (d *decision) stoppedFor(n *turn.Node) time.Duration {
	return pausedFor(n.Grant, d.Now) + d.unrecorded(n)
}

// overdue reports whether the state as a whole takes longer than it may.
func (d *decision) overdue(n *turn.Node) bool {
	t := &n.Grant.Terms
	if !n.State.HookStage() {
		return d.past(n, t.Limit(n.State))
	}
	var longest time.Duration
	for _, h := range t.Hooks(n.State) {
		longest = max(longest, h.Timeout.Duration)
	}
	return d.past(n, cmp.Or(longest, t.HostHooks.Duration))
}

// volumesShown is how many volumes a text names. It counts the others.
const volumesShown = 3

// volumes returns a text that names the volumes attached to the node, or "".
func volumes(n *turn.Node) string {
	if len(n.Volumes) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d volumes to detach: ", len(n.Volumes))
	if len(n.Volumes) == 1 {
		text = "1 volume to detach: "
	}
	shown := n.Volumes[:min(len(n.Volumes), volumesShown)]
	text += strings.Join(shown, ", ")
	if more := len(n.Volumes) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
