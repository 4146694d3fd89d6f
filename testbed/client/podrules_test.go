package client

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
)

// TestPodRules drains a node by a policy that waits for pods without a controller and leaves pods with emptyDir data: the
// drain ends when a user has deleted the former, and the latter stay.
func TestPodRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pod-rules")
	owned := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Job", Name: "j", UID: "j", Controller: new(true)}}
	}
	data := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	w.create(w.pod("bare"), w.pod("cache", owned, data), w.pod("web", owned))
	var wire drainWire
	r := w.drain(w.host(&wire), func(d *drain.Drainer) {
		d.Policy = drain.Selecting(v1alpha1.PodRules{Unmanaged: v1alpha1.PodBlock, EmptyDir: v1alpha1.PodSkip})
	})
	r.blocked("bare", drain.Unmanaged, "drain.unmanaged: Block")
	w.pods("without web", func(now []*corev1.Pod) bool { return len(now) == 2 })
	if err := w.admin.CoreV1().Pods(w.space).Delete(t.Context(), "bare", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.drained()
	if left := w.names(); !slices.Equal(left, []string{"cache"}) {
		t.Errorf("left: %v", left)
	}
	if n := wire.count(kindEvict); n != 1 {
		t.Errorf("%d evictions, expected that of web alone", n)
	}
}
