package rollout

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// own reports whether this leader may promote the turn.
func (d *decision) own(n *turn.Node) bool {
	return d.Epoch == "" || n.Grant != nil && n.Grant.Epoch == d.Epoch
}

// inTurn decides about a node in a turn of this leader's own term. managed=false takes
// precedence over paused, then come detached, cancel and progress.
func (d *decision) inTurn(n *turn.Node) {
	committed := n.Committed()
	if n.Detached != nil && n.Detached.Force && !committed {
		d.letGo(n)
		return
	}
	if reason, text := pausedBy(n); reason != "" {
		d.hold(n, reason, text)
		d.freeze(n)
		return
	}
	if n.Grant.PausedSince != nil {
		d.unfreeze(n)
		return
	}
	_, missed := d.StopMissed[n.Name]
	if _, refused := d.Refused[n.Name]; missed && !refused {
		d.freeze(n) // for a stop that is over; the next decision ends it
		return
	}
	if reason := vanished(n); reason != "" && !committed {
		if _, ok := turn.Next(n.State, turn.Vanished, n.Plan(), nothingWaits); ok {
			d.advance(n, turn.Vanished, v1alpha1.ResultCancelled, reason)
			return
		}
	}
	if d.refusedOrFailed(n) {
		return
	}
	if !committed && d.closing(n) && d.advance(n, turn.Vanished, v1alpha1.ResultCancelled, v1alpha1.ReasonWindow) {
		return
	}
	if !committed && d.outruns(n) && d.advance(n, turn.Vanished, v1alpha1.ResultCancelled, v1alpha1.ReasonCanary) {
		return
	}
	missing, abort := d.missing(n)
	switch {
	case d.silent(n):
		d.takeBack(n)
	case missing == "":
		d.advance(n, turn.Progressed, "", "")
	case abort:
		d.advance(n, turn.Aborted, v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue)
	case d.overdue(n):
		d.hold(n, v1alpha1.ReasonOverdue, "waits for "+missing)
		d.force(n)
		d.clearFailed(n)
	default:
		d.at(n).verdict.Detail = "waits for " + missing
	}
}

// force tells the host that its drain is overdue and that it may now delete the pods that
// could not be evicted, if its policy says so.
func (d *decision) force(n *turn.Node) {
	if n.State != v1alpha1.StateDraining || n.Grant.Terms.DrainTimeout != v1alpha1.OnTimeoutForce || n.Grant.Force {
		return
	}
	g := *n.Grant
	g.Force = true
	d.move(n, Move{To: n.State, Grant: &g, Reason: v1alpha1.ReasonOverdue})
}

func nothingWaits(v1alpha1.State) bool { return false }

// takeBack ends the turn of a silent host. In before-uncordon it waits for the policy's
// hooks, which undo what hooks did before, but not for the host's own units. The turn does
// not go through uncordoning, because there is no cordon of ours.
func (d *decision) takeBack(n *turn.Node) {
	if n.State == v1alpha1.StateBeforeUncordon {
		if waits, _ := d.othersHooks(n); len(waits) > 0 {
			missing := "waits for " + strings.Join(waits, ", ")
			d.at(n).verdict.Detail = missing
			if d.overdue(n) {
				d.hold(n, v1alpha1.ReasonOverdue, missing)
			}
			return
		}
	}
	d.advance(n, turn.TakenBack, v1alpha1.ResultBackedOut, v1alpha1.ReasonHostSilent)
}

// refusedOrFailed decides about a host that refused or failed; it returns false for any
// other.
func (d *decision) refusedOrFailed(n *turn.Node) bool {
	reason := n.Ack.Reason
	switch {
	case n.HasReport(v1alpha1.ReportRefused):
		result := v1alpha1.ResultBackedOut
		if reason == v1alpha1.ReasonWantGone || reason == v1alpha1.ReasonUnmanaged || reason == v1alpha1.ReasonDetached || reason == v1alpha1.ReasonHeldBack {
			result = v1alpha1.ResultCancelled
		}
		if !d.advance(n, turn.Refused, result, reason) {
			d.hold(n, reason, "the host refused")
		}
		return true
	case n.HasReport(v1alpha1.ReportFailed):
		on, result := turn.Failed, v1alpha1.ResultBackedOut
		if n.State == v1alpha1.StateRebooting || n.State == v1alpha1.StateApplying {
			// The host did what the turn was for, and it did not work.
			result = v1alpha1.ResultFailed
			if reason != v1alpha1.ReasonUnhealthy && n.Ready {
				on = turn.FailedHealthy
			}
		}
		if !d.advance(n, on, result, reason) {
			d.hold(n, v1alpha1.ReasonFailed, failedText(n))
			d.clearFailed(n)
		}
		return true
	}
	return false
}

// failedText returns why the host failed and which hook unit or unit of its plan it was, if
// it was one.
func failedText(n *turn.Node) string {
	text := string(n.Ack.Reason)
	if n.HostReported() && n.Host.HookFailed+n.Host.ApplyFailed != "" {
		text += ": " + cmp.Or(n.Host.HookFailed, n.Host.ApplyFailed)
	}
	return text
}

