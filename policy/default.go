package policy

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Defaults returns a spec with the defaults of the schema, as the API server fills them
// into an empty spec. A test compares the two. All defaults are here, so that no code that
// reads a spec hides one.
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
		Drain: v1alpha1.DrainSpec{
			Timeout: minutes(60), OnTimeout: v1alpha1.OnTimeoutAbort, OnBlockTimeout: v1alpha1.OnBlockTimeoutHold,
			PodRules:   v1alpha1.PodRules{Unmanaged: v1alpha1.PodEvict, EmptyDir: v1alpha1.PodEvict},
			Exclusions: v1alpha1.Exclusions{LoadBalancerDelay: metav1.Duration{Duration: 30 * time.Second}},
		},
		Timeouts: v1alpha1.PolicyTimeouts{
			Seen: minutes(2), HostHooks: minutes(30), Rebooting: minutes(30), Applying: minutes(15), Uncordoning: minutes(5),
		},
	}
}

// Default returns the policy of an empty spec: one node at a time, no hooks. It is for
// tools and tests without a cluster.
func Default() Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: Defaults()}
	obj.Name = "built-in"
	return Compile(obj, func(string) (*time.Location, error) { return time.UTC, nil })
}
