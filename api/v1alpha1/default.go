package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/json"
)

// DefaultPolicySpec returns a spec with the defaults of the schema, as the API server fills
// them into an empty spec. A test compares the two. All defaults are here, so that no code
// that reads a spec hides one.
func DefaultPolicySpec() DisruptionPolicySpec {
	minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	return DisruptionPolicySpec{
		Mode: PolicyModeAct,
		Rollout: RolloutSpec{
			MaxUnavailable: intstr.FromInt32(1), MaxTurnsPerDay: 6,
			Order:  []OrderKey{OrderLastTurn, OrderZone, OrderOldestBoot},
			Settle: minutes(1), Backoff: minutes(1), BackoffMax: minutes(60),
			ExpectedDuration: minutes(15), OnClose: OnCloseFinish,
		},
		Drain: DrainSpec{
			Timeout: minutes(60), OnTimeout: OnTimeoutAbort, OnBlockTimeout: OnBlockTimeoutHold,
			PodRules:   PodRules{Unmanaged: PodEvict, EmptyDir: PodEvict},
			Exclusions: Exclusions{LoadBalancerDelay: metav1.Duration{Duration: 30 * time.Second}},
		},
		Timeouts: PolicyTimeouts{
			Seen: minutes(2), HostHooks: minutes(30), Rebooting: minutes(30), Applying: minutes(15), Uncordoning: minutes(5),
		},
	}
}

// UnmarshalJSON decodes a spec. Fields that it lacks get the defaults of [DefaultPolicySpec]:
// the API server fills in those that its schema has, and the schema in a cluster may be older
// than this program. Like any decoder of the API server's answers, it ignores unknown fields.
func (s *DisruptionPolicySpec) UnmarshalJSON(data []byte) error {
	type spec DisruptionPolicySpec // without this method
	filled := spec(DefaultPolicySpec())
	if err := json.Unmarshal(data, &filled); err != nil {
		return err
	}
	*s = DisruptionPolicySpec(filled)
	return nil
}
