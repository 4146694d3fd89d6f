package drain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestSelecting checks the verdicts of selectors about single pods: blocking takes precedence over skipping.
func TestSelecting(t *testing.T) {
	selects := func(namespace, app string) []v1alpha1.PodSelector {
		s := v1alpha1.PodSelector{Namespace: namespace}
		if app != "" {
			s.Selector.MatchLabels = map[string]string{"app": app}
		}
		return []v1alpha1.PodSelector{s}
	}
	evict := Verdict{Evict, Unmanaged}
	for name, c := range map[string]struct {
		skip, block []v1alpha1.PodSelector
		want        Verdict
	}{
		"others are skipped":    {selects("", "web"), nil, evict},
		"skipped by label":      {selects("", "db"), nil, Verdict{Leave, SkippedByPolicy}},
		"skipped by namespace":  {selects("shop", ""), nil, Verdict{Leave, SkippedByPolicy}},
		"in another namespace":  {selects("bank", "db"), nil, evict},
		"blocked":               {nil, selects("shop", "db"), Verdict{Block, BlockedByPolicy}},
		"in both":               {selects("", "db"), selects("", "db"), Verdict{Block, BlockedByPolicy}},
		"the second of several": {append(selects("", "web"), selects("", "db")...), nil, Verdict{Leave, SkippedByPolicy}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"app": "db"}}}
		if got := Selecting(c.block, c.skip).Judge(pod); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
		pod.Status.Phase = corev1.PodSucceeded
		if got, want := Selecting(c.block, c.skip).Judge(pod), (Verdict{Leave, Finished}); got != want {
			t.Errorf("%s, with a finished pod: %v, expected %v", name, got, want)
		}
	}
	if Selecting(nil, nil) != nil || Selecting(nil) != nil || Selecting(nil, selects("", "db"), nil) != nil {
		t.Error("empty selectors give a verdict")
	}
	// A pod is skipped only if every list selects it.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"app": "db"}}}
	if got, want := Selecting(nil, selects("", "db"), selects("shop", "")).Judge(pod), (Verdict{Leave, SkippedByPolicy}); got != want {
		t.Errorf("skipped by both: %v, expected %v", got, want)
	}
	if got := Selecting(nil, selects("", "db"), selects("bank", "")).Judge(pod); got != evict {
		t.Errorf("skipped by one of two: %v, expected %v", got, evict)
	}
	if got, want := Selecting(selects("", "db"), nil).Judge(pod), (Verdict{Block, BlockedByPolicy}); got != want {
		t.Errorf("blocked, and not skipped: %v, expected %v", got, want)
	}
}
