package simulate

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// large is a fleet with as many groups as policies, all alike.
func large(nodes, policies int) string {
	var b strings.Builder
	b.WriteString("start: 2026-03-02T08:00:00Z\nseed: 7\nresolution: 4m\nnodes:\n")
	for i := range policies {
		fmt.Fprintf(&b, "- {name: team%d, count: %d, labels: {team: t%d}, zones: [a, b, c], bootAge: 24h..2160h,\n"+
			"   takes: {drain: 4m..12m, reboot: 4m..8m}, changes: [{os: 4.2.0}]}\n", i, nodes/policies, i)
	}
	for i := range policies {
		fmt.Fprintf(&b, "---\napiVersion: lockkeeper.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: team%d}\nspec:\n"+
			"  nodeSelector: {matchLabels: {team: t%d}}\n  rollout: {maxUnavailable: %d%%, maxUnavailableTotal: 18%%, settle: 0s}\n", i, i, 16+i%10)
	}
	return b.String()
}

// TestTenThousand rolls ten thousand nodes in forty policies. It checks the number of disrupted nodes against limits
// that are calculated by hand from the percentages.
func TestTenThousand(t *testing.T) {
	began := time.Now()
	r := roll(t, large(10_000, 40))
	if !r.Done() || r.All.UpToDate != 10_000 {
		t.Fatalf("%d of 10000 are up to date:\n%s", r.All.UpToDate, r)
	}
	// 18 % of all is 1,800, less than the sum of the policies' budgets.
	if r.All.Most > 1800 {
		t.Errorf("%d unavailable at once, 1800 allowed in all", r.All.Most)
	}
	for _, p := range r.Policies {
		var i int
		fmt.Sscanf(p.Name, "team%d", &i)
		if most := 250 * (16 + i%10) / 100; p.Most > most {
			t.Errorf("policy %s: %d unavailable at once, %d allowed", p.Name, p.Most, most)
		}
	}
	t.Logf("%d decisions, %d events in %v:\n%s", r.Decisions, r.Events, time.Since(began), r)
}
