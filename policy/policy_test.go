package policy

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestDefault holds the built-in policy against DESIGN sections 3 and 6.
func TestDefault(t *testing.T) {
	p := Default()
	if err := p.Validate(); err != nil {
		t.Errorf("the built-in policy is invalid: %v", err)
	}
	minute := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	want := v1alpha1.Terms{
		Seen: minute(2), Draining: minute(60), DrainTimeout: v1alpha1.OnTimeoutAbort, Rebooting: minute(30),
		Applying: minute(15), HostHooks: minute(30), Uncordoning: minute(5),
	}
	if got := v1alpha1.FormatRecord(p.Terms); got != v1alpha1.FormatRecord(want) {
		t.Errorf("terms %s, expected %s", got, v1alpha1.FormatRecord(want))
	}
	if p.MaxUnavailable != 1 || p.MaxFailed != 0 || p.Settle != time.Minute || p.Backoff != time.Minute || p.BackoffMax != time.Hour || p.Paused {
		t.Errorf("%+v", p)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	hook := func(name string, d time.Duration, on v1alpha1.OnTimeout) []v1alpha1.Hook {
		return []v1alpha1.Hook{{Name: name, Timeout: metav1.Duration{Duration: d}, OnTimeout: on}}
	}
	for name, c := range map[string]struct {
		change func(*Policy)
		want   string // part of the error; "" is none
	}{
		"zero budget":                        {func(p *Policy) { p.MaxUnavailable = 0 }, "max_unavailable"},
		"huge budget":                        {func(p *Policy) { p.MaxUnavailable = 10001 }, "max_unavailable"},
		"negative failures":                  {func(p *Policy) { p.MaxFailed = -1 }, "max_failed"},
		"no settle":                          {func(p *Policy) { p.Settle = 0 }, ""},
		"negative settle":                    {func(p *Policy) { p.Settle = -1 }, "settle"},
		"long settle":                        {func(p *Policy) { p.Settle = 25 * time.Hour }, "settle"},
		"no backoff":                         {func(p *Policy) { p.Backoff = 0 }, "backoff"},
		"backoff over its max":               {func(p *Policy) { p.Backoff = 2 * time.Hour }, "backoff_max"},
		"no time to be seen":                 {func(p *Policy) { p.Terms.Seen.Duration = 0 }, "seen"},
		"no time to drain":                   {func(p *Policy) { p.Terms.Draining.Duration = 0 }, "draining"},
		"no time to reboot":                  {func(p *Policy) { p.Terms.Rebooting.Duration = 0 }, "rebooting"},
		"no time to apply":                   {func(p *Policy) { p.Terms.Applying.Duration = 0 }, "applying"},
		"no time for units":                  {func(p *Policy) { p.Terms.HostHooks.Duration = 0 }, "host_hooks"},
		"no time to uncordon":                {func(p *Policy) { p.Terms.Uncordoning.Duration = 0 }, "uncordoning"},
		"a drain continues":                  {func(p *Policy) { p.Terms.DrainTimeout = v1alpha1.OnTimeoutContinue }, "drain_on_timeout"},
		"a drain waits":                      {func(p *Policy) { p.Terms.DrainTimeout = v1alpha1.OnTimeoutWait }, ""},
		"a hook":                             {func(p *Policy) { p.Terms.BeforeDrain = hook("lb", time.Minute, v1alpha1.OnTimeoutAbort) }, ""},
		"a nameless hook":                    {func(p *Policy) { p.Terms.BeforeDrain = hook("", time.Minute, v1alpha1.OnTimeoutAbort) }, "hooks of before-drain"},
		"a hasty hook":                       {func(p *Policy) { p.Terms.BeforeReboot = hook("lb", 0, v1alpha1.OnTimeoutAbort) }, "timeout"},
		"a hook that aborts what is aborted": {func(p *Policy) { p.Terms.BeforeUncordon = hook("lb", time.Minute, v1alpha1.OnTimeoutAbort) }, "not possible in before-uncordon"},
		"a hook that does nonsense":          {func(p *Policy) { p.Terms.BeforeDrain = hook("lb", time.Minute, "Pray") }, "on_timeout"},
		"a hook in two stages": {func(p *Policy) {
			p.Terms.BeforeDrain = hook("lb", time.Minute, v1alpha1.OnTimeoutWait)
			p.Terms.BeforeUncordon = hook("lb", time.Minute, v1alpha1.OnTimeoutWait)
		}, "one stage only"},
	} {
		p := Default()
		c.change(&p)
		err := p.Validate()
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, expected one about %q", name, err, c.want)
		}
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		changes []v1alpha1.Change
		wants   v1alpha1.Wants
		drains  bool
	}{
		{nil, v1alpha1.WantsNothing, false},
		{[]v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}}, v1alpha1.WantsReboot, true},
		{[]v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}}, v1alpha1.WantsReboot, true},
		{[]v1alpha1.Change{{Source: "Weather"}}, v1alpha1.WantsReboot, true}, // unmatched means reboot
	} {
		if wants, drains := Plan(c.changes); wants != c.wants || drains != c.drains {
			t.Errorf("%v: %s, drains %t", c.changes, wants, drains)
		}
	}
}
