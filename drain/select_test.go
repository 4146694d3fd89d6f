package drain

import (
	"strings"
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
		if got := Selecting(v1alpha1.PodRules{Block: c.block, Skip: c.skip}).Judge(pod); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
		pod.Status.Phase = corev1.PodSucceeded
		if got, want := Selecting(v1alpha1.PodRules{Block: c.block, Skip: c.skip}).Judge(pod), (Verdict{Leave, Finished}); got != want {
			t.Errorf("%s, with a finished pod: %v, expected %v", name, got, want)
		}
	}
	skips := func(namespace, app string) v1alpha1.PodRules { return v1alpha1.PodRules{Skip: selects(namespace, app)} }
	if Selecting() != nil || Selecting(v1alpha1.PodRules{}, v1alpha1.PodRules{Unmanaged: v1alpha1.PodEvict, EmptyDir: v1alpha1.PodEvict}) != nil {
		t.Error("rules that say nothing give a verdict")
	}
	// A pod is skipped only if all rules skip it.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"app": "db"}}}
	if got, want := Selecting(skips("", "db"), skips("shop", "")).Judge(pod), (Verdict{Leave, SkippedByPolicy}); got != want {
		t.Errorf("skipped by both: %v, expected %v", got, want)
	}
	if got := Selecting(skips("", "db"), skips("bank", "")).Judge(pod); got != evict {
		t.Errorf("skipped by one of two: %v, expected %v", got, evict)
	}
	if got := Selecting(skips("", "db"), v1alpha1.PodRules{}).Judge(pod); got != evict {
		t.Errorf("skipped by one, and the other is empty: %v, expected %v", got, evict)
	}
	if got, want := Selecting(skips("", "db"), v1alpha1.PodRules{Block: selects("", "db")}).Judge(pod), (Verdict{Block, BlockedByPolicy}); got != want {
		t.Errorf("skipped by one, blocked by the other: %v, expected %v", got, want)
	}
}

// TestRulesByKind checks the verdicts on pods that no controller creates again, and on pods with emptyDir volumes.
func TestRulesByKind(t *testing.T) {
	const evict, block, skip = v1alpha1.PodEvict, v1alpha1.PodBlock, v1alpha1.PodSkip
	all := []v1alpha1.PodSelector{{}}
	data := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{}, {VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	claim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
	}
	managed := owned("apps/v1", "ReplicaSet", "u", true)
	for name, c := range map[string]struct {
		rules v1alpha1.PodRules
		pod   *corev1.Pod
		want  Verdict
	}{
		"an unmanaged pod":                   {v1alpha1.PodRules{Unmanaged: evict, EmptyDir: block}, aPod("a"), Verdict{Evict, Unmanaged}},
		"an unmanaged pod blocks":            {v1alpha1.PodRules{Unmanaged: block}, aPod("a"), Verdict{Block, Unmanaged}},
		"an unmanaged pod stays":             {v1alpha1.PodRules{Unmanaged: skip}, aPod("a"), Verdict{Leave, Unmanaged}},
		"a controller's pod":                 {v1alpha1.PodRules{Unmanaged: block}, aPod("a", managed), Verdict{Evict, Managed}},
		"data":                               {v1alpha1.PodRules{Unmanaged: block, EmptyDir: evict}, aPod("a", managed, data), Verdict{Evict, Managed}},
		"data blocks":                        {v1alpha1.PodRules{EmptyDir: block}, aPod("a", managed, data), Verdict{Block, EmptyDir}},
		"data stays":                         {v1alpha1.PodRules{EmptyDir: skip}, aPod("a", managed, data), Verdict{Leave, EmptyDir}},
		"a claim is no emptyDir":             {v1alpha1.PodRules{EmptyDir: skip}, aPod("a", managed, claim), Verdict{Evict, Managed}},
		"blocking comes before skipping":     {v1alpha1.PodRules{Unmanaged: skip, EmptyDir: block}, aPod("a", data), Verdict{Block, EmptyDir}},
		"a selector that blocks comes first": {v1alpha1.PodRules{Unmanaged: skip, Block: all}, aPod("a"), Verdict{Block, BlockedByPolicy}},
		"then one that skips":                {v1alpha1.PodRules{Unmanaged: block, Skip: all}, aPod("a"), Verdict{Leave, SkippedByPolicy}},
		"a terminating pod does not block":   {v1alpha1.PodRules{Unmanaged: block, EmptyDir: block}, aPod("a", data, terminating), Verdict{Wait, Terminating}},
		"nor does it keep a drain waiting":   {v1alpha1.PodRules{Unmanaged: skip}, aPod("a", terminating), Verdict{Leave, Unmanaged}},
		"a DaemonSet's pod stays as before":  {v1alpha1.PodRules{EmptyDir: block}, aPod("a", data, owned("apps/v1", "DaemonSet", "u", true)), Verdict{Leave, DaemonSet}},
		"a finished pod does not block":      {v1alpha1.PodRules{EmptyDir: block}, aPod("a", data, phase(corev1.PodFailed)), Verdict{Leave, Finished}},
	} {
		if got := Selecting(c.rules).Judge(c.pod); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
	// Another set of rules that evicts the pod outvotes one that skips it.
	if got, want := Selecting(v1alpha1.PodRules{Unmanaged: skip}, v1alpha1.PodRules{Unmanaged: evict}).Judge(aPod("a")), (Verdict{Evict, Unmanaged}); got != want {
		t.Errorf("skipped by one: %v, expected %v", got, want)
	}
	s := newSchedule(1, nil)
	for reason, words := range map[Reason]string{BlockedByPolicy: "drain.block", Unmanaged: "drain.unmanaged", EmptyDir: "drain.emptyDir"} {
		s.observe(start, snapshot{synced: true, pods: []facts{factsOf(aPod("a"), Verdict{Block, reason})}})
		if b := s.progress(start).Blockers; len(b) != 1 || b[0].Reason != reason || !strings.Contains(b[0].Message, words) {
			t.Errorf("%s: %+v", reason, b)
		}
		s.observe(start, snapshot{synced: true})
	}
}
