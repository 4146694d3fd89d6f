package virtual

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestPools checks that two policies have their turns side by side, each within its own budget, also while one of them is deleted, and that the judge
// knows the budget of each.
func TestPools(t *testing.T) {
	for _, faults := range []string{"", "1m policy for=4m mode=deleted\n"} {
		both := false
		inBubble(t, Options{Hosts: 4, Pool: 2, Workloads: 1, Plan: plan(t, faults), Policy: func(s *v1alpha1.DisruptionPolicySpec) {
			s.Rollout.MaxUnavailable = intstr.FromInt(1)
		}}, func(t *testing.T, f *Fleet) {
			f.Start()
			for _, host := range f.Hosts() {
				f.Stage(host, "2.0.0")
			}
			f.tasks.Go(func() {
				for pause(f.ctx, time.Second) == nil {
					f.mu.Lock()
					n1, n2, n3, n4 := f.nodes["n1"], f.nodes["n2"], f.nodes["n3"], f.nodes["n4"]
					f.mu.Unlock()
					both = both || (n1.Mark || n2.Mark) && (n3.Mark || n4.Mark)
				}
			})
			if why := f.Arrive(2 * time.Hour); why != "" {
				t.Error(why)
			}
		})
		if !both {
			t.Errorf("with the faults %q no node of the one pool was cordoned next to one of the other", faults)
		}
	}
}
