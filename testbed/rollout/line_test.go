package rollout

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestLineStops boots the first of three nodes of a policy into its old version. The other two wait until an admin runs
// `lockkeeper retry`. In the meantime the node of another policy gets its turn.
func TestLineStops(t *testing.T) {
	t.Parallel()
	s := playPools(t, 2, // the failed node finishes its turn, and one node of each policy may roll
		hostPool{name: "web", hosts: 3, budget: 1, policy: webUnhooked},
		hostPool{name: "db", hosts: 1, budget: 1, policy: db},
		spare)
	s.Host("node-1").SetNextBoot(simhost.NextBoot{Rollback: true})
	s.stage("node-1")
	s.Until("node-1", rig.Soon, "to have its turn", func(n *turn.Node) bool { return n.InTurn() || n.Last != nil })
	s.stage("node-2", "node-3")
	s.Until("node-1", rig.Soon, "to have failed", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Last.Reason == v1alpha1.ReasonNotUpdated
	})
	s.heldIdle(v1alpha1.ReasonHalted, "node-2", "node-3")
	// The engine stages the same update again, and the node does not try it again.
	s.stage("node-1")
	s.heldIdle(v1alpha1.ReasonFailed, "node-1")
	s.policyShows("web", "selected 3, up to date 0, wanting 3, in turn 0, unavailable 0, failed 1, allowed 1; "+
		"Valid True Valid; Progressing False Halted; Halted True Halted")
	s.stage("node-4")
	s.back("node-4")
	s.policyShows("db", "selected 1, up to date 1, wanting 0, in turn 0, unavailable 0, failed 0, allowed 1; "+
		"Valid True Valid; Progressing False UpToDate; Halted False WithinMaxFailed")
	s.nothingBegins("node-5", "node-2", "node-3")
	if n := s.Host("node-1").Reboots(); n != 1 {
		t.Errorf("%d reboots of node-1 before the retry, expected one", n)
	}

	s.lockkeeper("retry", "node-1")
	s.back("node-1", "node-2", "node-3")
	s.policyShows("web", "selected 3, up to date 3, wanting 0, in turn 0, unavailable 0, failed 0, allowed 1; "+
		"Valid True Valid; Progressing False UpToDate; Halted False WithinMaxFailed")
	for name, want := range map[string]int{"node-1": 2, "node-2": 1, "node-3": 1, "node-4": 1, "node-5": 0} {
		if got := s.Host(name).Reboots(); got != want {
			t.Errorf("%s: %d reboots, expected %d", name, got, want)
		}
	}
}
