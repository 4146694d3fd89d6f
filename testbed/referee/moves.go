package referee

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// moved judges a leader's write: one that changed the state, the turn or the grant's epoch.
func (e *engine) moved(n *node, before, after *turn.Node) {
	if before.State != after.State {
		e.alongTheTable(n, before, after)
		if since, ok := e.stoppedSince(); ok && e.now.elapsed(since) > 2*rereadEvery+e.lag {
			// A leader reads the stop at the latest when it next renews the Lease.
			e.breaks(Stop, n.name, "%s -> %s, %v after the stop", before.State, after.State, e.now.elapsed(since).Round(time.Second))
		}
	}
	switch {
	case !before.InTurn() && after.InTurn():
		e.granted(n, before, after)
	case before.InTurn() && after.InTurn():
		e.within(n, before, after)
	case before.InTurn():
		e.ended(n, before, after)
	}
}

// alongTheTable checks that an event of the table leads from the one state to the other under the turn's plan and hook stages. It uses the
// new grant, because a leader writes a want that changed during the drain together with the promotion. If the turn ends, it uses the old
// grant. If the state before is unknown, an admin wrote it, and alongTheTable does not judge the write after it.
func (e *engine) alongTheTable(n *node, before, after *turn.Node) {
	if !before.State.Known() {
		return
	}
	g := after.Grant
	if g == nil {
		g = before.Grant
	}
	var plan turn.Plan
	if g != nil {
		plan = turn.Plan{Drains: g.Drains, Reboots: g.Wants == v1alpha1.WantsReboot}
	}
	detaches := g != nil && g.Terms.WaitForVolumeDetach && g.Drains
	waits := func(stage v1alpha1.State) bool {
		return g != nil && len(g.Terms.Hooks(stage)) > 0 || before.Host != nil && slices.Contains(before.Host.HookStages, stage) ||
			detaches && stage == v1alpha1.StateBeforeReboot
	}
	ways := map[turn.Event]bool{}
	for _, on := range turn.Events() {
		if to, ok := turn.Next(before.State, on, plan, waits); ok && to == after.State {
			ways[on] = true
		}
	}
	switch {
	case !turn.Reachable(before.State, after.State):
		e.breaks(Table, n.name, "%s -> %s: the table has no such way", before.State, after.State)
	case len(ways) == 0:
		e.breaks(Table, n.name, "%s -> %s: not the way of this turn (drains %t, reboots %t)", before.State, after.State, plan.Drains, plan.Reboots)
	case detaches && before.State == v1alpha1.StateBeforeReboot && after.State == v1alpha1.StateRebooting && len(before.Volumes) > 0:
		e.breaks(Table, n.name, "%s -> %s: with %v attached", before.State, after.State, before.Volumes)
	case before.InTurn() && after.State == v1alpha1.StateAbsent && !replaced(before) &&
		!(before.Detached != nil && before.Detached.Force && !before.Committed()):
		e.breaks(Table, n.name, "%s -> absent: neither detached with force nor replaced", before.State)
	}
}

func replaced(n *turn.Node) bool { return n.Grant != nil && n.Grant.NodeUID != n.UID }

