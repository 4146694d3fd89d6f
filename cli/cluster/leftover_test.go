package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestLeftover checks what leave removes from a Node that no host gives back: what the mark names goes with it, in one write, and nothing of others.
func TestLeftover(t *testing.T) {
	const lb, scale = "node.kubernetes.io/exclude-from-external-load-balancers", "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	for name, c := range map[string]struct {
		mark      string
		scale     string
		removes   string
		uncordons bool
	}{
		"all of it":            {"t1/2026-01-01T12:00:00Z/Cordon,LoadBalancers,ScaleDown", "true", scale + " lockkeeper.dev/cordon " + lb, true},
		"changed by an admin":  {"t1/2026-01-01T12:00:00Z/Cordon,LoadBalancers,ScaleDown", "false", "lockkeeper.dev/cordon " + lb, true},
		"only the cordon":      {"t1/2026-01-01T12:00:00Z/Cordon", "true", "lockkeeper.dev/cordon", true},
		"another one's cordon": {"t1/2026-01-01T12:00:00Z/ScaleDown", "true", scale + " lockkeeper.dev/cordon", false},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1", Labels: map[string]string{lb: ""},
			Annotations: map[string]string{v1alpha1.AnnotationCordon: c.mark, scale: c.scale}}}
		n.Spec.Unschedulable = true
		p := leftover(n)
		got := strings.Join(append(slices.Sorted(maps.Keys(p.Annotations)), slices.Sorted(maps.Keys(p.Labels))...), " ")
		if got != c.removes || (p.Unschedulable != nil) != c.uncordons {
			t.Errorf("%s: removes %q, uncordons %t", name, got, p.Unschedulable != nil)
		}
	}
}
