package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

func TestPolicyOfAnEmptyFileIsTheBuiltIn(t *testing.T) {
	got, err := parsePolicy("dir/p.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := policy.Default(); got.Name != "p.toml" || !reflect.DeepEqual(got.Terms, want.Terms) || got.MaxUnavailable != want.MaxUnavailable {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

func TestPolicyKeys(t *testing.T) {
	d := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	got, err := parsePolicy("p.toml", []byte(`
max_unavailable = 3
max_failed = 2
settle = "2s"
backoff = "3s"
backoff_max = "4s"
paused = true
seen = "5s"
draining = "6s"
drain_on_timeout = "Wait"
rebooting = "7s"
applying = "8s"
host_hooks = "9s"
uncordoning = "10s"
[[before_drain]]
name = "a"
timeout = "11s"
on_timeout = "Continue"
[[before_drain]]
name = "b"
[[before_reboot]]
name = "c"
on_timeout = "Wait"
[[before_uncordon]]
name = "d"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Policy{
		Name: "p.toml", MaxUnavailable: policy.Limit{Number: 3}, MaxFailed: 2, Settle: 2 * time.Second, Backoff: 3 * time.Second, BackoffMax: 4 * time.Second, Paused: true,
		Terms: v1alpha1.Terms{
			Seen: d(5 * time.Second), Draining: d(6 * time.Second), DrainTimeout: v1alpha1.OnTimeoutWait, Rebooting: d(7 * time.Second),
			Applying: d(8 * time.Second), HostHooks: d(9 * time.Second), Uncordoning: d(10 * time.Second),
			BeforeDrain: []v1alpha1.Hook{
				{Name: "a", Timeout: d(11 * time.Second), OnTimeout: v1alpha1.OnTimeoutContinue},
				{Name: "b", Timeout: d(30 * time.Minute), OnTimeout: v1alpha1.OnTimeoutAbort},
			},
			BeforeReboot:   []v1alpha1.Hook{{Name: "c", Timeout: d(30 * time.Minute), OnTimeout: v1alpha1.OnTimeoutWait}},
			BeforeUncordon: []v1alpha1.Hook{{Name: "d", Timeout: d(30 * time.Minute), OnTimeout: v1alpha1.OnTimeoutWait}},
		},
		Order: []v1alpha1.OrderKey{v1alpha1.OrderZone, v1alpha1.OrderOldestBoot}, ExpectedDuration: 15 * time.Minute,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

func TestPolicyMistakes(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"settle = \"2s\"\nsetle = \"2s\"\n", "p:2: setle: not a known key, expected a key of a policy"},
		{"[[before_drain]]\nname = \"a\"\ntime_out = \"2s\"\n", "p:3: before_drain.time_out: not a known key, expected a key of a policy"},
		{"\nsettle = \"2\"\n", "p:2: settle: \"2\", expected a duration with its unit, such as \"90s\""},
		{"max_unavailable = 0\n", "p: spec.rollout.maxUnavailable: 0, expected 1 to 10000"},
		{"[[before_uncordon]]\nname = \"a\"\non_timeout = \"Abort\"\n", "p: spec.hooks.beforeUncordon[0].onTimeout: Abort is not possible where a turn that is aborted goes"},
		{"max_unavailable = true\n", "p: toml: line 1 (last key \"max_unavailable\"): incompatible types: TOML value has type bool; destination has type integer"},
		{"a b\n", "p:1: expected '.' or '='"},
	} {
		_, err := parsePolicy("p", []byte(tc.text))
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%q: %v, expected %s", tc.text, err, tc.want)
		}
	}
}
