package node

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestBlockersResume checks that a blocker keeps its start time over a restart, if the next process finds the same
// blocker within a minute.
func TestBlockersResume(t *testing.T) {
	start := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	since := func(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)) }
	budget := v1alpha1.Blocker{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0"}
	published := budget
	published.Since = since(0)
	for name, c := range map[string]struct {
		published []v1alpha1.Blocker
		after     time.Duration // since the restart
		want      metav1.Time
	}{
		"nothing was published": {nil, time.Second, since(time.Hour + time.Second)},
		"the same":              {[]v1alpha1.Blocker{published}, time.Second, since(0)},
		"another pod": {[]v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-1", Since: since(0)}}, time.Second,
			since(time.Hour + time.Second)},
		"much later":          {[]v1alpha1.Blocker{published}, 2 * time.Minute, since(time.Hour + 2*time.Minute)},
		"published as future": {[]v1alpha1.Blocker{{Kind: budget.Kind, Name: budget.Name, Pod: budget.Pod, Since: since(2 * time.Hour)}}, time.Second, since(time.Hour + time.Second)},
	} {
		restart := start.Add(time.Hour)
		var b blockers
		b.resume(c.published, restart)
		b.list(nil, restart.Add(c.after-time.Millisecond))
		got := b.list([]v1alpha1.Blocker{budget}, restart.Add(c.after))
		if len(got) != 1 || !got[0].Since.Equal(&c.want) {
			t.Errorf("%s: %+v, expected since %v", name, got, c.want)
		}
	}
}
