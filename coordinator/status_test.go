package coordinator

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestStatusPause checks that a changed reason is written at once and a changed count soon, but not every change of a
// mere text, for example the value that a closed gate's query returns.
func TestStatusPause(t *testing.T) {
	said := func(reason, message string, held int32) v1alpha1.DisruptionPolicyStatus {
		return v1alpha1.DisruptionPolicyStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: reason, Message: message}},
			Nodes:      v1alpha1.PolicyNodes{Wanting: held},
		}
	}
	was := said("GateClosed", "errors with 17", 2)
	for name, c := range map[string]struct {
		next v1alpha1.DisruptionPolicyStatus
		want time.Duration
	}{
		"another value": {said("GateClosed", "errors with 18", 2), 10 * time.Minute},
		"another count": {said("GateClosed", "errors with 18", 3), 10 * time.Second},
		"another word":  {said("Window", "closed", 3), time.Second},
		"the first":     {v1alpha1.DisruptionPolicyStatus{}, time.Second},
	} {
		if got := pauseBefore(c.next, was); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
}
