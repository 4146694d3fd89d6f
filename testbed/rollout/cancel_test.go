package rollout

import (
	"slices"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// hooked is a policy in which every hook stage waits for a confirmation.
const hooked = `
rollout: {settle: 1s}
` + hooksEverywhere

const hooksEverywhere = `
hooks:
  beforeDrain: [{name: balancer}, {name: storage}]
  beforeReboot: [{name: backup}]
  beforeUncordon: [{name: check}]
`

// blocker is an inhibitor that forbids shutdowns.
var blocker = simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "a backup runs", Mode: "block"}

// TestCancel withdraws an update without a signal, in each state in which that backs the turn out.
func TestCancel(t *testing.T) {
	t.Parallel()
	const name = "node-2"
	for _, c := range []struct {
		state v1alpha1.State
		// hold keeps the node in the state until lift is called.
		hold func(s *scene) (lift func())
		// there waits until the host waits in the state.
		there func(s *scene)
		// marked is true if the node is cordoned in that state.
		marked bool
	}{
		{v1alpha1.StateBeforeDrain, func(s *scene) func() {
			s.keep("storage") // the other hook is confirmed, and its confirmation must be removed
			return func() { s.release("storage") }
		}, func(s *scene) {
			n := s.Reaches(name, v1alpha1.StateBeforeDrain)
			s.Eventually("the confirmation of the hook balancer", hookConfirmed(s, name, "balancer", n.Turn))
		}, false},
		{v1alpha1.StateDraining, func(s *scene) func() { return s.block(name).lift },
			func(s *scene) { s.Commits(name, v1alpha1.StateDraining); s.Reports(name, "1 pods to go") }, true},
		{v1alpha1.StateBeforeReboot, func(s *scene) func() { s.keep("backup"); return func() { s.release("backup") } },
			func(s *scene) { s.Reaches(name, v1alpha1.StateBeforeReboot) }, true},
		{v1alpha1.StateRebooting, func(s *scene) func() { return s.Host(name).Logind().Hold(blocker) },
			func(s *scene) { s.Reaches(name, v1alpha1.StateRebooting); s.Reports(name, "Inhibited") }, true},
	} {
		t.Run(string(c.state), func(t *testing.T) {
			rig.Sample(t, 3)
			t.Parallel()
			s := play(t, 2, 1, hooked, config("sources", "poll_interval", 200*time.Millisecond))
			lift := c.hold(s)
			boot := s.Host(name).BootID()
			s.forget(name)
			s.stage(name)
			c.there(s)
			if got := s.marked(name) == 1; got != c.marked {
				t.Errorf("in %s the node is marked: %t, expected %t", c.state, got, c.marked)
			}
			s.cancel(name)
			n := s.ended(name, v1alpha1.ResultCancelled, v1alpha1.ReasonWantGone)
			if n.Wants != v1alpha1.WantsNothing || n.BootID != boot {
				t.Errorf("the node wants %q in boot %s, expected nothing in %s", n.Wants, n.BootID, boot)
			}
			s.schedulable(name)
			s.reboots(name, 0)
			if path := s.path(name); !slices.Contains(path, v1alpha1.StateBeforeUncordon) || !slices.Contains(path, c.state) {
				t.Errorf("the node went through %v; expected %s and before-uncordon among the states", path, c.state)
			}
			lift()
			s.stage(name)
			s.updated(name)
			s.schedulable(name)
			s.reboots(name, 1)
		})
	}
}