// granted judges a transition from no turn into a turn. The leader decided on the version before.
func (e *engine) granted(n *node, before, after *turn.Node) {
	wrong := func(format string, args ...any) { e.breaks(Grant, n.name, format, args...) }
	g := after.Grant
	n.turn = &turnMemory{id: after.Turn, began: e.now, committed: after.Mark, ourCordon: after.OwnCordon()}
	if g == nil || !after.Ours() {
		wrong("%s -> %s without a grant of this turn and this Node (turn %q)", before.State, after.State, after.Turn)
		return
	}
	if at, used := e.turns[after.Turn]; used {
		wrong("turn %s is not new: %s had it", after.Turn, at)
	}
	e.turns[after.Turn] = n.name
	if !e.held[g.Epoch] {
		e.breaks(Epoch, n.name, "granted by %s, which the Lease never named", g.Epoch)
	}
	if after.State == v1alpha1.StateBeforeUncordon || after.State == v1alpha1.StateUncordoning {
		if !before.Mark {
			wrong("%s -> %s without a mark to give back", before.State, after.State)
		}
		return // the turn disturbs no node
	}
	switch {
	case e.now.elapsed(moment{after: e.rewound, by: e.rewound}) <= lateGrant+e.lag:
		// A store that was set back gives its versions out again: the leader may have decided on another one of the same number.
	case before.Managed != nil && !*before.Managed, before.Host != nil && !before.Host.Managed:
		wrong("granted although it is not managed")
	case before.Paused != nil, before.Detached != nil:
		wrong("granted although it is paused or detached")
	case !before.HostReported():
		wrong("granted although its host has not spoken in this boot")
	case !before.Wants.Something(), g.Wants != before.Wants:
		wrong("granted for %q, its host wants %q", g.Wants, before.Wants)
	case !before.Ready:
		wrong("granted although it is not Ready")
	case g.Request != nil && g.Request.Now && (before.Request == nil || !before.Request.Now):
		wrong("granted as a request that does not wait, which no admin has made")
	case before.Owner != "":
		wrong("granted although another owner has marked it: %s", before.Owner)
	case before.Host.Veto != "":
		wrong("granted although its host says %s", before.Host.Veto)
	case g.BlockOff != before.Host.BlockOff:
		wrong("granted with Block off: %t, its host says %t", g.BlockOff, before.Host.BlockOff)
	}
	if g.Epoch != e.lease().holder {
		// A leader sent this write and lost its term before the write landed. The write may land, but must have no effect.
		n.turn.late = true
		e.report.LateGrants++
		e.logLine(n.name, "a late grant of the term %s; %s", g.Epoch, e.leaseText())
	}
	e.countGrants(n, g.Epoch)
}

// countGrants counts the turns of a leader's own term. A leader knows these turns even if its watch is behind. A late grant that the leader has
// backed out does not count: it may have landed after the leader sent its own.
func (e *engine) countGrants(n *node, epoch string) {
	own := []string{n.name}
	oldest := e.now
	for _, o := range e.nodes {
		if o == n || o.cur == nil || !o.cur.InTurn() || epochOf(o.cur) != epoch || o.turn != nil && o.turn.backedOut {
			continue
		}
		own = append(own, o.name)
		if o.turn != nil && o.turn.began.rev < oldest.rev {
			oldest = o.turn.began
		}
	}
	if e.now.elapsed(moment{after: e.rewound, by: e.rewound}) <= e.lag {
		return // what the leader had sent before the store was set back, and what it does until an answer shows that
	}
	slices.Sort(own)
	for _, p := range e.policies {
		if its := e.under(p, own); p.has(n.cur) && len(its) > p.Budget {
			e.breaks(Overgrant, n.name, "the term %s has %d nodes of policy %s in a turn (%v), its budget is %d", epoch, len(its), p.Policy, its, p.Budget)
		}
	}
	if most := e.allowed(oldest); len(own) > most {
		e.breaks(Overgrant, n.name, "the term %s has %d nodes in a turn (%v), the budget is %d", epoch, len(own), own, most)
	}
}

// within judges a leader's write to a node in a turn.
func (e *engine) within(n *node, before, after *turn.Node) {
	if n.turn == nil {
		n.turn = &turnMemory{began: e.now}
	}
	givesBack := after.State == v1alpha1.StateBeforeUncordon || after.State == v1alpha1.StateUncordoning
	if before.Ours() {
		switch {
		case !after.Ours() || after.Turn != before.Turn:
			e.breaks(Grant, n.name, "in the turn %s, its turn became %q", before.Turn, after.Turn)
		case before.State == after.State:
		case !givesBack && before.Grant.Epoch != after.Grant.Epoch &&
			// A store that was set back gives its versions out again: the leader may have read the lost one of this number, in its own term.
			!(n.lost != nil && n.lostRev == n.rev() && epochOf(n.lost) == after.Grant.Epoch):
			e.breaks(Epoch, n.name, "%s -> %s: promoted by %s, the turn is of %s", before.State, after.State, after.Grant.Epoch, before.Grant.Epoch)
		default:
			e.promoted(n, before, after)
		}
	}
	if g := after.Grant; g != nil && epochOf(before) != g.Epoch && !e.held[g.Epoch] {
		e.breaks(Epoch, n.name, "taken over by %s, which the Lease never named", g.Epoch)
	}
	if n.turn.id = after.Turn; after.Turn != "" {
		e.turns[after.Turn] = n.name
	}
	if n.turn.late && (givesBack || epochOf(after) == e.lease().holder) {
		n.turn.late, n.turn.backedOut = false, givesBack
	}
}

