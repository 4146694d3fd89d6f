// Package step makes all decisions of a host. Step takes an [Observation], which is
// everything that a host knows at one moment, and returns a [Decision], which package
// node carries out.
//
// Step remembers nothing. A process that has just started, with the same facts, takes
// the same next step as one that has run for days. So a crash needs no recovery code.
//
// The package is pure: no client, no D-Bus, no file, no clock. Times are fields of the
// observation. It must not know other nodes or budgets.
package step

import (
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Step decides what the host does next. It remembers nothing: the same observation
// gives the same decision, so a process that was killed and started again continues
// from the facts.
func Step(o Observation) Decision {
	n := &o.Node
	if n.UID == "" {
		return Decision{Waits: v1alpha1.ReasonNotReady, Detail: "its Node has not been seen yet"}
	}
	if !n.State.Known() {
		// A newer coordinator wrote it, or a user did. Either way the host does nothing.
		return Decision{Waits: v1alpha1.ReasonUnknownState, Detail: fmt.Sprintf("lockkeeper.dev/state=%q", string(n.State))}
	}
	d := o.step()
	if d.Read != ReadNothing {
		return d
	}
	// The host's record goes out in the same write as anything else, or alone, except
	// while publishes says no.
	w := d.Write
	if w == nil {
		w = &Write{}
	}
	if o.publishes(w.Ack) {
		o.publish(w)
	}
	if n.Mark && !n.Unschedulable && w.Unschedulable == nil {
		// Another user uncordoned the node, so a later cordon is not ours. If the mark
		// stayed, the host would later undo a cordon that an admin has set since.
		o.removeMark(w)
	}
	if d.Write = w; w.empty() {
		d.Write = nil
	}
	return d
}

// Released reports whether the node is detached or not managed and has no host record:
// the coordinator has released it, or it was never managed. Then the host publishes
// nothing, on its Node or elsewhere, until the node is attached or managed again.
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
		return Decision{Waits: v1alpha1.ReasonInvalidGrant, Detail: "the coordinator repairs it"}
	}
	if n.State == v1alpha1.StateDraining && n.Mark && !n.Unschedulable {
		return o.refuse(v1alpha1.ReasonUncordoned) // in the write that removes the mark
	}
	if n.Ack.Turn != n.Turn || n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportSeen && n.Ack.BootID != o.Self.BootID {
		// The host acks the turn's first state, and acks it again in another boot. It
		// does so even when it is paused, because a paused host is not a silent one.
		// It replaces no other report of this turn: a report from before a crash may
		// keep the turn from being backed out, or record that the node was uncordoned.
		return o.report(v1alpha1.ReportSeen, "", "")
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

// ItsTurn is the detail of a host that only waits for its turn.
const ItsTurn = "waits for its turn"

// notInTurn decides for a host that is in no turn.
func (o *Observation) notInTurn() Decision {
	n := &o.Node
	if n.State == v1alpha1.StateAbsent && o.withdrawn() != "" {
		d := Decision{Waits: o.withdrawn(), Detail: o.withdrawnText()}
		switch {
		case n.Mark && n.Detached != nil:
			// The cordon and the exclusions belong to the new owner.
			d.Write = &Write{}
			d.Write.setAnnotation(v1alpha1.AnnotationCordon, nil)
		case n.Mark:
			return Decision{Waits: v1alpha1.ReasonOwnCordonLeft, Detail: "the coordinator gives it back first"}
		case o.Leaving:
			d.Write = o.removeKeys()
		}
		return d
	}
	if o.Leaving {
		return Decision{Waits: v1alpha1.ReasonUnmanaged, Detail: "this host leaves, and the coordinator has not released its node yet"}
	}
	if !o.Sources.Complete {
		return o.waitForSources()
	}
	if !o.Sources.Wants.Something() {
		if o.Veto == v1alpha1.ReasonOtherManager {
			// The status shows it before there is an update that it would block.
			return Decision{Waits: o.Veto, Detail: o.VetoDetail}
		}
		if o.Sources.Unreadable != "" {
			// The host is not up to date: it does not see what changes there.
			return Decision{Waits: v1alpha1.ReasonSourceUnreadable, Detail: o.Sources.Unreadable}
		}
		return Decision{}
	}
	if o.NoLeader != "" {
		// What the Node says was written by a leader that is gone.
		return Decision{Waits: o.NoLeader, Detail: o.NoLeaderDetail}
	}
	if n.State == v1alpha1.StateAbsent {
		detail := "no coordinator has taken this node in"
		if o.Veto == v1alpha1.ReasonOtherManager {
			detail += "; " + o.VetoDetail
		}
		return Decision{Waits: v1alpha1.ReasonNoCoordinator, Detail: detail}
	}
	if n.Owner != "" && n.Held == v1alpha1.ReasonOtherManager {
		return Decision{Waits: n.Held, Detail: n.Owner}
	}
	if o.VetoDetail != "" && n.Held == o.Veto {
		return Decision{Waits: n.Held, Detail: o.VetoDetail}
	}
	return Decision{Waits: n.Held, Detail: ItsTurn}
}

// withdrawnText returns the detail of the reason that withdrawn returns, which is not "".
func (o *Observation) withdrawnText() string {
	switch {
	case o.Leaving:
		return "this host leaves; its package is being removed, or a user ran `lockkeeper leave --this-host`"
	case o.managed(): // so it is detached
		return o.Node.Detached.Reason
	case o.Node.Managed == nil:
		return "managed_by_default is false in this host's file"
	}
	return "managed=false"
}

// removeKeys returns the write that removes the host's keys, which is empty if the Node has
// none. In the release, the coordinator removes only those that [v1alpha1.ReleasedKeys] names,
// and no coordinator has to be there if none has adopted the node. Only a host that leaves
// removes keys, because another host that is not managed may come back.
func (o *Observation) removeKeys() *Write {
	n, w := &o.Node, &Write{}
	for key := range n.Info {
		w.setLabel(key, nil)
	}
	if n.RawHost != "" || n.Wants != "" { // both are always written together
		w.setLabel(v1alpha1.LabelWants, nil)
		w.setAnnotation(v1alpha1.AnnotationHost, nil)
	}
	if n.Ack != (v1alpha1.Ack{}) {
		w.setAnnotation(v1alpha1.AnnotationAck, nil)
	}
	return w
}

// Left reports whether the host leaves and has nothing more to do for that: the node is in no
// turn and has neither a state, a mark, nor a key of the host.
func (o *Observation) Left() bool {
	return o.Leaving && o.Node.UID != "" && o.Released() && !o.Node.Mark && o.removeKeys().empty()
}

// hookStage runs the host's own hook units for the stage, if there are any.
func (o *Observation) hookStage() Decision {
	n := &o.Node
	// Nothing backs a turn out of before-uncordon. So units that failed run again
	// until they succeed or are removed. No host refuses there: someone else wrote such a
	// report with this host's credential, and the turn must not wait for that indefinitely.
	again := n.State == v1alpha1.StateBeforeUncordon && (o.reported(v1alpha1.ReportFailed) || o.reported(v1alpha1.ReportRefused))
	if !slices.Contains(o.Self.HookStages, n.State) && !again {
		return Decision{Detail: o.othersWork("hooks")}
	}
	if o.reported(v1alpha1.ReportDone) || !again && (o.reported(v1alpha1.ReportFailed) || o.reported(v1alpha1.ReportRefused)) {
		return Decision{Detail: o.othersWork("hooks of others")}
	}
	if o.Hooks.Running && !o.Hooks.Late {
		// A pause does not stop a unit that runs. It holds the units after it.
		return Decision{Do: DoHooks, Detail: o.Hooks.Detail}
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	switch {
	case o.Hooks.Failed != "" && !(again && o.Hooks.Due):
		return o.report(v1alpha1.ReportFailed, v1alpha1.ReasonHookFailed, o.Hooks.Failed)
	case o.Hooks.Done:
		return o.report(v1alpha1.ReportDone, "", "")
	}
	if n.State != v1alpha1.StateBeforeUncordon {
		if d, ok := o.mayContinue(false); !ok {
			return d
		}
		if o.lacksDrain() {
			return Decision{Waits: v1alpha1.ReasonPlanChanged, Detail: backsOut}
		}
	} else if !o.takesPart() {
		// Nothing has happened in this turn that the units could undo. With a stolen
		// coordinator's credential, an attacker can move a host that wants nothing to
		// this state, but cannot make it run the units.
		return o.report(v1alpha1.ReportDone, "", "")
	}
	// Running a unit is a disruption, so it needs the same reads as the others.
	if d, ok := o.check(DoHooks); !ok {
		return d
	}
	return Decision{Do: DoHooks, Detail: "hook units"}
}

// othersWork returns what a hook stage waits for in addition to the host's own hook units:
// hooks, or volumes to detach.
func (o *Observation) othersWork(hooks string) string {
	n := &o.Node
	if n.State != v1alpha1.StateBeforeReboot || !n.Grant.Terms.WaitForVolumeDetach || !n.Grant.Drains || len(n.Volumes) == 0 {
		return hooks
	}
	for _, h := range n.Grant.Terms.Hooks(n.State) {
		if n.Hooks[h.Name] != n.Turn {
			return hooks + " and volumes to detach"
		}
	}
	return "volumes to detach"
}

// takesPart reports whether this host takes part in the turn. It uses only the host's
// own records: the mark, the failed hook units of before-uncordon, or that the host
// wants what the present state needs. The host publishes the result in its record, for
// later states, processes and boots of the turn.
//
// An ack proves nothing here. A host reports seen even if it wants nothing, and done in
// a boot that it takes for the one after the turn's reboot. Also, a later report
// replaces an earlier one.
func (o *Observation) takesPart() bool {
	n := &o.Node
	switch {
	case !n.InTurn(), n.State == v1alpha1.StateUncordoning:
		return false // the turn is over, or only the mark is left to remove
	case n.Mark, n.Host != nil && n.Host.NodeUID == n.UID && n.Host.TakesPart == n.Turn:
		return true
	case n.State == v1alpha1.StateBeforeUncordon:
		return n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
	}
	row, _ := turn.Find(n.State)
	return n.Ours() && !o.newBoot() && o.Sources.Wants.Something() && o.Sources.Wants.AtLeast(row.Needs)
}

// uncordoning undoes the host's own cordon once the node is Ready.
func (o *Observation) uncordoning() Decision {
	n := &o.Node
	if o.reported(v1alpha1.ReportDone) && !n.Mark {
		return Decision{Detail: "the end of the turn"}
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	if o.Shutdown == ShutdownUnderway {
		// A user removed the turn's records after the reboot was called. If the host
		// uncordoned now, it would reboot with pods on it.
		return Decision{Detail: "the shutdown that is under way"}
	}
	if !n.Ready || n.BootID != o.Self.BootID {
		return Decision{Waits: v1alpha1.ReasonNotReady, Detail: "the kubelet to report Ready from this boot"}
	}
	if o.Hooks.Running {
		return Decision{Detail: o.Hooks.Detail}
	}
	w := &Write{}
	if n.Mark {
		// The mark goes in one write with all that it names. So no crash leaves a cordon
		// without an owner, or a mark on another user's cordon.
		o.removeMark(w)
		if n.Unschedulable && n.OwnCordon() {
			w.Unschedulable = new(false)
		}
	}
	o.ack(w, v1alpha1.ReportDone, "")
	return Decision{Write: w}
}
