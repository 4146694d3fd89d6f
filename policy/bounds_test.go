package policy

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestBounds: each field of a policy accepts the ends of its range and nothing beyond them.
func TestBounds(t *testing.T) {
	type spec = v1alpha1.DisruptionPolicySpec
	const week = 168 * time.Hour
	for field, c := range map[string]struct {
		low, high time.Duration // or a number
		set       func(*spec, time.Duration)
	}{
		"spec.priority":               {-999, 1000, func(s *spec, n time.Duration) { s.Priority = int32(n) }},
		"spec.rollout.maxFailed":      {0, 10000, func(s *spec, n time.Duration) { s.Rollout.MaxFailed = int32(n) }},
		"spec.rollout.maxTurnsPerDay": {1, 48, func(s *spec, n time.Duration) { s.Rollout.MaxTurnsPerDay = int32(n) }},
		"spec.rollout.maxUnavailable": {1, 10000, func(s *spec, n time.Duration) { s.Rollout.MaxUnavailable = intstr.FromInt32(int32(n)) }},
		"spec.rollout.settle":         {0, 24 * time.Hour, func(s *spec, d time.Duration) { s.Rollout.Settle.Duration = d }},
		"spec.rollout.backoff": {time.Second, 24 * time.Hour, func(s *spec, d time.Duration) {
			s.Rollout.Backoff.Duration, s.Rollout.BackoffMax.Duration = d, 24*time.Hour
		}},
		"spec.rollout.backoffMax":       {time.Minute, 24 * time.Hour, func(s *spec, d time.Duration) { s.Rollout.BackoffMax.Duration = d }},
		"spec.rollout.expectedDuration": {time.Minute, 24 * time.Hour, func(s *spec, d time.Duration) { s.Rollout.ExpectedDuration.Duration = d }},
		"spec.drain.blockTimeout":       {time.Minute, week, func(s *spec, d time.Duration) { s.Drain.BlockTimeout = &metav1.Duration{Duration: d} }},
		"spec.drain.loadBalancerDelay":  {0, 10 * time.Minute, func(s *spec, d time.Duration) { s.Drain.LoadBalancerDelay.Duration = d }},
		"spec.drain.timeout":            {time.Second, week, func(s *spec, d time.Duration) { s.Drain.Timeout.Duration = d }},
		"spec.timeouts.seen":            {time.Second, week, func(s *spec, d time.Duration) { s.Timeouts.Seen.Duration = d }},
		"spec.timeouts.hostHooks":       {time.Second, week, func(s *spec, d time.Duration) { s.Timeouts.HostHooks.Duration = d }},
		"spec.timeouts.rebooting":       {time.Second, week, func(s *spec, d time.Duration) { s.Timeouts.Rebooting.Duration = d }},
		"spec.timeouts.applying":        {time.Second, week, func(s *spec, d time.Duration) { s.Timeouts.Applying.Duration = d }},
		"spec.timeouts.uncordoning":     {time.Second, week, func(s *spec, d time.Duration) { s.Timeouts.Uncordoning.Duration = d }},
		"spec.hooks.beforeDrain[0].timeout": {time.Second, week, func(s *spec, d time.Duration) {
			s.Hooks.BeforeDrain = []v1alpha1.HookSpec{{Name: "lb", Timeout: metav1.Duration{Duration: d}, OnTimeout: v1alpha1.OnTimeoutWait}}
		}},
		"spec.rollout.windows[0].duration": {10 * time.Minute, 24 * time.Hour, func(s *spec, d time.Duration) {
			s.Rollout.ExpectedDuration.Duration = 10 * time.Minute
			s.Rollout.Windows = []v1alpha1.Window{{Start: "01:00", Duration: metav1.Duration{Duration: d}, TimeZone: "UTC"}}
		}},
	} {
		for value, valid := range map[time.Duration]bool{c.low - 1: false, c.low: true, c.high: true, c.high + 1: false} {
			s := v1alpha1.DefaultPolicySpec()
			c.set(&s, value)
			problems := compile(s).Problems
			if valid && len(problems) > 0 || !valid && (len(problems) != 1 || problems[0].Field != field) {
				t.Errorf("%s=%v (%d): problems %v, expected it to be valid: %t", field, value, value, problems, valid)
			}
		}
	}
}

// TestLowestPriority: only the default policy has the lowest priority.
func TestLowestPriority(t *testing.T) {
	obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	for name, valid := range map[string]bool{v1alpha1.DefaultPolicyName: true, "p": false} {
		obj.Name, obj.Spec.Priority = name, -1000
		if problems := Compile(obj, time.LoadLocation).Problems; (len(problems) == 0) != valid {
			t.Errorf("%s with the priority -1000: %v", name, problems)
		}
	}
}