// promoted judges the end of states that only the host's report ends. The report must be on the version before, and from the boot that the kubelet
// reports; a reboot has ended well only if the same version says that the node is Ready. No leader may back out a turn that has committed to an
// apply or a reboot.
func (e *engine) promoted(n *node, before, after *turn.Node) {
	reported := before.HasReport
	switch before.State {
	case v1alpha1.StateDraining:
		if after.State != v1alpha1.StateBeforeUncordon && after.State != v1alpha1.StateUncordoning && !reported(v1alpha1.ReportDone) {
			e.breaks(Promotion, n.name, "draining -> %s, and the host did not report done (its ack is %q)", after.State, before.Ack)
		}
	case v1alpha1.StateRebooting, v1alpha1.StateApplying:
		// An admin's retry ends a turn that is overdue, but not one whose reboot may still come.
		cleared := before.Grant != nil && before.Retry == before.Turn && (before.State == v1alpha1.StateApplying || before.Rebooted()) && !e.early(n, before, after)
		if before.Committed() && !reported(v1alpha1.ReportDone) && !reported(v1alpha1.ReportFailed) && !reported(v1alpha1.ReportRefused) && !cleared {
			e.breaks(Promotion, n.name, "%s -> %s after the commit, and the host reported neither done, failed nor refused in this boot (its ack is %q)",
				before.State, after.State, before.Ack)
		}
		// A store that was set back gives its versions out again: the leader may have read the lost one of this number.
		lost := n.lost != nil && n.lostRev == n.rev() && n.lost.Ready
		if before.State == v1alpha1.StateRebooting && reported(v1alpha1.ReportDone) && !before.Ready && !cleared && !lost {
			e.breaks(Promotion, n.name, "%s -> %s on a report of done, and the node was not Ready", before.State, after.State)
		}
	}
}

// ended judges the end of a turn and counts it.
func (e *engine) ended(n *node, before, after *turn.Node) {
	result := GaveBack
	switch l := after.Last; {
	case after.State == v1alpha1.StateAbsent:
		result = LetGo
	case l != nil && l.Turn == before.Turn:
		result = l.Result
	}
	e.report.Turns[result]++
	if result == v1alpha1.ResultDone {
		e.updated[n.name] = true
	}
	if after.State != v1alpha1.StateAbsent {
		if before.State == v1alpha1.StateUncordoning && before.Ours() && !before.HasReport(v1alpha1.ReportDone) &&
			(before.Ack.Turn == before.Turn || before.Mark) {
			// A leader may end the turn of a host that never reported. In all other cases the host itself must report done.
			e.breaks(Promotion, n.name, "uncordoning -> %s, and the host did not report done (its ack is %q)", after.State, before.Ack)
		}
		if n.turn != nil && n.turn.ourCordon && after.Unschedulable {
			e.breaks(LeftCordoned, n.name, "turn %s ended and left its cordon", before.Turn)
		}
	}
	e.logLine(n.name, "turn %s ended: %s", before.Turn, result)
	n.turn = nil
}

// stripped checks that no write removes lockkeeper's keys or sets the state idle while the mark is set. A Node that was replaced is absent first, and
// the next turn removes its mark.
func (e *engine) stripped(n *node, before, after *turn.Node) {
	if !after.Mark {
		return
	}
	gone := before.State != v1alpha1.StateAbsent && after.State == v1alpha1.StateAbsent && !replaced(before)
	switch {
	case gone, before.Wants != "" && after.Wants == "":
		e.breaks(Mark, n.name, "our labels were removed while the mark was set")
	case before.State != after.State && !after.InTurn() && after.State != v1alpha1.StateAbsent:
		e.breaks(Mark, n.name, "%s -> %s while the mark was set", before.State, after.State)
	}
}
