package step

import (
	"cmp"
	"fmt"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// check is what stands between a host and every disturbance: DESIGN section
// 4, "Commit". ok reports that act may go ahead, by what was read within the
// last 10 s; otherwise the decision says what to read, or what to wait for.
//
// The act itself comes after a patch with the resourceVersion of the Node
// that was read here, so whatever is changed on the Node after the read turns
// the commit into a conflict; and the Lease is read after the Node, so a leader
// that lost its term before the Node was read is seen here. What is left, a
// leader that is replaced between the two, is one whose successor counts this
// turn, because it lists the Nodes after it won.
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
		// The leader that promoted this node is not the leader. Its successor
		// takes the turn over or turns it back.
		return wait(v1alpha1.ReasonHandover, "the turn is another leader's")
	}
	if n.BootID != o.Self.BootID {
		return wait(v1alpha1.ReasonNotReady, "the kubelet to report this boot")
	}
	if n.State == v1alpha1.StateBeforeUncordon {
		// It only gives back. A window that closed, or a source that cannot
		// be read, must not keep a node out of the cluster for days.
		return Decision{}, true
	}
	if n.Grant.OnlyNode && o.Sources.Drains && o.Term != n.Grant.Epoch {
		// Only the leader can know that no other Node exists, and its credential may
		// be stolen. In a cluster of one node, this host's own process is the leader.
		return o.refuse(v1alpha1.ReasonPlanChanged), false
	}
	if o.Veto != "" {
		return wait(o.Veto, cmp.Or(o.VetoDetail, "this host's own veto"))
	}
	if !o.Sources.Complete {
		return wait(v1alpha1.ReasonSourceUnreadable, o.Sources.Missing)
	}
	if o.Sources.Unconfirmed != "" {
		// An update engine that is restarted, or whose unit was stopped, keeps
		// what it said. It may say IDLE when it is back: until then nobody has
		// said at this commit that the want stands.
		return wait(v1alpha1.ReasonSourceUnreadable, o.Sources.Unconfirmed)
	}
	if (act == DoReboot || act == DoApply) && n.Grant.Drains {
		if o.Fresh.Evictable > 0 {
			// Something tolerates the cordon, or came in before it.
			return Decision{Do: DoDrain, Detail: fmt.Sprintf("%d pods that came after the drain", o.Fresh.Evictable)}, false
		}
	}
	return Decision{}, true
}

// leaseHolds says why the Lease lets nothing happen, or "".
func (o *Observation) leaseHolds() (v1alpha1.Reason, string) {
	switch l := o.Fresh.Lease; {
	case !l.Exists:
		return v1alpha1.ReasonStopped, "there is no Lease"
	case l.Stopped:
		return v1alpha1.ReasonStopped, l.StopText
	}
	return "", ""
}

// keep is the effect that goes on while something is read: a drain is not
// stopped every ten seconds for a look, and hook units that wait for another read
// are not either. One that is left from another stage, or
// from before somebody uncordoned, is; so is one under an emergency stop that
// the last look showed.
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

// draining commits by the cordon, then evicts.
func (o *Observation) draining() Decision {
	n := &o.Node
	began := n.HasAck(v1alpha1.StateDraining) && n.Ack.Report != v1alpha1.ReportSeen
	if !n.Unschedulable && (n.Mark || began) {
		// Somebody uncordoned. They want the node; this turn cordons no
		// more, in whatever boot. The mark goes in the same write (Step).
		return o.refuse(v1alpha1.ReasonUncordoned)
	}
	if n.HasAck(v1alpha1.StateDraining) && n.Ack.Report == v1alpha1.ReportRefused {
		return o.refuse(n.Ack.Reason) // again, if it was said in another boot
	}
	if o.reported(v1alpha1.ReportDone) {
		return Decision{Detail: "the next stage"}
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	if r := o.withdrawn(); r != "" {
		return Decision{Waits: r}
	}
	if !o.Sources.Complete {
		return Decision{Waits: v1alpha1.ReasonSourceUnreadable, Detail: o.Sources.Missing}
	}
	if !o.Sources.Wants.AtLeast(v1alpha1.WantsDrain) || !o.Sources.Drains {
		return Decision{Waits: v1alpha1.ReasonWantGone, Detail: "the coordinator turns the node round"}
	}
	if cordoned := n.Unschedulable && (n.Mark || o.reported(v1alpha1.ReportCommitted)); !cordoned {
		if d, ok := o.check(DoDrain); !ok {
			return d
		}
		w := &Write{}
		if !n.Unschedulable {
			w.Unschedulable = new(true)
			w.setAnnotation(v1alpha1.AnnotationCordon, &n.Turn)
		}
		o.ack(w, v1alpha1.ReportCommitted, "")
		return Decision{Write: w}
	}
	return o.evict()
}

// evict drains on while the Lease, looked at every 10 s, shows no stop.
func (o *Observation) evict() Decision {
	if o.Drain.Complete {
		w := &Write{}
		o.ack(w, v1alpha1.ReportDone, "")
		return Decision{Write: w}
	}
	if o.Fresh == nil {
		return Decision{Read: ReadLease, Do: o.effectToKeep()}
	}
	if r, detail := o.leaseHolds(); r != "" {
		return Decision{Waits: r, Detail: detail, Again: true}
	}
	return Decision{Do: DoDrain, Detail: o.Drain.Detail, Again: true}
}

// refuse says refused with the reason, once a boot.
func (o *Observation) refuse(reason v1alpha1.Reason) Decision {
	w := &Write{}
	o.ack(w, v1alpha1.ReportRefused, reason)
	return Decision{Write: w, Waits: reason, Detail: "the coordinator turns the node round"}
}
