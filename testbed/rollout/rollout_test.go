package rollout

import (
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/rig"
)

func TestFiveHosts(t *testing.T) {
	t.Parallel()
	o := options(5, "rollout: {settle: 1s}")
	o.Fleet.Zones = []string{"a", "b"}
	s := rig.Play(t, pool.Take(t), o)
	s.Must(s.Fleet.StageUpdate(newVersion))
	s.Must(s.Fleet.WaitUpdated(s.Within(2*rig.Rolled), newVersion))
	report := s.Verdict()
	if len(report.Updated) != 5 || report.Reboots != 5 || report.MaxDisturbed != 1 {
		t.Errorf("%s, expected 5 of 5, 5 reboots, at most 1 disrupted at once", report.Summary(5))
	}
}
