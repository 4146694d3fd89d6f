package explore

import (
	"fmt"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// property is one safety property. check compares a step (e) with the states before and after it and describes the
// violation, or returns "". Properties read the model's ghosts, which no core sees, and do not depend on how steps are
// generated.
type property struct {
	name  string
	check func(m *model, e *event, before, after *state) string
}

// properties lists all safety properties, by name.
var properties = []property{
	{"budget", budget},
	{"control plane", controlPlane},
	{"one reboot per turn", oneReboot},
	{"drained", drained},
	{"cancelled", cancelHeld},
	{"cordons", ownCordons},
	{"epoch", epochHeld},
	{"mark", markInTurn},
	{"table", alongTable},
	{"stop", stopSeen},
	{"slot", slotHeld},
	{"barred", commitBars},
	{"committed", commitKept},
	{"sources", sourcesRead},
	{"proof", provenByBoot},
	{"one write", oneWrite},
	{"present boot", presentBoot},
	{"clock", clockRuns},
	{"paused", pauseFreezes},
	{"need", backOutsNeeded},
	{"one term", oneTerm},
	{"released", releasedWhole},
	{"reads", readsBefore},
	{"carried out", carriedOut},
	{"undone", hooksUndone},
	{"request", requestKept},
	{"settle", settleKept},
	{"blocked", blockedNodes},
	{"block off", blockKept},
	{"canary", canariesFirst},
	{"blackout", darkHolds},
	{"under way", underWay},
	{"permitted", permitted},
}

// disturbed reports whether the node is marked, cordoned by lockkeeper, or about to reboot.
func disturbed(m *model, n *node) bool {
	o := &m.objects[n.api]
	return o.mark || o.committed() || (n.down || m.clientMay(n)) && !n.freed
}

func budget(m *model, _ *event, _, s *state) string {
	all, count := 0, [maxNodes + 1]int{} // by pool
	for i := range m.Nodes {
		if n := &s.n[i]; disturbed(m, n) {
			all++
			count[n.pool]++
		}
	}
	for _, n := range count {
		if n > m.Budget {
			return fmt.Sprintf("%d nodes are disturbed, %d allowed", n, m.Budget)
		}
	}
	if m.Total > 0 && all > m.Total {
		return fmt.Sprintf("%d nodes are disturbed, %d allowed in all", all, m.Total)
	}
	return ""
}

// controlPlane checks that no second control-plane node is disturbed, whatever the budget, and that the leader grants no
// turn to one while another is not Ready, unschedulable or in a turn.
func controlPlane(m *model, e *event, before, s *state) string {
	count := 0
	for i := range m.Nodes {
		if s.n[i].control && disturbed(m, &s.n[i]) {
			count++
		}
	}
	if count > 1 {
		return fmt.Sprintf("%d control-plane nodes are disturbed", count)
	}
	if e.action.kind != decide || m.Lag || !m.holds(before, e.term) {
		return ""
	}
	for i := range m.Nodes {
		if w := &s.n[i].terms[e.term]; !s.n[i].control || w.write != toSend || !w.grant {
			continue
		}
		for k := range m.Nodes {
			o := &m.objects[before.n[k].api]
			if k != i && before.n[k].control && o.exists() && (!o.ready || o.unsched || o.st().InTurn()) {
				return "a control-plane node is granted its turn while another is not available"
			}
		}
	}
	return ""
}

func oneReboot(_ *model, e *event, _, _ *state) string {
	if e.reboots && e.host.rebooted != 0 && e.host.rebooted == e.turnSeen {
		return "the host calls for a second reboot in one turn"
	}
	return ""
}

// commits reports whether e lands a commit of a host, and of which kind: the cordon, or the ack before a reboot or an
// apply.
func commits(e *event) (act, cordons bool) {
	if e.writer != hostWrites {
		return false, false
	}
	act = e.after.committed() && !e.before.committed()
	cordons = e.after.unsched && !e.before.unsched
	return act, cordons
}

func drained(m *model, e *event, _, s *state) string {
	if act, _ := commits(e); act && e.after.grant.drains {
		switch {
		case !e.after.unsched:
			return "the host commits on a schedulable Node"
		case e.host.le, e.host.pods && !e.host.latePod:
			return "the host commits while it has pods"
		}
	}
	// Between the commit and the reboot or the apply, at most 10 s after the reads, a host may not have seen a recent
	// change by an admin.
	if (e.reboots || e.permits) && e.grantSeen.drains {
		o := &m.objects[s.n[e.node].api]
		switch {
		case e.host.pods && !e.host.latePod && o.unsched && e.host.vcur:
			return "the host reboots while it has pods"
		case !o.unsched && e.host.vcur:
			return "the host reboots on a schedulable Node"
		}
	}
	return ""
}

func cancelHeld(_ *model, e *event, _, s *state) string {
	if act, _ := commits(e); act && s.n[e.node].cancelled == e.after.turn {
		return "the host commits after it published, or while it publishes, that it wants nothing"
	}
	if (e.reboots || e.permits) && e.host.cancelled != 0 && e.host.cancelled == e.turnSeen {
		return "the host reboots after it published without a commit that it wants nothing"
	}
	return ""
}

func ownCordons(m *model, e *event, before, s *state) string {
	if e.node < 0 {
		return ""
	}
	was, is := &before.n[e.node], &s.n[e.node]
	if e.writer == hostWrites || e.writer == lateHost {
		if was.admin && e.before.unsched && !e.after.unsched {
			return "the host undoes an admin's cordon"
		}
		if was.admin && !e.before.mark && e.after.mark {
			return "the host marks an admin's cordon"
		}
	}
	if is.admin && m.objects[is.api].mark {
		return "an admin's cordon is marked"
	}
	return ""
}

func epochHeld(_ *model, e *event, before, _ *state) string {
	if act, cordons := commits(e); act || cordons {
		held := before.lease.exists && before.lease.holder == e.before.grant.epoch
		if !held && !e.host.lookFair {
			return "the host commits to a turn whose epoch the Lease has not had since the reads began"
		}
	}
	return ""
}

func markInTurn(m *model, e *event, _, s *state) string {
	if e.node < 0 || e.writer == adminWrites {
		return ""
	}
	if e.writer != "" && e.after.mark && !e.after.st().InTurn() && (e.before.st().InTurn() || !e.before.mark) {
		return "the mark is on a Node in " + e.after.st().String()
	}
	return ""
}

func alongTable(_ *model, e *event, _, _ *state) string {
	from, to := e.before.st(), e.after.st()
	switch {
	case e.writer == "" || e.writer == adminWrites || from == to:
		return ""
	case e.writer == hostWrites || e.writer == lateHost:
		return "a host writes the state"
	case !turn.Reachable(from, to):
		return fmt.Sprintf("from %s to %s", from, to)
	}
	return ""
}

func stopSeen(_ *model, e *event, _, _ *state) string {
	if act, cordons := commits(e); act || cordons {
		switch {
		case !e.host.lx || e.host.ls:
			return "the host commits although it read the stop"
		case e.before.paused && e.before.managed == 0:
			return "the host commits while the Node is paused"
		}
	}
	return ""
}

// slotHeld checks that the coordinator does not free a turn's slot before the uncordon or while a reboot is pending.
func slotHeld(m *model, e *event, before, _ *state) string {
	if e.writer != leadWrites && e.writer != lateLeader || !e.before.st().InTurn() || e.after.st().InTurn() {
		return ""
	}
	n := &before.n[e.node]
	switch {
	case e.after.mark:
		return "the slot is freed while the mark is set"
	case (n.down || m.clientMay(n)) && !n.freed:
		return "the slot is freed while a reboot is pending"
	case e.before.committed():
		return "the slot is freed while the host is committed"
	}
	return ""
}

// commitBars checks that no coordinator moves a turn after the commit of a reboot or an apply. The exception is a retry
// of a node that came back from the reboot without a report.
func commitBars(_ *model, e *event, _, _ *state) string {
	if e.writer != leadWrites && e.writer != lateLeader || !e.before.committed() || e.after.state == e.before.state {
		return ""
	}
	if e.before.retry == e.before.turn && e.before.boot != e.before.grant.boot {
		return ""
	}
	return fmt.Sprintf("a committed turn is moved to %s", e.after.st())
}

// commitKept checks that the Node shows the commit for as long as a reboot or an apply is under way. Otherwise the turn
// can be backed out or released meanwhile.
func commitKept(m *model, e *event, _, s *state) string {
	if e.node < 0 {
		return ""
	}
	n := &s.n[e.node]
	o := &m.objects[n.api]
	switch {
	case n.freed, o.committed():
		return ""
	case n.down && n.rebooted != 0 && n.rebooted == o.turn:
		return "a reboot is under way, and the Node does not show the commit to it"
	case n.apply == 1 && o.st() == v1alpha1.StateApplying:
		return "an apply is under way, and the Node does not show the commit to it"
	}
	return ""
}

func sourcesRead(_ *model, e *event, _, _ *state) string {
	if e.writer == hostWrites && e.publishes && !e.host.src && e.after.wants != 0 {
		return "wants are published before every source was read in this boot"
	}
	return ""
}

func provenByBoot(_ *model, e *event, _, _ *state) string {
	if e.writer == hostWrites && e.after.st() == v1alpha1.StateRebooting && e.host.promoted && e.after.ack != e.before.ack &&
		(e.after.says(v1alpha1.ReportDone) || e.after.says(v1alpha1.ReportFailed)) {
		return "the host reports a finished reboot from the boot that should have ended"
	}
	return ""
}

func oneWrite(_ *model, e *event, _, _ *state) string {
	if e.writer == hostWrites && e.after.st() == v1alpha1.StateRebooting && e.after.says(v1alpha1.ReportDone) &&
		e.after.host.boot != e.after.ack.boot {
		return "done after the boot without the wants of that boot"
	}
	return ""
}

// presentBoot checks that a turn continues only by a report from the boot that the kubelet reports.
func presentBoot(_ *model, e *event, _, _ *state) string {
	from, to := e.before.st(), e.after.st()
	drained := from == v1alpha1.StateDraining && (to == v1alpha1.StateBeforeReboot || to == v1alpha1.StateRebooting || to == v1alpha1.StateApplying)
	over := from == v1alpha1.StateUncordoning && to == v1alpha1.StateIdle && results[e.after.last.result] == v1alpha1.ResultDone
	if (e.writer == leadWrites || e.writer == lateLeader) && (drained || over) &&
		(!e.before.says(v1alpha1.ReportDone) || e.before.ack.boot != e.before.boot) {
		return fmt.Sprintf("from %s to %s without a report from the current boot", from, to)
	}
	return ""
}

// clockRuns checks that a change of the leader does not restart the timeout of a stage, and that no time without a
// leader counts: a stop by deletion of the Lease ends the term.
func clockRuns(m *model, e *event, before, _ *state) string {
	b, a := &e.before.grant, &e.after.grant
	switch {
	case e.writer != leadWrites || b.turn != a.turn || b.turn == 0:
		return ""
	case e.before.state == e.after.state && a.stage < b.stage:
		return "a timeout restarts"
	case m.holds(before, e.term) && a.reason != b.reason && reasons[a.reason] == v1alpha1.ReasonOverdue && !before.n[e.node].aged:
		return "a turn is backed out as overdue, although no leader led while the time passed"
	}
	return ""
}

// pauseFreezes checks that no coordinator moves a turn that an admin paused, whichever term granted it.
func pauseFreezes(_ *model, e *event, _, _ *state) string {
	b := &e.before
	if e.writer != leadWrites && e.writer != lateLeader || !b.st().InTurn() || b.state == e.after.state || !b.paused {
		return ""
	}
	if b.managed != 0 || b.detached == 2 || b.grant.turn != 0 && b.grant.uid != b.uid {
		return "" // a stronger intent, or the turn of another Node object
	}
	return fmt.Sprintf("a paused turn is moved to %s", e.after.st())
}

// backOutsNeeded checks that a new leader backs out no more turns than exceed the budget. Nodes that will be
// available after they finish their turns do not count. Of control-plane nodes, all but one may be backed out.
func backOutsNeeded(m *model, e *event, before, s *state) string {
	if e.action.kind != decide || m.Lag || !m.holds(before, e.term) {
		return ""
	}
	gone, back, control := 0, 0, 0
	for i := range m.Nodes {
		o := &m.objects[before.n[i].api]
		finishes := (o.st() == v1alpha1.StateBeforeUncordon || o.st() == v1alpha1.StateUncordoning) && o.ready && (o.mark || !o.unsched)
		w := &s.n[i].terms[e.term]
		lost := w.write == unknown || w.write == unknownOf
		if o.exists() && !finishes && (o.st().InTurn() || o.mark || o.unsched || !o.ready || lost) {
			gone++
		}
		if before.n[i].control && (o.st().InTurn() || o.mark || lost) {
			control++
		}
		if w.write == toSend && reasons[m.objects[w.obj].grant.reason] == v1alpha1.ReasonOverBudget &&
			reasons[o.grant.reason] != v1alpha1.ReasonOverBudget {
			back++
		}
	}
	if m.Pools > 0 {
		return "" // which turns exceed a budget depends on those that exceed the others
	}
	if back > 0 && back > max(gone-m.Budget, control-1) {
		return fmt.Sprintf("%d turns backed out; %d nodes are unavailable and not about to finish; the budget is %d", back, gone, m.Budget)
	}
	return ""
}

func oneTerm(_ *model, e *event, before, s *state) string {
	if h := before.lease.holder; e.action.kind == freeLease && (h == 1 || h == 2) {
		return "a process frees the Lease of a term that lives"
	}
	if e.action.kind == watchLease && s.lease.holder != 0 && before.lease.holder == 0 {
		return "a term takes back a Lease that it had lost"
	}
	return ""
}

func (m *model) judge(e *event, before, after *state) (name, text string) {
	for _, p := range properties {
		if len(m.Only) > 0 && !contains(m.Only, p.name) {
			continue
		}
		if text := p.check(m, e, before, after); text != "" {
			return p.name, text
		}
	}
	return "", ""
}

// releasedWhole checks the write that releases a node after an admin took it out: the write leaves no key of a turn or
// of the host, and no host writes to the Node afterwards.
func releasedWhole(_ *model, e *event, _, _ *state) string {
	if e.writer == "" || e.writer == adminWrites || e.after.st() != v1alpha1.StateAbsent || e.after.detached == 0 && e.after.managed == 0 {
		return ""
	}
	b, a := &e.before, &e.after
	switch host := e.writer == hostWrites || e.writer == lateHost; {
	case host && b.wants == 0 && !b.mark:
		return "a host writes to a Node that was released"
	case host, b.st() == v1alpha1.StateAbsent, b.grant.turn != 0 && b.grant.uid != b.uid: // the turn of another Node object
		return ""
	case a.mark, a.wants != 0, a.ack != ackRecord{}, a.turn != 0, a.grant.turn != 0, a.last.turn != 0:
		return "the write that releases a Node leaves keys of lockkeeper on it"
	}
	return ""
}

// readsBefore checks that a host begins hook units, a step of its plan or the reboot only after the reads for a commit,
// and not if they showed a stop, a pause or another leader.
func readsBefore(m *model, e *event, _, _ *state) string {
	if e.starts == step.DoNothing {
		return ""
	}
	n, o := &e.host, &m.objects[e.host.seen()]
	switch {
	case n.look != commitLook:
		return fmt.Sprintf("the host begins its %s without the reads before it", e.starts)
	case !n.lx || n.ls:
		return fmt.Sprintf("the host begins its %s although it read the stop", e.starts)
	case o.paused && o.managed == 0:
		return fmt.Sprintf("the host begins its %s although its Node is paused", e.starts)
	case n.lh != o.grant.epoch:
		return fmt.Sprintf("the host begins its %s in a turn of another leader", e.starts)
	}
	return ""
}

// carriedOut checks that a host reports a plan as applied only after each of its steps. After a crash, the boot itself
// may have applied the rest.
func carriedOut(_ *model, e *event, _, _ *state) string {
	a := &e.after
	if e.writer == hostWrites && a.st() == v1alpha1.StateApplying && a.ack != e.before.ack && a.says(v1alpha1.ReportDone) &&
		a.grant.boot == e.host.boot && e.host.carried != a.turn {
		return "the host reports a plan as applied before it has done each step"
	}
	return ""
}

// hooksUndone checks that a turn does not end before the hook units of before-uncordon have undone what those of the
// stages before did, whatever crashed in between.
func hooksUndone(_ *model, e *event, before, _ *state) string {
	if (e.writer == leadWrites || e.writer == lateLeader) && e.before.st().InTurn() && e.after.st() == v1alpha1.StateIdle &&
		before.n[e.node].hooked == e.before.turn {
		return "the turn ends, and no hook unit has undone what hook units did"
	}
	return ""
}

// requestKept checks that the coordinator removes a request only if the host has booted since it was set, and that it
// grants no turn for a request that is gone.
func requestKept(_ *model, e *event, before, _ *state) string {
	b, a := &e.before, &e.after
	if e.writer != leadWrites && e.writer != lateLeader {
		return ""
	}
	switch {
	case b.request != 0 && a.request == 0 && before.n[e.node].asked&1 != 0, b.now != 0 && a.now == 0 && before.n[e.node].asked&2 != 0:
		return "the coordinator removes a request, and the host has not booted since it was set"
	case !b.st().InTurn() && a.st().InTurn() && b.host.request && b.host.change == 0 && !b.requested() && !b.mark:
		return "the coordinator grants a turn for a request that is gone"
	}
	return ""
}

// settleKept checks that a leader grants no turn within the settle time after a turn or after the creation of a Node. A
// request that does not wait is the exception.
func settleKept(m *model, e *event, before, s *state) string {
	if !m.Settle || e.action.kind != decide || m.Lag || !m.holds(before, e.term) {
		return ""
	}
	settling := false
	for i := range m.Nodes {
		o := &m.objects[before.n[i].api]
		settling = settling || o.young || o.last.settles
	}
	for i := range m.Nodes {
		w := &s.n[i].terms[e.term]
		if settling && w.write == toSend && w.grant && m.objects[before.n[i].api].now == 0 {
			return "a turn is granted within the settle time"
		}
	}
	return ""
}
