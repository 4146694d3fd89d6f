package rollout

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestCrashInMidDrain cuts the power of a host while it drains. Whether or not the host comes up updated, its engine is
// IDLE and it wants nothing. The coordinator must back the turn out, without another drain or reboot.
func TestCrashInMidDrain(t *testing.T) {
	t.Parallel()
	for name, updated := range map[string]bool{"comes up updated": true, "comes up as it was": false} {
		t.Run(name, func(t *testing.T) {
			rig.Sample(t, 2)
			t.Parallel()
			const node = "node-2"
			s := play(t, 2, 1, "rollout: {settle: 1s}")
			h := s.Host(node)
			s.forget(node)
			budget := s.block(node)
			s.stage(node)
			s.Commits(node, v1alpha1.StateDraining)
			s.Reports(node, "1 pods to go")
			evicted := s.evictions()

			s.Must(h.Crash(simhost.CrashOptions{ComesUpUpdated: updated}))
			s.ended(node, v1alpha1.ResultCancelled, v1alpha1.ReasonWantGone)
			s.schedulable(node)
			s.reboots(node, 0)
			if got := s.evictions(); got != evicted {
				t.Errorf("%d pods were evicted after the crash", got-evicted)
			}
			if s.marked(node) != 1 {
				t.Errorf("marked %d times, expected once", s.marked(node))
			}
			version, left := newVersion, "4.3.0"
			if !updated {
				version, left = oldVersion, newVersion
			}
			if got := h.Version(); got != version {
				t.Fatalf("the host runs %s, expected %s", got, version)
			}
			// The next update must succeed.
			budget.lift()
			s.Must(h.StageUpdate(left))
			s.ended(node, v1alpha1.ResultDone, "")
			s.reboots(node, 1)
			if got := h.Version(); got != left {
				t.Errorf("the host runs %s, expected %s", got, left)
			}
		})
	}
}