// clearFailed ends a turn that is stuck because it failed or is overdue, if an admin's retry
// names it. It does not end the turn of a host that has not rebooted yet, because the reboot
// may still happen. It does end an overdue apply: each of its steps needs a fresh read,
// which shows the host that the turn has moved on.
func (d *decision) clearFailed(n *turn.Node) {
	failed := n.HasReport(v1alpha1.ReportFailed) || n.State == v1alpha1.StateApplying ||
		n.State == v1alpha1.StateRebooting && n.Rebooted()
	if failed && n.Retry == n.Turn {
		d.advance(n, turn.Cleared, v1alpha1.ResultFailed, v1alpha1.ReasonCleared)
	}
}

// failed reports whether the node counts against maxFailed: its last turn or the present one
// failed, or it is overdue in rebooting or applying.
func (d *decision) failed(n *turn.Node) bool {
	if !n.InTurn() {
		return n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Retry != n.Last.Turn
	}
	if n.Grant == nil || n.Retry == n.Turn && n.Turn != "" {
		return false
	}
	if n.Grant.Result == v1alpha1.ResultFailed {
		return true
	}
	if n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying {
		return false
	}
	return n.HasReport(v1alpha1.ReportFailed) || !n.HasReport(v1alpha1.ReportDone) && d.overdue(n)
}

// pausedBy returns why the turn is frozen, or "". managed=false takes precedence over an
// admin's pause, but not over the host's own veto: the host does not even uncordon its node
// while its file pauses it, so the turn would only become overdue.
func pausedBy(n *turn.Node) (v1alpha1.Reason, string) {
	if n.Paused != nil && (n.Managed == nil || *n.Managed) {
		return v1alpha1.ReasonPaused, n.Paused.Reason
	}
	if n.HostReported() && (n.Host.Veto == v1alpha1.ReasonHostPaused || n.Host.Veto == v1alpha1.ReasonObserve) {
		return n.Host.Veto, "the host's own veto"
	}
	return "", ""
}

// freeze records since when the turn's clock is stopped.
func (d *decision) freeze(n *turn.Node) {
	if n.Grant.PausedSince != nil {
		return
	}
	g := *n.Grant
	g.PausedSince = new(d.Now.Add(-d.unrecorded(n)))
	d.move(n, Move{To: n.State, Grant: &g, Reason: d.at(n).verdict.Held})
}

func (d *decision) unfreeze(n *turn.Node) {
	g := *n.Grant
	g.PausedFor = metav1.Duration{Duration: pausedFor(n.Grant, d.Now)}
	g.PausedSince = nil
	d.move(n, Move{To: n.State, Grant: &g})
}

func pausedFor(g *v1alpha1.Grant, now time.Time) time.Duration {
	p := g.PausedFor.Duration
	if g.PausedSince != nil {
		p += max(0, now.Sub(*g.PausedSince))
	}
	return max(0, p)
}

// vanished returns why the turn's want is gone, or "". A host's want counts only if it is
// from the boot that its kubelet reports; otherwise it is unknown.
func vanished(n *turn.Node) v1alpha1.Reason {
	if n.Managed != nil && !*n.Managed {
		return v1alpha1.ReasonUnmanaged
	}
	if n.Detached != nil {
		return v1alpha1.ReasonDetached
	}
	if !n.HostReported() {
		return ""
	}
	if !n.Host.Managed {
		return v1alpha1.ReasonUnmanaged
	}
	if n.Host.Veto == v1alpha1.ReasonHeldBack {
		// The plan would boot a version that a policy holds back. The host commits nothing
		// as long as that is so.
		return n.Host.Veto
	}
	row, _ := turn.Find(n.State)
	if row.Needs == v1alpha1.WantsNothing {
		return ""
	}
	if !n.Wants.AtLeast(row.Needs) || row.Needs == v1alpha1.WantsDrain && !n.Host.Drains {
		return v1alpha1.ReasonWantGone
	}
	if !n.Grant.Drains && !n.Grant.OnlyNode && n.Host.Drains {
		return v1alpha1.ReasonPlanChanged
	}
	return ""
}

// outruns reports whether the turn would boot an OS version that it was not granted for, and
// that the canaries of the node's policy have not run for long enough: the host has staged it
// since. A version that the turn was granted for is not judged again. A policy that is invalid
// cancels nothing. Another invalid policy that selects the node does not lift the wait: its
// author may be someone who must not decide about canaries.
func (d *decision) outruns(n *turn.Node) bool {
	e := d.at(n)
	if e.group == nil || len(e.group.p.Problems) > 0 || !n.HostReported() || slices.ContainsFunc(n.Host.Changes, func(c v1alpha1.Change) bool {
		// An engine that restarts forgets the version, and so does the host's next process.
		return c.Source == v1alpha1.SourceOSUpdate && (slices.ContainsFunc(n.Grant.Changes, c.Same) || c.Version == "" && v1alpha1.Has(n.Grant.Changes, c.Source))
	}) {
		return false
	}
	return d.canaryHold(n, e.group) != ""
}

// silent reports whether the host has not reported anything about this turn in time, and
// nothing is marked or committed.
func (d *decision) silent(n *turn.Node) bool {
	if n.Ack.Turn == n.Turn || n.Mark || n.Committed() {
		return false
	}
	limit := n.Grant.StartedAt.Add(n.Grant.Terms.Seen.Duration + d.stoppedFor(n))
	d.wake(limit)
	return !limit.After(d.Now)
}
