package fullnode

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestShapes(t *testing.T) {
	seen := map[string]bool{}
	for i := range 300_000 {
		if name := short(i); seen[name] || len(name) > 4 {
			t.Fatalf("short(%d) is %q", i, name)
		} else {
			seen[name] = true
		}
	}
	for _, s := range Shapes(map[string]string{"hooks": "hook.lockkeeper.dev/"}) {
		var n corev1.Node
		s.Fill(&n)
		if n.Size() > MaxSize {
			t.Errorf("%s: %d bytes", s.Name, n.Size())
		}
		t.Logf("%-18s %7d bytes, %6d labels, %5d annotations, %5d managers, %5d images", s.Name, n.Size(), len(n.Labels), len(n.Annotations), len(n.ManagedFields), len(n.Status.Images))
	}
}
