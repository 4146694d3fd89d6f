package step

import (
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Step says what the host does next. Same observation, same decision: it has
// no memory, so a process that was killed and started again goes on where
// the facts are.
func Step(o Observation) Decision {
	n := &o.Node
	if n.UID == "" {
		return Decision{Waits: v1alpha1.ReasonNotReady, Detail: "its Node has not been seen yet"}
	}
	if !n.State.Known() {
		// A newer coordinator's state, or somebody's typing: hands off.
		return Decision{Waits: v1alpha1.ReasonUnknownState, Detail: fmt.Sprintf("lockkeeper.dev/state=%q", string(n.State))}
	}
	d := o.step()
	if d.Read != ReadNothing {
		return d
	}
	// What the host says of itself goes with whatever else is written, or by
	// itself; but never while it is to be silent.
	w := d.Write
	if w == nil {
		w = &Write{}
	}
	if d.publishes(&o) {
		o.publish(w)
	}
	if n.Mark && !n.Unschedulable && w.Unschedulable == nil {
		// Somebody uncordoned: the cordon is not ours any more, whatever is
		// cordoned later. Uncordoning a node that an admin cordoned after
		// that would undo their cordon.
		w.setAnnotation(v1alpha1.AnnotationCordon, nil)
	}
	if d.Write = w; w.empty() {
		d.Write = nil
	}
	return d
}

// publishes reports whether the host's description goes out with the decision.
func (d *Decision) publishes(o *Observation) bool {
	if !o.Sources.Complete {
		return false
	}
	if d.Write != nil && o.newBoot() && (d.Write.Ack.Report == v1alpha1.ReportDone || d.Write.Ack.Report == v1alpha1.ReportFailed) {
		return true
	}
	return !o.Released() && o.mayPublish()
}

// Released reports whether the node was taken out and has no record of its host:
// the coordinator has released it, or it was never managed. Then the host
// publishes nothing, neither on its Node nor elsewhere, until the node is back.
func (o *Observation) Released() bool {
	n := &o.Node
	return n.State == v1alpha1.StateAbsent && o.withdrawn() != "" && n.RawHost == "" && (!n.Mark || n.Detached != nil)
}

func (o *Observation) step() Decision {
	n := &o.Node
	if !n.InTurn() {
		return o.notInTurn()
	}
	if !n.Ours() {
		return Decision{Waits: v1alpha1.ReasonInvalidGrant, Detail: "the coordinator mends it"}
	}
	if n.State == v1alpha1.StateDraining && n.Mark && !n.Unschedulable {
		return o.refuse(v1alpha1.ReasonUncordoned) // in the write that takes the mark away
	}
	if n.Ack.Turn != n.Turn || n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportSeen && n.Ack.BootID != o.Self.BootID {
		// The turn's first state, or the same in another boot. It is said
		// even when frozen: it is no more than a word, and a host that is
		// paused is not silent. Any other word of this turn is left alone:
		// that it was said before a crash may bar the turn from being turned
		// round, or say that somebody uncordoned.
		w := &Write{}
		o.ack(w, v1alpha1.ReportSeen, "")
		return Decision{Write: w}
	}
	switch n.State {
	case v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon:
		return o.hookStage()
	case v1alpha1.StateDraining:
		return o.draining()
	case v1alpha1.StateRebooting:
		return o.rebooting()
	case v1alpha1.StateApplying:
		return o.applying()
	default:
		return o.uncordoning()
	}
}

// ItsTurn is the detail of a host that wants something and has everything but
// its turn.
const ItsTurn = "waits for its turn"

// outside is a host in no turn.
func (o *Observation) notInTurn() Decision {
	n := &o.Node
	if n.State == v1alpha1.StateAbsent && o.withdrawn() != "" {
		d := Decision{Waits: o.withdrawn(), Detail: o.withdrawnText()}
		switch {
		case n.Mark && n.Detached != nil:
			// The cordon belongs to the new owner.
			d.Write = &Write{}
			d.Write.setAnnotation(v1alpha1.AnnotationCordon, nil)
		case n.Mark:
			return Decision{Waits: v1alpha1.ReasonOwnCordonLeft, Detail: "the coordinator gives it back first"}
		}
		return d
	}
	if !o.Sources.Complete {
		return Decision{Waits: v1alpha1.ReasonSourceUnreadable, Detail: o.Sources.Missing}
	}
	if !o.Sources.Wants.Something() {
		if o.Veto == v1alpha1.ReasonOtherManager {
			// Whoever reads the status is to know it before there is an update.
			return Decision{Waits: o.Veto, Detail: o.VetoDetail}
		}
		return Decision{}
	}
	if o.NoLeader != "" {
		// Whatever the Node says, it was said by somebody who is gone.
		return Decision{Waits: o.NoLeader, Detail: o.NoLeaderDetail}
	}
	if n.State == v1alpha1.StateAbsent {
		detail := "no coordinator has taken this node in"
		if o.Veto == v1alpha1.ReasonOtherManager {
			detail += "; " + o.VetoDetail
		}
		return Decision{Waits: v1alpha1.ReasonNoCoordinator, Detail: detail}
	}
	if o.VetoDetail != "" && n.Held == o.Veto {
		return Decision{Waits: n.Held, Detail: o.VetoDetail}
	}
	return Decision{Waits: n.Held, Detail: ItsTurn}
}

func (o *Observation) withdrawnText() string {
	if d := o.Node.Detached; d != nil {
		return d.Reason
	}
	return "managed=false"
}

// hookStage runs the host's own hook units, if it has any for the stage.
func (o *Observation) hookStage() Decision {
	n := &o.Node
	// In before-uncordon nobody turns the node round any more: units that
	// failed run again until they work, or until there are none left.
	again := n.State == v1alpha1.StateBeforeUncordon && o.reported(v1alpha1.ReportFailed)
	if !slices.Contains(o.Self.HookStages, n.State) && !again {
		return Decision{Detail: "hooks"}
	}
	if o.reported(v1alpha1.ReportDone) || o.reported(v1alpha1.ReportFailed) && !again || o.reported(v1alpha1.ReportRefused) {
		return Decision{Detail: "hooks of others"}
	}
	if o.Hooks.Running && !o.Hooks.Late {
		// A pause does not kill what is at work; it holds what comes after.
		return Decision{Do: DoHooks, Detail: o.Hooks.Detail}
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	w := &Write{}
	switch {
	case o.Hooks.Failed != "" && !(again && o.Hooks.Due):
		o.ack(w, v1alpha1.ReportFailed, v1alpha1.ReasonHookFailed)
		return Decision{Write: w, Waits: v1alpha1.ReasonHookFailed, Detail: o.Hooks.Failed}
	case o.Hooks.Done:
		o.ack(w, v1alpha1.ReportDone, "")
		return Decision{Write: w}
	}
	if n.State != v1alpha1.StateBeforeUncordon {
		if r := o.withdrawn(); r != "" {
			return Decision{Waits: r}
		}
		if !o.Sources.Complete {
			return Decision{Waits: v1alpha1.ReasonSourceUnreadable, Detail: o.Sources.Missing}
		}
		if r := o.wantGone(); r != "" {
			return Decision{Waits: r, Detail: "the coordinator turns the node round"}
		}
	}
	if n.State == v1alpha1.StateBeforeUncordon && !o.takesPart() {
		// Nothing has happened in this turn that the units could undo. A thief of
		// the coordinator's credential can move a host here that wants nothing, but
		// cannot make it run the units.
		o.ack(w, v1alpha1.ReportDone, "")
		return Decision{Write: w}
	}
	// Running a unit is a disturbance like any other: it needs the same reads.
	if d, ok := o.check(DoHooks); !ok {
		return d
	}
	return Decision{Do: DoHooks, Detail: "hook units"}
}

// takesPart reports whether this host takes part in the turn. It uses only the
// host's own records: the mark, the failed hook units of before-uncordon, or that
// the host wants what the present state needs. The host publishes the result in its
// record, for later states, processes and boots of the turn.
//
// An ack proves nothing here. A host reports seen even if it wants nothing, and
// done in a boot that it takes for the one after the turn's reboot. A later report
// replaces an earlier one.
func (o *Observation) takesPart() bool {
	n := &o.Node
	switch {
	case !n.InTurn(), n.State == v1alpha1.StateUncordoning:
		return false // it is over, or gives back what is left: the mark
	case n.Mark, n.Host != nil && n.Host.NodeUID == n.UID && n.Host.TakesPart == n.Turn:
		return true
	case n.State == v1alpha1.StateBeforeUncordon:
		return n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
	}
	row, _ := turn.Find(n.State)
	return n.Ours() && !o.newBoot() && o.Sources.Wants.Something() && o.Sources.Wants.AtLeast(row.Needs)
}

// lost says why the want that was read does not carry the turn through a
// hook stage any more, or "". It has been, or will be, published.
func (o *Observation) wantGone() v1alpha1.Reason {
	row, _ := turn.Find(o.Node.State)
	switch {
	case !o.Sources.Wants.AtLeast(row.Needs), row.Needs == v1alpha1.WantsDrain && !o.Sources.Drains:
		return v1alpha1.ReasonWantGone
	case o.lacksDrain():
		return v1alpha1.ReasonPlanChanged
	}
	return ""
}

// uncordoning gives the node back.
func (o *Observation) uncordoning() Decision {
	n := &o.Node
	if o.reported(v1alpha1.ReportDone) && !n.Mark {
		return Decision{Detail: "the end of the turn"}
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	if o.Shutdown == ShutdownUnderway {
		// The turn's records were edited away under a reboot that had been
		// called: an uncordoned node would be rebooted with pods on it.
		return Decision{Detail: "the shutdown that is under way"}
	}
	if !n.Ready || n.BootID != o.Self.BootID {
		return Decision{Waits: v1alpha1.ReasonNotReady, Detail: "the kubelet to report Ready from this boot"}
	}
	w := &Write{}
	if n.Mark {
		// The mark and the cordon in one write, so that no crash leaves a
		// cordon that nobody owns, nor a mark on somebody else's cordon.
		w.setAnnotation(v1alpha1.AnnotationCordon, nil)
		if n.Unschedulable {
			w.Unschedulable = new(false)
		}
	}
	o.ack(w, v1alpha1.ReportDone, "")
	return Decision{Write: w}
}
