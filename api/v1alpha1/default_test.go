package v1alpha1

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// TestDefaultTimes has the defaults as docs/policy.md explains them.
func TestDefaultTimes(t *testing.T) {
	s := DefaultPolicySpec()
	for name, c := range map[string]struct{ got, want time.Duration }{
		"settle":            {s.Rollout.Settle.Duration, time.Minute},
		"backoffMax":        {s.Rollout.BackoffMax.Duration, time.Hour},
		"drain":             {s.Drain.Timeout.Duration, time.Hour},
		"loadBalancerDelay": {s.Drain.LoadBalancerDelay.Duration, 30 * time.Second},
		"seen":              {s.Timeouts.Seen.Duration, 2 * time.Minute},
		"longest delay":     {MaxLoadBalancerDelay, 10 * time.Minute},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, expected %v", name, c.got, c.want)
		}
	}
}

// A field that the API server's schema lacks has its default; one that is there stands, also a zero.
func TestSpecOfOlderSchema(t *testing.T) {
	for text, expect := range map[string]func(*DisruptionPolicySpec){
		`{}`:                                  func(*DisruptionPolicySpec) {},
		`{"next":"x","rollout":{"next":"x"}}`: func(*DisruptionPolicySpec) {},
		`{"rollout":{"settle":"0s"},"drain":{"timeout":"2h"}}`: func(s *DisruptionPolicySpec) {
			s.Rollout.Settle.Duration, s.Drain.Timeout.Duration = 0, 2*time.Hour
		},
		`{"rollout":{"order":["Zone"]}}`: func(s *DisruptionPolicySpec) { s.Rollout.Order = []OrderKey{OrderZone} },
	} {
		var p DisruptionPolicy
		if err := json.Unmarshal([]byte(`{"spec":`+text+`}`), &p); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		want := DefaultPolicySpec()
		expect(&want)
		if !reflect.DeepEqual(p.Spec, want) {
			t.Errorf("%s is\n%+v, expected\n%+v", text, p.Spec, want)
		}
	}
	if err := new(DisruptionPolicySpec).UnmarshalJSON([]byte(`{"mode":1}`)); err == nil {
		t.Error("a mode that is a number has no error")
	}
}
