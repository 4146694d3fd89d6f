package policy

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Defaults is a spec with what the API server writes into one that says
// nothing: the schema's defaults, which a test holds against it. Every field
// stands at its place, so that no default is hidden in code that reads it.
func Defaults() v1alpha1.DisruptionPolicySpec {
	minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	return v1alpha1.DisruptionPolicySpec{
		Mode: v1alpha1.PolicyModeAct,
		Rollout: v1alpha1.RolloutSpec{
			MaxUnavailable: intstr.FromInt32(1), MaxTurnsPerDay: 6,
			Order:  []v1alpha1.OrderKey{v1alpha1.OrderLastTurn, v1alpha1.OrderZone, v1alpha1.OrderOldestBoot},
			Settle: minutes(1), Backoff: minutes(1), BackoffMax: minutes(60),
			ExpectedDuration: minutes(15), OnClose: v1alpha1.OnCloseFinish,
		},
		Drain: v1alpha1.DrainSpec{Timeout: minutes(60), OnTimeout: v1alpha1.OnTimeoutAbort},
		Timeouts: v1alpha1.PolicyTimeouts{
			Seen: minutes(2), HostHooks: minutes(30), Rebooting: minutes(30), Applying: minutes(15), Uncordoning: minutes(5),
		},
	}
}

// Default is the policy of a spec that says nothing: one node at a time, no
// hooks. It is for tools and tests that have no cluster.
func Default() Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: Defaults()}
	obj.Name = "built-in"
	return Compile(obj, func(string) (*time.Location, error) { return time.UTC, nil })
}
