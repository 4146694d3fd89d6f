package step

import (
	"cmp"
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// check reports whether the host may disrupt the node now, from what was read within
// the last 10 s (docs/safety.md, "Commit"). If not, the decision says what to read or
// what to wait for. Every disruption goes through it.
//
// The order of the reads makes it safe. The disruption follows a patch that carries the
// resourceVersion of the Node that was read here, so any change of the Node after the
// read makes the commit fail with a conflict. The Lease is read after the Node, so check
// sees a leader that lost its term before the Node was read. The remaining case is a
// leader that is replaced between the two reads: its successor lists the Nodes after it
// has won, so it counts this turn.
func (o *Observation) check(act Effect) (Decision, bool) {
	n := &o.Node
	if o.Fresh == nil || !o.Fresh.Commit {
		return Decision{Read: ReadCommit, Do: o.effectToKeep()}, false
	}
	wait := func(r v1alpha1.Reason, detail string) (Decision, bool) {
		return Decision{Waits: r, Detail: detail, Again: true}, false
	}
	if r, detail := o.leaseHolds(); r != "" {
		return wait(r, detail)
	}
	if n.Grant.Epoch != o.Fresh.Lease.Holder {
		// The leader that promoted this node leads no more. Its successor takes the
		// turn over or backs it out.
		return wait(v1alpha1.ReasonHandover, "the turn is another leader's")
	}
	if n.BootID != o.Self.BootID {
		return wait(v1alpha1.ReasonNotReady, "the kubelet to report this boot")
	}
	if n.State == v1alpha1.StateBeforeUncordon {
		// The state only gives the node back. A closed window, or a source that cannot
		// be read, must not keep a node out of the cluster for days.
		return Decision{}, true
	}
	if n.Grant.OnlyNode && o.drains() && o.Term != n.Grant.Epoch {
		// Only a leader can know that no other Node exists, and its credential may be
		// stolen. In a cluster of one node, this host's own process is the leader.
		return o.refuse(v1alpha1.ReasonPlanChanged), false
	}
	// A plan that was granted is carried out, however long the plan after it is.
	if o.Veto != "" && (o.Veto != v1alpha1.ReasonInvalidRecord || o.fixed(v1alpha1.Ack{}) == nil) {
		return wait(o.Veto, cmp.Or(o.VetoDetail, "this host's own veto"))
	}
	if !o.Sources.Complete {
		return wait(v1alpha1.ReasonSourceUnreadable, o.Sources.Missing)
	}
	if o.Sources.Unconfirmed != "" {
		// The update engine restarts, or its unit was stopped. It may report IDLE when
		// it is back. Until then nothing confirms at this commit that the want is still
		// there.
		return wait(v1alpha1.ReasonSourceUnreadable, o.Sources.Unconfirmed)
	}
	if n.Grant.Drains && o.Fresh.Blocked != "" && (act == DoDrain || n.State == v1alpha1.StateBeforeDrain) {
		// They came since the host last published its veto. A cordon would only take the node's
		// capacity until they are gone. After the cordon, the drain waits for them.
		return o.refuse(v1alpha1.ReasonDrainBlocked), false
	}
	switch {
	case !n.Grant.Drains:
	case act != DoDrain && n.State != v1alpha1.StateBeforeDrain && !o.drainCommitted():
		// No coordinator moves a turn past its drain before that is done. With its stolen
		// credential, an attacker can, and the node may have another user's cordon. The host
		// evicts pods only after a commit, which it checks for pods that block the drain.
		return o.refuse(v1alpha1.ReasonPlanChanged), false
	case (act == DoReboot || act == DoApply) && o.Fresh.Evictable > 0:
		// They tolerate the cordon, or were bound before it.
		return Decision{Do: DoDrain, Detail: fmt.Sprintf("%d pods that came after the drain", o.Fresh.Evictable), Again: true}, false
	}
	return Decision{}, true
}

// drainCommitted reports whether the host has committed to a drain in this turn. After the
// drain, a commit to a later stage replaces the report about the drain. It proves the drain as
// well, because check allows it only after the drain. The report seen proves nothing: the host
// makes it in the first stage that it sees of a turn, whichever that is.
func (o *Observation) drainCommitted() bool {
	n := &o.Node
	switch {
	case n.Mark && n.Cordon.Turn == n.Turn:
		return true
	case n.Ack.Turn != n.Turn:
		return false
	case n.Ack.Report == v1alpha1.ReportCommitted:
		return true
	}
	switch n.Ack.State {
	case v1alpha1.StateDraining:
		return n.Ack.Report == v1alpha1.ReportDone
	case v1alpha1.StateBeforeReboot: // its hook units ran only after a check
		return n.Ack.Report == v1alpha1.ReportDone || n.Ack.Report == v1alpha1.ReportFailed
	}
	return false
}

// leaseHolds returns why the Lease holds every host, or "".
func (o *Observation) leaseHolds() (v1alpha1.Reason, string) {
	switch l := o.Fresh.Lease; {
	case !l.Exists:
		return v1alpha1.ReasonStopped, "there is no Lease"
	case l.Stopped:
		return v1alpha1.ReasonStopped, l.StopText
	}
	return "", ""
}

// effectToKeep returns the effect that continues while the host reads. A drain is not
// stopped every ten seconds for a read, and neither are hook units that wait for another
// read. An effect of an earlier stage is stopped, and so is a drain on a node that was
// uncordoned, and everything once a read has shown an emergency stop.
func (o *Observation) effectToKeep() Effect {
	if o.Fresh != nil {
		if r, _ := o.leaseHolds(); r != "" {
			return DoNothing
		}
	}
	if o.Hooks.Late && o.Node.State.HookStage() {
		return DoHooks
	}
	if n := &o.Node; o.Drain.Running && n.Grant.Drains && n.Unschedulable && !n.State.HookStage() {
		return DoDrain
	}
	return DoNothing
}

// draining commits by cordoning, then evicts.
func (o *Observation) draining() Decision {
	n := &o.Node
	if r := o.refused(); r != "" {
		return o.refuse(r) // it may have refused before it cordoned
	}
	began := n.HasAck(v1alpha1.StateDraining) && n.Ack.Report != v1alpha1.ReportSeen
	if !n.Unschedulable && (n.Mark || began) {
		// A user uncordoned the node, so they want it. This turn does not cordon it
		// again, in any boot. Step removes the mark in the same write.
		return o.refuse(v1alpha1.ReasonUncordoned)
	}
	if o.reported(v1alpha1.ReportDone) {
		return Decision{Detail: "the next stage"}
	}
	if d, ok := o.mayContinue(false); !ok {
		return d
	}
	if !n.Grant.Drains {
		// No coordinator moves a turn without a drain here. With its stolen credential, an
		// attacker can. The host would refuse the reboot after this drain, so no pod is
		// evicted for it.
		return o.refuse(v1alpha1.ReasonPlanChanged)
	}
	// The mark alone is no commit of this turn: with a stolen coordinator's credential, an
	// attacker can grant another turn to a node that still has the mark of the last one.
	if committed := n.Unschedulable && (n.Mark && began || o.reported(v1alpha1.ReportCommitted)); !committed {
		if d, ok := o.check(DoDrain); !ok {
			return d
		}
		w := &Write{}
		o.setMark(w)
		o.ack(w, v1alpha1.ReportCommitted, "")
		return Decision{Write: w}
	}
	return o.evict()
}

// evict drains while the Node and the Lease, which are read every 10 s, allow it. A watch can
// be silent for minutes while evictions are answered.
func (o *Observation) evict() Decision {
	if o.Drain.Complete {
		return o.report(v1alpha1.ReportDone, "", "")
	}
	if o.Fresh == nil {
		return Decision{Read: ReadEviction, Do: o.effectToKeep()}
	}
	if r, detail := o.leaseHolds(); r != "" {
		return Decision{Waits: r, Detail: detail, Again: true}
	}
	if !o.EvictFrom.IsZero() && !o.Drain.Running {
		return Decision{Waits: v1alpha1.ReasonLoadBalancerDelay, Detail: "no pod is evicted before " + o.EvictFrom.UTC().Format(time.TimeOnly) + " UTC", Again: true}
	}
	return Decision{Do: DoDrain, Detail: o.Drain.Detail, Again: true}
}

// mayContinue reports whether the turn may continue toward its disruption. If not, the
// decision says what the host waits for. committed reports whether the host has committed
// to it; then only the host can end the turn, by a refusal.
func (o *Observation) mayContinue(committed bool) (Decision, bool) {
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}, false
	}
	if r := o.withdrawn(); r != "" && !committed {
		return Decision{Waits: r}, false
	}
	if !o.Sources.Complete {
		return o.waitForSources(), false
	}
	if row, _ := turn.Find(o.Node.State); o.Sources.Wants.AtLeast(row.Needs) && (row.Needs != v1alpha1.WantsDrain || o.Sources.Drains) {
		return Decision{}, true
	}
	if committed {
		return o.refuse(v1alpha1.ReasonWantGone), false
	}
	return Decision{Waits: v1alpha1.ReasonWantGone, Detail: backsOut}, false
}

