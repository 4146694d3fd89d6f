package node

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/updateengine"
)

func TestCoordinates(t *testing.T) {
	const here, before = "b2", "b1"
	inTurn := func(state v1alpha1.State, boot string, word v1alpha1.Report) func(*step.Observation) {
		return func(o *step.Observation) {
			n := &o.Node
			n.State, n.Turn, n.BootID = state, "t1", here
			n.Grant = &v1alpha1.Grant{Turn: "t1", NodeUID: n.UID, BootID: boot}
			n.Ack = v1alpha1.Ack{Turn: "t1", BootID: here, State: state, Report: word}
		}
	}
	for name, c := range map[string]struct {
		edit func(*step.Observation)
		do   step.Effect
		want updateengine.CoordinatorState
	}{
		"nothing to do":         {func(o *step.Observation) { o.Sources.Wants = v1alpha1.WantsNothing }, "", updateengine.CoordinatorRunning},
		"an update waits":       {func(*step.Observation) {}, "", updateengine.CoordinatorRebootPlanned},
		"its Node is not known": {func(o *step.Observation) { o.Node.UID = "" }, "", ""},
		"observe":               {func(o *step.Observation) { o.Veto = v1alpha1.ReasonObserve }, "", ""},
		"observe during the turn": {func(o *step.Observation) {
			inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportCommitted)(o)
			o.Veto = v1alpha1.ReasonObserve
		}, "", ""},
		"not managed":   {func(o *step.Observation) { o.ManagedByDefault = false }, "", ""},
		"managed=false": {func(o *step.Observation) { o.Node.Managed = new(false) }, "", ""},
		"managed=true":  {func(o *step.Observation) { o.ManagedByDefault, o.Node.Managed = false, new(true) }, "", updateengine.CoordinatorRebootPlanned},
		"detached":      {func(o *step.Observation) { o.Node.Detached = &v1alpha1.Intent{} }, "", ""},
		"detached, and gives back": {func(o *step.Observation) {
			inTurn(v1alpha1.StateDraining, here, v1alpha1.ReportSeen)(o)
			o.Node.Detached = &v1alpha1.Intent{}
		}, "", updateengine.CoordinatorRebootPlanned},
		"paused":                {func(o *step.Observation) { o.Node.Paused = &v1alpha1.Intent{} }, "", updateengine.CoordinatorDisabled},
		"paused by its file":    {func(o *step.Observation) { o.Veto = v1alpha1.ReasonHostPaused }, "", updateengine.CoordinatorDisabled},
		"drains":                {inTurn(v1alpha1.StateDraining, here, v1alpha1.ReportCommitted), step.DoDrain, updateengine.CoordinatorRebootPlanned},
		"waits for a session":   {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportSeen), "", updateengine.CoordinatorRebootPlanned},
		"reboots":               {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportSeen), step.DoReboot, updateengine.CoordinatorRebooting},
		"has called the reboot": {inTurn(v1alpha1.StateRebooting, here, v1alpha1.ReportCommitted), "", updateengine.CoordinatorRebooting},
		"has rebooted, and is content": {func(o *step.Observation) {
			inTurn(v1alpha1.StateRebooting, before, v1alpha1.ReportDone)(o)
			o.Sources.Wants = v1alpha1.WantsNothing
		}, "", updateengine.CoordinatorRunning},
	} {
		o := step.Observation{ManagedByDefault: true, Sources: step.Sources{Complete: true, Wants: v1alpha1.WantsReboot}}
		o.Node.UID, o.Self.BootID = "u1", here
		c.edit(&o)
		if got := coordinates(&o, step.Decision{Do: c.do}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
