package virtual

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestHasArrived checks which conditions the HostUpdate of a host may have that has arrived.
func TestHasArrived(t *testing.T) {
	failed := &v1alpha1.Last{Turn: "t1", Result: v1alpha1.ResultFailed}
	for _, c := range []struct {
		kind, reason string
		is           metav1.ConditionStatus
		last         *v1alpha1.Last
		retry        string
		want         bool
	}{
		{v1alpha1.ConditionDrained, v1alpha1.ConditionReasonDone, "True", nil, "", true},
		{v1alpha1.ConditionDrained, v1alpha1.ConditionReasonBackedOut, "False", nil, "", true},
		{v1alpha1.ConditionDrained, v1alpha1.ConditionReasonRunning, "False", nil, "", false},
		{v1alpha1.ConditionBlocked, v1alpha1.ConditionReasonNotBlocked, "False", nil, "", true},
		{v1alpha1.ConditionBlocked, "Pod", "True", nil, "", false},
		{v1alpha1.ConditionFailed, v1alpha1.ConditionReasonNotFailed, "False", failed, "", true},
		{v1alpha1.ConditionFailed, "RolledBack", "True", failed, "", true},
		{v1alpha1.ConditionFailed, "RolledBack", "True", failed, "t1", false},
		{v1alpha1.ConditionFailed, "RolledBack", "True", nil, "", false},
		{v1alpha1.ConditionEngineReachable, v1alpha1.ConditionReasonHealthy, "True", nil, "", true},
		{v1alpha1.ConditionClusterReachable, v1alpha1.ConditionReasonUnhealthy, "False", nil, "", false},
	} {
		if is := hasArrived(&metav1.Condition{Type: c.kind, Status: c.is, Reason: c.reason}, c.last, c.retry); is != c.want {
			t.Errorf("%s=%s (%s) after %+v, retry %q: %t, expected %t", c.kind, c.is, c.reason, c.last, c.retry, is, c.want)
		}
	}
}
