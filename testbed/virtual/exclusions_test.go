package virtual

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestRestoredExclusions checks whose the exclusions are in a store that was set back in a turn: the host's, unless someone has changed them.
func TestRestoredExclusions(t *testing.T) {
	const mark = `{"metadata":{"annotations":{"` + v1alpha1.AnnotationCordon + `":"t1/2000-01-01T00:00:00Z/Cordon,LoadBalancers"},"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":`
	for value, hosts := range map[string]bool{"": true, "theirs": false} {
		synctest.Test(t, func(t *testing.T) {
			f := New(t.TempDir(), Options{Hosts: 1})
			defer f.Close()
			f.Kill("n1")
			patch := []byte(mark + quoted(value, true) + `}}}`)
			if _, err := f.Admin.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			f.Restore(f.Snapshot())
			f.mu.Lock()
			defer f.mu.Unlock()
			id := exclusion{"n1", v1alpha1.ExclusionLoadBalancers}
			if left, is := f.left[id]; f.set[id] != hosts || is == hosts || left != value && is {
				t.Errorf("%q: the host's: %t, expected %t; an admin's: %t", value, f.set[id], hosts, is)
			}
		})
	}
}