// TestWindowAndExpectedDuration: a window has to be as long as a turn. One that is shorter than any window may be has one problem.
func TestWindowAndExpectedDuration(t *testing.T) {
	for length, want := range map[time.Duration]string{
		15 * time.Minute:   "",
		15*time.Minute - 1: "expected 15m0s or more",
		10 * time.Minute:   "expected 15m0s or more",
		10*time.Minute - 1: "expected 10m to 24h",
	} {
		s := v1alpha1.DefaultPolicySpec()
		s.Rollout.Windows = []v1alpha1.Window{{Start: "01:00", Duration: metav1.Duration{Duration: length}, TimeZone: "UTC"}}
		problems := compile(s).Problems
		if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Text, want)) {
			t.Errorf("a window of %v: %v, expected %q", length, problems, want)
		}
	}
}

// TestTermsAtTheLimit: the terms of a policy may take 16 KiB in a grant.
func TestTermsAtTheLimit(t *testing.T) {
	for over, valid := range map[int]bool{0: true, 1: false} {
		s := v1alpha1.DefaultPolicySpec()
		selector := func(length int) metav1.LabelSelector {
			return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: values(length)}}}
		}
		s.Drain.Skip = []v1alpha1.PodSelector{{Selector: selector(1)}}
		size := len(v1alpha1.FormatRecord(compile(s).Terms))
		s.Drain.Skip[0].Selector = selector(1 + 16384 - size + over)
		p := compile(s)
		if got := len(v1alpha1.FormatRecord(p.Terms)); got != 16384+over || (len(p.Problems) == 0) != valid {
			t.Errorf("terms of %d bytes: %v", got, p.Problems)
		}
	}
}

// values returns values of labels that take length bytes more in JSON than the quotes around the first one.
func values(length int) []string {
	all := []string{""}
	for len(all[0])+60 < length {
		all = append(all, strings.Repeat("x", 47)) // 50 with its quotes and comma
		length -= 50
	}
	all[0] = strings.Repeat("x", length)
	return all
}

// TestLimits: a limit is a number or a share, and is written as it was read.
func TestLimits(t *testing.T) {
	for text, c := range map[string]struct {
		value intstr.IntOrString
		valid bool
	}{
		"3": {intstr.FromInt32(3), true}, "1%": {intstr.FromString("1%"), true}, "100%": {intstr.FromString("100%"), true},
		"0%": {intstr.FromString("0%"), false}, "101%": {intstr.FromString("101%"), false},
	} {
		l, err := parseLimit(c.value)
		if (err == nil) != c.valid || c.valid && l.String() != text {
			t.Errorf("%s: %s, %v", text, l, err)
		}
	}
	if got := (Limit{}).String(); got != "0" {
		t.Errorf("the zero Limit: %s", got)
	}
}

// TestWindowsOfAPolicy: a policy has its valid windows.
func TestWindowsOfAPolicy(t *testing.T) {
	s := v1alpha1.DefaultPolicySpec()
	for _, start := range []string{"01:00", "25:00", "02:30"} {
		s.Rollout.Windows = append(s.Rollout.Windows, v1alpha1.Window{Start: start, Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "UTC"})
	}
	if p := compile(s); len(p.Problems) != 1 || len(p.Windows) != 2 || p.Windows[0].Hour != 1 || p.Windows[1].Minute != 30 {
		t.Errorf("windows %v, problems %v", p.Windows, p.Problems)
	}
}

// TestUnescape: an escape may be the end of a name. What is not an escape stays as it is.
func TestUnescape(t *testing.T) {
	for unit, want := range map[string]string{
		`a\x2d`: "a-", `\x2d\x2eb`: "-.b", `a\x2`: `a\x2`, `a\xzz`: `a\xzz`, `a\`: `a\`, `a-b`: "a-b", `\y2d0`: `\y2d0`,
	} {
		if got := unescape(unit); got != want {
			t.Errorf("%s: %s, expected %s", unit, got, want)
		}
	}
}

// TestValidateUnit: which names of units a policy may have.
func TestValidateUnit(t *testing.T) {
	const noType, long, characters, template = "no type of unit at its end", "longer than 255 bytes", "characters that a unit's name cannot hold", "a template; name an instance of it"
	for name, want := range map[string]string{
		"a.service": "", "a.b.timer": "", "getty@tty1.service": "", `a\x2db.mount`: "",
		"": noType, "a": noType, ".service": noType, "service": noType, "a.conf": noType, "a.": noType, "a.service.d": noType,
		"a@.service": template, "@a.service": template, "/a.service": characters, "a b.service": characters, "é.service": characters,
		strings.Repeat("a", 255-len(".service")) + ".service": "", strings.Repeat("a", 256-len(".service")) + ".service": long,
	} {
		if got := ValidateUnit(name); got != want {
			t.Errorf("%.20q: %q, expected %q", name, got, want)
		}
	}
	for unit, want := range map[string]string{"rescue@x.service": "rescue.service", "a.service": "a.service", "a@b@c.d.service": "a.service"} {
		if got := withoutInstance(unit); got != want {
			t.Errorf("%s without its instance: %s, expected %s", unit, got, want)
		}
	}
}

func TestNamed(t *testing.T) {
	s := NewSet(Policy{Name: "a"}, Policy{Name: "b"})
	if p := s.Named("b"); p == nil || p.Name != "b" || s.Named("c") != nil {
		t.Errorf("b is %v, c is %v", p, s.Named("c"))
	}
}
