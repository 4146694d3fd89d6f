package rollout

import (
	"context"
	"testing"
)

func TestFiveHosts(t *testing.T) {
	t.Parallel()
	o := options(t, 5, "rollout: {settle: 1s}")
	o.Fleet.Zones = []string{"a", "b"}
	r := start(t, o)
	if err := r.Fleet.StageUpdate("4.2.0"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*rolled)
	defer cancel()
	if err := r.Fleet.WaitUpdated(ctx, "4.2.0"); err != nil {
		t.Fatal(err)
	}
	report := verdict(t, r)
	if len(report.Updated) != 5 || report.Reboots != 5 || report.MaxDisturbed != 1 {
		t.Errorf("%s, expected 5 of 5, 5 reboots, at most 1 disrupted at once", report.Summary(5))
	}
}
