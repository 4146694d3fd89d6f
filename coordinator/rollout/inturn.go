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

// advance moves the node along the table on the event. It reports whether the table has an
// edge for it. The grant keeps result and reason for the end of the turn; the first ones
// that backed it out stay.
func (d *decision) advance(n *turn.Node, on turn.Event, result v1alpha1.Result, reason v1alpha1.Reason) bool {
	g := *n.Grant
	early := on == turn.Progressed && (n.State == v1alpha1.StateBeforeDrain || n.State == v1alpha1.StateDraining)
	if early && (g.Wants.AtLeast(n.Wants) || d.at(n).match.Reason == "") {
		// A want that changed before the drain was over belongs to the turn. But without a
		// valid policy each change counts as a reboot, and a turn that was granted for
		// less does not become one.
		g = fitting(g, func(g *v1alpha1.Grant) {
			g.Wants, g.Changes, g.Steps = n.Wants, n.Host.Changes, v1alpha1.StepsDigest(n.Host.Steps)
			setRequest(g, n)
		})
	}
	if on == turn.FailedHealthy && (reason == v1alpha1.ReasonStillWanted || reason == v1alpha1.ReasonApplyFailed) && n.HostReported() {
		g = fitting(g, func(g *v1alpha1.Grant) { g.Changes = stillWanted(n) })
	}
	// A turn without a drain has no mark, unless a user edited its grant. No node reaches
	// idle with a mark.
	plan := turn.PlanOf(&g)
	plan.Drains = plan.Drains || n.Mark
	next, ok := turn.Next(n.State, on, plan, WaitsIn(n, &g))
	if !ok {
		return false
	}
	if result != "" && g.Result == "" {
		g.Result, g.Reason = result, reason
	}
	m := Move{To: next, On: on, Reason: reason, Remove: hookKeys(n)}
	switch {
	case !next.InTurn():
		m.Last = d.last(n, &g)
		if v1alpha1.Has(g.Changes, v1alpha1.SourceRequest) && (m.Last.Result == v1alpha1.ResultDone || m.Last.Result == v1alpha1.ResultFailed) {
			m.Remove = append(m.Remove, carriedOut(n, &g)...)
		}
	default:
		g.Epoch, g.StageAt, g.PausedSince, g.PausedFor = d.Epoch, d.Now, nil, metav1.Duration{}
		if d.Epoch == "" {
			g.Epoch = n.Grant.Epoch
		}
		if next == v1alpha1.StateRebooting || next == v1alpha1.StateApplying {
			// The turn has to end the present boot. The host may have crashed during the drain
			// and be in another boot than when it was granted.
			g.BootID = n.BootID
			if n.Host != nil {
				g = fitting(g, func(g *v1alpha1.Grant) { g.OSVersion = n.Host.OSVersion })
			}
		}
		m.Grant = &g
	}
	d.move(n, m)
	return true
}

// stillWanted returns the changes for which a turn failed. Files and units are those of now,
// not of the grant: otherwise a unit that rewrites the file for which it is restarted would
// be granted turn after turn, each for other content. Of the other changes it returns those
// that the turn was for, because an update or request that came later was not tried.
func stillWanted(n *turn.Node) []v1alpha1.Change {
	return slices.DeleteFunc(slices.Clone(n.Host.Changes), func(c v1alpha1.Change) bool {
		return !c.Watched() && !slices.ContainsFunc(n.Grant.Changes, c.Same)
	})
}

// last returns the record of a turn that ends. A turn that only removed a cordon of ours
// says nothing about the host, so the record before it stays, except for the end, because
// the fleet settles after such a turn too. A host can cause such turns one after the other,
// by marking its own Node; so the fleet settles after no more of them than the node may have
// turns in a day.
func (d *decision) last(n *turn.Node, g *v1alpha1.Grant) *v1alpha1.Last {
	if g.Reason == v1alpha1.ReasonOwnCordonLeft && n.Last != nil {
		l := *n.Last
		if l.Turns = d.turns(n, g); len(d.recent(n.Last.Turns)) < d.policyOf(n).MaxTurnsPerDay {
			l.End = d.Now
		}
		return &l
	}
	l := &v1alpha1.Last{Turn: g.Turn, Result: cmp.Or(g.Result, v1alpha1.ResultDone), Reason: g.Reason, Changes: g.Changes, Request: g.Request, End: d.Now, Turns: d.turns(n, g)}
	if p := n.Last; p != nil && l.Result != v1alpha1.ResultDone && p.Result != v1alpha1.ResultDone && v1alpha1.SameChanges(p.Changes, l.Changes) {
		// A cancel or failure in between does not reset the attempts.
		l.Attempts = min(p.Attempts, 100)
	}
	if l.Result != v1alpha1.ResultBackedOut {
		return l
	}
	l.Attempts++
	p := d.policyOf(n)
	wait := p.Backoff
	for range l.Attempts - 1 {
		wait = min(2*wait, p.BackoffMax)
	}
	notBefore := d.Now.Add(wait)
	l.NotBefore = &notBefore
	if l.Reason == v1alpha1.ReasonHostSilent {
		l.HostDigest = v1alpha1.Digest(n.RawHost)
	}
	return l
}

// turns returns the times at which the node's turns of the last day began,
// including g's.
func (d *decision) turns(n *turn.Node, g *v1alpha1.Grant) []time.Time {
	turns := []time.Time{g.StartedAt}
	if n.Last != nil {
		turns = append(d.recent(n.Last.Turns), g.StartedAt)
	}
	return turns[max(0, len(turns)-v1alpha1.MaxTurnsPerDay):]
}
