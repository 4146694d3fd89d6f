package rollout

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// TestNoPolicies deletes all policies, and later their CRD, while a node waits for a hook in its turn. The turn must
// continue with the terms in its grant and end well, and no other turn may begin. When the policies exist again, the
// other nodes roll.
func TestNoPolicies(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	s := playPools(t, 1, hostPool{name: "web", hosts: 4, budget: 1, policy: web}, spare)
	const spareNode = "node-5"
	s.stage("node-1")
	s.Reaches("node-1", v1alpha1.StateBeforeReboot)
	s.stage("node-2", "node-3", "node-4")
	s.heldIdle(v1alpha1.ReasonBudget, "node-2", "node-3", "node-4")

	for _, name := range []string{v1alpha1.DefaultPolicyName, "web"} {
		s.Must(s.ControlPlane.DeletePolicy(s.Within(rig.Soon), name))
	}
	s.heldIdle(v1alpha1.ReasonNoPolicy, "node-2", "node-3", "node-4")
	s.lockkeeper("confirm", "node-1", "check")
	s.back("node-1")
	s.nothingBegins(spareNode, "node-2", "node-3", "node-4")

	s.policy("web", web)
	next := s.inTurn(v1alpha1.StateBeforeReboot, "node-2", "node-3", "node-4")
	rest := without(next, "node-2", "node-3", "node-4")
	s.heldIdle(v1alpha1.ReasonBudget, rest...)

	s.deleteDefinition()
	s.heldIdle(v1alpha1.ReasonNoPolicy, rest...)
	s.lockkeeper("confirm", next, "check")
	s.back(next)
	s.nothingBegins(spareNode, rest...)

	s.Must(s.ControlPlane.ApplyLockkeeper(s.Within(rig.Soon)))
	s.policy("web", webUnhooked)
	s.back(rest...)
	for _, h := range s.Fleet.Hosts {
		want := 1
		if h.Name() == spareNode {
			want = 0
		}
		if got := h.Reboots(); got != want {
			t.Errorf("%s: %d reboots, expected %d", h.Name(), got, want)
		}
	}
}

// inTurn waits until one of the nodes is in the state, and returns its name.
func (s *scene) inTurn(state v1alpha1.State, names ...string) (found string) {
	s.T.Helper()
	s.Eventually("one of "+strings.Join(names, ", ")+" to be "+string(state), func(ctx context.Context) (bool, error) {
		list, err := s.ControlPlane.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var saw strings.Builder
		for _, n := range list.Items {
			now := v1alpha1.State(n.Labels[v1alpha1.LabelState])
			for _, name := range names {
				if n.Name == name && now == state {
					found = name
				}
			}
			saw.WriteString(n.Name + " " + string(now) + "\n")
		}
		return found != "", errors.New(saw.String())
	})
	return found
}

func without(name string, names ...string) (others []string) {
	for _, n := range names {
		if n != name {
			others = append(others, n)
		}
	}
	return others
}

// deleteDefinition deletes the CustomResourceDefinition of policies, and with it all policies.
func (s *scene) deleteDefinition() {
	s.T.Helper()
	definitions := s.dynamic().Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := v1alpha1.PolicyResource.GroupResource().String()
	s.Must(definitions.Delete(s.Within(rig.Soon), name, metav1.DeleteOptions{}))
	s.Eventually("the CRD of policies to be gone", func(ctx context.Context) (bool, error) {
		_, err := definitions.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), errors.New("the CRD still exists")
	})
}
