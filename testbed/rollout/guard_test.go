package rollout

import (
	"context"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

const guardMessage = "this machine is guarded"

// guard makes the API server refuse that a node leaves idle, and returns when it does. lift removes the guard.
func (s *scene) guard(name string) (lift func()) {
	s.T.Helper()
	const policy = "rollout-guard"
	client := s.ControlPlane.Client().AdmissionregistrationV1()
	_, err := client.ValidatingAdmissionPolicies().Create(s.Within(rig.Soon), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
				},
			}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "guarded", Expression: fmt.Sprintf("object.metadata.name == %q", name)}},
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("object.metadata.?labels[?%q].orValue(%q) == %q", v1alpha1.LabelState, v1alpha1.StateIdle, v1alpha1.StateIdle),
				Message:    guardMessage,
			}},
		},
	}, metav1.CreateOptions{})
	s.Must(err)
	remove := func() {
		// This cannot use s.Within: the context of a test is done when its cleanups run.
		ctx, cancel := context.WithTimeout(context.Background(), rig.Soon)
		defer cancel()
		_ = client.ValidatingAdmissionPolicyBindings().Delete(ctx, policy, metav1.DeleteOptions{})
		_ = client.ValidatingAdmissionPolicies().Delete(ctx, policy, metav1.DeleteOptions{})
	}
	s.T.Cleanup(remove)
	_, err = client.ValidatingAdmissionPolicyBindings().Create(s.Within(rig.Soon), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	s.Must(err)
	// The probe acts as the coordinator, because lockkeeper's own policies refuse this write to everyone else.
	leader, err := s.ControlPlane.NodeWriter(name, v1alpha1.LabelState)
	s.Must(err)
	s.Must(s.ControlPlane.WaitRefused(s.Within(rig.Soon), guardMessage, func(ctx context.Context) error {
		_, err := leader.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"draining"}}}`, v1alpha1.LabelState),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}))
	return remove
}

// TestGuardedNode has an admission policy refuse the grant for the first node of the queue. The node is held with the
// server's message and does not delay other nodes. When the guard is gone it gets its turn.
func TestGuardedNode(t *testing.T) {
	t.Parallel()
	const guarded = "node-1"
	s := play(t, 3, 1, "rollout: {settle: 200ms}", func(o *rig.Options) { o.Fleet.Zones = []string{"a", "b", "c"} })
	for _, name := range []string{guarded, "node-2", "node-3"} {
		s.forget(name)
	}
	s.Until(guarded, rig.Soon, "to be idle", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
	lift := s.guard(guarded)
	s.stage(guarded, "node-2", "node-3")
	s.Held(guarded, v1alpha1.ReasonForbidden)
	s.updated("node-2", "node-3")
	if n := s.Now(guarded); n.State != v1alpha1.StateIdle || n.Unschedulable {
		t.Errorf("the guarded node is %s, unschedulable %t", n.State, n.Unschedulable)
	}
	lift()
	s.updated(guarded)
	s.reboots(guarded, 1)
	s.Until(guarded, rig.Soon, "not to be held", func(n *turn.Node) bool { return n.Held == v1alpha1.ReasonNone })
}