func (o *Observation) waitForSources() Decision {
	return Decision{Waits: v1alpha1.ReasonSourceUnreadable, Detail: o.Sources.Missing}
}

// backsOut is what a host waits for whose turn cannot continue.
const backsOut = "the coordinator backs the turn out"

// refused returns the reason with which the host has refused in this state, or "". The host keeps
// to a refusal, and reports it again in another boot.
//
// It also keeps to a refusal with an unknown outcome, and sends it again. Otherwise the want may
// come back, the host may reboot because its Node still shows the commit, and after that the
// refusal may land: the turn is then backed out or released while the host goes down.
func (o *Observation) refused() v1alpha1.Reason {
	n := &o.Node
	for _, a := range []v1alpha1.Ack{n.Ack, o.UnsettledRefusal} {
		if a.Turn == n.Turn && a.State == n.State && a.Report == v1alpha1.ReportRefused {
			return a.Reason
		}
	}
	return ""
}

// refuse reports refused with the reason, once in each boot.
func (o *Observation) refuse(reason v1alpha1.Reason) Decision {
	return o.report(v1alpha1.ReportRefused, reason, backsOut)
}

// report makes a report about the present state.
func (o *Observation) report(report v1alpha1.Report, reason v1alpha1.Reason, detail string) Decision {
	w := &Write{}
	o.ack(w, report, reason)
	return Decision{Write: w, Waits: reason, Detail: detail}
}
