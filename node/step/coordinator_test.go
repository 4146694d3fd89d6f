package step

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestCoordinator(t *testing.T) {
	const here, before = "b2", "b1"
	inTurn := func(state v1alpha1.State, boot string, report v1alpha1.Report) func(*Observation) {
		return func(o *Observation) {
			n := &o.Node
			n.State, n.Turn, n.BootID = state, "t1", here
			n.Grant = &v1alpha1.Grant{Turn: "t1", NodeUID: n.UID, BootID: boot}
			n.Ack = v1alpha1.Ack{Turn: "t1", BootID: here, State: state, Report: report}
		}
	}
	for name, c := range map[string]struct {
		edit func(*Observation)
		do   Effect
		want CoordinatorState
	}{
		"nothing to do":         {func(o *Observation) { o.Sources.Wants = v1alpha1.WantsNothing }, "", CoordinatorRunning},
		"an update waits":       {func(*Observation) {}, "", CoordinatorRebootPlanned},
		"its Node is not known": {func(o *Observation) { o.Node.UID = "" }, "", ""},
		"observe":               {func(o *Observation) { o.Veto = v1alpha1.ReasonObserve }, "", ""},
		"observe during the turn": {func(o *Observation) {
			inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportCommitted)(o)
			o.Veto = v1alpha1.ReasonObserve
		}, "", ""},
		"not managed":   {func(o *Observation) { o.ManagedByDefault = false }, "", ""},
		"managed=false": {func(o *Observation) { o.Node.Managed = new(false) }, "", ""},
		"managed=true":  {func(o *Observation) { o.ManagedByDefault, o.Node.Managed = false, new(true) }, "", CoordinatorRebootPlanned},
		"detached":      {func(o *Observation) { o.Node.Detached = &v1alpha1.Intent{} }, "", ""},
		"detached, and gives back": {func(o *Observation) {
			inTurn(v1alpha1.StateDraining, here, v1alpha1.ReportSeen)(o)
			o.Node.Detached = &v1alpha1.Intent{}
		}, "", CoordinatorRebootPlanned},
		"paused":              {func(o *Observation) { o.Node.Paused = &v1alpha1.Intent{} }, "", CoordinatorDisabled},
		"paused by its file":  {func(o *Observation) { o.Veto = v1alpha1.ReasonHostPaused }, "", CoordinatorDisabled},
		"drains":              {inTurn(v1alpha1.StateDraining, here, v1alpha1.ReportCommitted), DoDrain, CoordinatorRebootPlanned},
		"waits for a session": {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportSeen), "", CoordinatorRebootPlanned},
		"reboots":             {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportSeen), DoReboot, CoordinatorRebooting},
		"the grant of another Node": {func(o *Observation) {
			inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportCommitted)(o)
			o.Node.Grant.NodeUID = "another"
		}, "", CoordinatorRebootPlanned},
		"applies its plan": {func(o *Observation) {
			inTurn(v1alpha1.StateApplying, here, v1alpha1.ReportCommitted)(o)
			o.Sources.Wants = v1alpha1.WantsApply
		}, DoApply, CoordinatorRunning},
		"has called the reboot": {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportCommitted), "", CoordinatorRebooting},
		"has rebooted, and wants nothing": {func(o *Observation) {
			inTurn(v1alpha1.StateRebooting, before, v1alpha1.ReportDone)(o)
			o.Sources.Wants = v1alpha1.WantsNothing
		}, "", CoordinatorRunning},
	} {
		o := Observation{ManagedByDefault: true, Sources: Sources{Complete: true, Wants: v1alpha1.WantsReboot}}
		o.Node.UID, o.Self.BootID = "u1", here
		c.edit(&o)
		if got := Coordinator(&o, &Decision{Do: c.do}); got != c.want {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
}
