package step

import (
	"cmp"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// rebooting reboots the host once, and proves its health in the new boot.
func (o *Observation) rebooting() Decision {
	n := &o.Node
	if o.newBoot() {
		return o.proveHealth()
	}
	if r := o.refused(); r != "" {
		return o.refuse(r)
	}
	committed := o.reported(v1alpha1.ReportCommitted)
	if committed {
		if d, called := o.rebootCalled(); called {
			return d
		}
		if o.Permits() {
			return o.permit()
		}
	}
	if d, ok := o.mayContinue(committed); !ok {
		return d
	}
	if d, refused := o.refuseUndrained(); refused {
		return d
	}
	if committed && o.Veto == v1alpha1.ReasonHeldBack {
		// Before the commit, the coordinator backs the turn out. After it only the host
		// can, and a version may be held back for months.
		return o.refuse(o.Veto)
	}
	if n.Grant.Drains && o.Drain.Running && !o.Drain.Complete {
		return o.evict()
	}
	if o.Permission.Asked && !committed && !o.Permission.Open {
		// It asks again within minutes. Users are warned only then, so that the warning is right.
		return Decision{Waits: v1alpha1.ReasonFleetLock, Detail: "the FleetLock client to ask again"}
	}
	if o.Blocked != "" {
		return Decision{Waits: o.Blocked, Detail: o.BlockedDetail, Again: true}
	}
	if d, ok := o.check(DoReboot); !ok {
		return d
	}
	if !committed {
		return o.report(v1alpha1.ReportCommitted, "", "")
	}
	return Decision{Do: DoReboot, Detail: "the reboot"}
}

// rebootCalled decides for a host that has committed to the reboot, and may have called it,
// in this process or in the one before. called is false if it still has to call it.
func (o *Observation) rebootCalled() (d Decision, called bool) {
	switch {
	case o.Shutdown == ShutdownUnderway:
		// The next report comes from the next boot.
		return Decision{Detail: "the reboot that is under way"}, true
	case o.Shutdown == ShutdownUnknown:
		return Decision{Read: ReadShutdown}, true
	case o.RebootError != "":
		d := o.refuse(v1alpha1.ReasonRebootRefused)
		d.Detail = o.RebootError
		return d, true
	}
	return Decision{}, false
}

// refuseUndrained refuses a disruption that would hit pods: the node was uncordoned, or
// the plan needs a drain by now and the turn has none.
func (o *Observation) refuseUndrained() (Decision, bool) {
	if o.Node.Grant.Drains && !o.Node.Unschedulable {
		return o.refuse(v1alpha1.ReasonUncordoned), true
	}
	if o.lacksDrain() {
		return o.refuse(v1alpha1.ReasonPlanChanged), true
	}
	return Decision{}, false
}

// proveHealth reports the outcome of the reboot, in the boot after it.
func (o *Observation) proveHealth() Decision {
	n := &o.Node
	if o.reported(v1alpha1.ReportDone) {
		return Decision{Detail: "the next stage"}
	}
	failedBefore := o.reported(v1alpha1.ReportFailed)
	if !o.Sources.Complete {
		return o.waitForSources()
	}
	ready := n.Ready && n.BootID == o.Self.BootID
	if !ready || !o.Health.Healthy {
		detail := o.Health.Detail
		if !ready {
			detail = "the kubelet to report Ready from this boot"
		}
		if o.Health.Overdue && !failedBefore {
			return o.report(v1alpha1.ReportFailed, v1alpha1.ReasonUnhealthy, detail)
		}
		if failedBefore {
			return Decision{Waits: n.Ack.Reason, Detail: detail}
		}
		return Decision{Waits: v1alpha1.ReasonUnhealthy, Detail: detail}
	}
	if reason, detail := o.unchanged(); reason != "" {
		return o.report(v1alpha1.ReportFailed, reason, detail)
	}
	return o.report(v1alpha1.ReportDone, "", "")
}

// unchanged returns why the boot, or the plan, did not bring what the turn was for, or
// "". A file or unit of the turn that differs again has changed meanwhile. Whatever it
// contains now, it counts as the same change: otherwise it would cause turn after turn.
func (o *Observation) unchanged() (v1alpha1.Reason, string) {
	g := o.Node.Grant
	// A client's update is lost if something else reboots the host.
	updates := v1alpha1.Has(g.Changes, v1alpha1.SourceOSUpdate) || o.ImageVersion && o.permitted()
	if updates && g.OSVersion != "" && g.OSVersion == o.Self.OSVersion {
		return v1alpha1.ReasonNotUpdated, "still " + g.OSVersion
	}
	for _, c := range o.Sources.Changes {
		again := slices.Contains(g.Changes, c) || c.Watched() && named(g.Changes, c)
		// The coordinator removes a request only in the turn's last write. A FleetLock client
		// that asks in another boot asks for another reboot.
		before := c.Source == v1alpha1.SourceRequest || c.Source == v1alpha1.SourceFleetLock && g.BootID != o.Self.BootID
		if !before && again {
			return v1alpha1.ReasonStillWanted, c.String()
		}
	}
	return "", ""
}

// applying carries out a plan without a reboot.
func (o *Observation) applying() Decision {
	if o.reported(v1alpha1.ReportDone) || o.reported(v1alpha1.ReportFailed) {
		return Decision{Detail: "the next stage"}
	}
	if r := o.refused(); r != "" {
		return o.refuse(r)
	}
	if !o.Sources.Complete {
		return o.waitForSources()
	}
	if d, begun := o.applied(); begun {
		return d
	}
	if r, text := o.frozen(); r != "" {
		return Decision{Waits: r, Detail: text}
	}
	// A report from any boot keeps the turn from being backed out. Only a report from
	// this boot lets the host act.
	committed := o.reported(v1alpha1.ReportCommitted)
	// The coordinator does not back an apply out, so the host refuses.
	switch r := o.withdrawn(); {
	case !o.Sources.Wants.Something():
		return o.refuse(v1alpha1.ReasonWantGone)
	case r != "" && !committed:
		return o.refuse(r)
	}
	if d, refused := o.refuseUndrained(); refused {
		return d
	}
	switch plan := o.granted(); {
	case plan == nil || slices.ContainsFunc(plan.Steps, isReboot):
		return o.refuse(v1alpha1.ReasonPlanChanged)
	case !slices.ContainsFunc(o.Sources.Changes, plan.Names):
		return o.refuse(v1alpha1.ReasonWantGone)
	case o.Veto == v1alpha1.ReasonHeldBack:
		return o.refuse(o.Veto)
	}
	if d, ok := o.check(DoApply); !ok {
		return d
	}
	if !committed {
		return o.report(v1alpha1.ReportCommitted, "", "")
	}
	return Decision{Do: DoApply, Detail: "the units of its plan"}
}

// applied decides for a host that is carrying out its plan, or has done so, or is in
// another boot than the one in which it was promoted. begun is false if it has not begun.
func (o *Observation) applied() (d Decision, begun bool) {
	n := &o.Node
	sameBoot := n.Grant.BootID == o.Self.BootID
	switch {
	case !sameBoot && !n.Committed():
		return o.refuse(v1alpha1.ReasonBootChanged), true
	case sameBoot && o.Apply.Failed != "":
		return o.report(v1alpha1.ReportFailed, v1alpha1.ReasonApplyFailed, o.Apply.Failed), true
	case sameBoot && o.Apply.ChangedAgain != "":
		return o.report(v1alpha1.ReportFailed, v1alpha1.ReasonStillWanted, o.Apply.ChangedAgain), true
	case sameBoot && !o.Apply.Done:
		return Decision{Do: DoApply, Detail: cmp.Or(o.Apply.Detail, "the units of its plan")}, o.Apply.Running
	}
	// The plan is carried out, or the host crashed while it did that. A change that is
	// still there after the boot was not applied; the boot itself applied the others.
	if reason, detail := o.unchanged(); reason != "" {
		return o.report(v1alpha1.ReportFailed, reason, detail), true
	}
	return o.report(v1alpha1.ReportDone, "", ""), true
}

func isReboot(a v1alpha1.Action) bool { return a.Type == v1alpha1.ActionReboot }
