package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func compile(spec v1alpha1.DisruptionPolicySpec) Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: spec}
	obj.Name = "p"
	return Compile(obj, time.LoadLocation)
}

// TestDefaults holds the defaults against DESIGN sections 3 and 6.
func TestDefaults(t *testing.T) {
	p := compile(v1alpha1.DefaultPolicySpec())
	if len(p.Problems) > 0 {
		t.Errorf("the defaults are invalid: %v", p.Problems)
	}
	minute := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	want := v1alpha1.Terms{
		Seen: minute(2), Draining: minute(60), DrainTimeout: v1alpha1.OnTimeoutAbort, Rebooting: minute(30),
		Applying: minute(15), HostHooks: minute(30), Uncordoning: minute(5),
	}
	if got := v1alpha1.FormatRecord(p.Terms); got != v1alpha1.FormatRecord(want) {
		t.Errorf("terms %s, expected %s", got, v1alpha1.FormatRecord(want))
	}
	if p.MaxUnavailable != (Limit{Number: 1}) || p.MaxUnavailableTotal != nil || p.MaxFailed != 0 || p.Settle != time.Minute ||
		p.Backoff != time.Minute || p.BackoffMax != time.Hour || p.ExpectedDuration != 15*time.Minute || p.Paused || p.Observe {
		t.Errorf("%+v", p)
	}
}

// TestPodRules: what a policy says of pods is in its terms, except for the defaults, and nothing else is accepted.
func TestPodRules(t *testing.T) {
	s := v1alpha1.DefaultPolicySpec()
	s.Drain.Unmanaged, s.Drain.EmptyDir = v1alpha1.PodBlock, v1alpha1.PodSkip
	if p := compile(s); len(p.Problems) > 0 || p.Terms.Unmanaged != v1alpha1.PodBlock || p.Terms.EmptyDir != v1alpha1.PodSkip {
		t.Errorf("%v, %+v", p.Problems, p.Terms.PodRules)
	}
	s.Drain.Unmanaged, s.Drain.EmptyDir = "Delete", "evict"
	want := `spec.drain.unmanaged: "Delete", expected Evict, Block or Skip; spec.drain.emptyDir: "evict", expected Evict, Block or Skip`
	var got []string
	for _, p := range compile(s).Problems {
		got = append(got, p.String())
	}
	if strings.Join(got, "; ") != want {
		t.Errorf("%q, expected %q", got, want)
	}
}

// TestExclusions: the terms have what a turn sets for other programs, and the delay only with the label that it is for. The delay has to
// leave some of the drain's timeout.
func TestExclusions(t *testing.T) {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	all := func(balancers bool, delay int) v1alpha1.Exclusions {
		return v1alpha1.Exclusions{ExcludeFromLoadBalancers: balancers, LoadBalancerDelay: seconds(delay), DisableScaleDown: true, ExcludeFromRemediation: true}
	}
	for name, c := range map[string]struct {
		is, terms v1alpha1.Exclusions
		timeout   int
		problem   string
	}{
		"the default":              {is: v1alpha1.Exclusions{LoadBalancerDelay: seconds(30)}, timeout: 3600},
		"a short drain":            {is: v1alpha1.Exclusions{LoadBalancerDelay: seconds(30)}, timeout: 1},
		"all":                      {all(true, 30), all(true, 30), 3600, ""},
		"only the others":          {all(false, 30), all(false, 0), 3600, ""},
		"no delay":                 {v1alpha1.Exclusions{ExcludeFromLoadBalancers: true}, v1alpha1.Exclusions{ExcludeFromLoadBalancers: true}, 1, ""},
		"a delay of all the drain": {v1alpha1.Exclusions{ExcludeFromLoadBalancers: true, LoadBalancerDelay: seconds(60)}, v1alpha1.Exclusions{ExcludeFromLoadBalancers: true, LoadBalancerDelay: seconds(60)}, 60, "spec.drain.loadBalancerDelay: 1m0s, expected less than spec.drain.timeout, of which it is a part: 1m0s"},
	} {
		s := v1alpha1.DefaultPolicySpec()
		s.Drain.Exclusions, s.Drain.Timeout = c.is, seconds(c.timeout)
		p := compile(s)
		if p.Terms.Exclusions != c.terms {
			t.Errorf("%s: the terms have %+v", name, p.Terms.Exclusions)
		}
		if got := fmt.Sprint(p.Problems); c.problem == "" && len(p.Problems) > 0 || c.problem != "" && got != "["+c.problem+"]" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestRulesOnly: a policy with rulesOnly may have a selector, a priority and rules. Every other field makes it invalid.
func TestRulesOnly(t *testing.T) {
	good := v1alpha1.DefaultPolicySpec()
	good.RulesOnly, good.Priority = true, 7
	good.NodeSelector.MatchLabels = map[string]string{"pool": "web"}
	good.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceRequest, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}}}
	good.Rollout.Windows, good.Drain.Skip = []v1alpha1.Window{}, []v1alpha1.PodSelector{} // the same as absent
	if p := compile(good); len(p.Problems) > 0 || !p.RulesOnly {
		t.Errorf("%v", p.Problems)
	}
	for field, change := range map[string]func(*v1alpha1.DisruptionPolicySpec){
		"mode":     func(s *v1alpha1.DisruptionPolicySpec) { s.Mode = v1alpha1.PolicyModeObserve },
		"paused":   func(s *v1alpha1.DisruptionPolicySpec) { s.Paused = true },
		"rollout":  func(s *v1alpha1.DisruptionPolicySpec) { s.Rollout.MaxUnavailableTotal = new(intstr.FromInt32(1)) },
		"hooks":    func(s *v1alpha1.DisruptionPolicySpec) { s.Hooks.WaitForVolumeDetach = true },
		"drain":    func(s *v1alpha1.DisruptionPolicySpec) { s.Drain.OnTimeout = v1alpha1.OnTimeoutForce },
		"timeouts": func(s *v1alpha1.DisruptionPolicySpec) { s.Timeouts.Seen.Duration = time.Hour },
	} {
		bad := good
		change(&bad)
		want := "spec." + field + ": a policy with rulesOnly adds rules and decides nothing else; leave " + field + " out, or leave rulesOnly out"
		if p := compile(bad); len(p.Problems) != 1 || p.Problems[0].String() != want {
			t.Errorf("%s: %v", field, p.Problems)
		}
		bad.RulesOnly = false
		if p := compile(bad); len(p.Problems) > 0 {
			t.Errorf("%s without rulesOnly: %v", field, p.Problems)
		}
	}
}

func TestCompileNamesTheField(t *testing.T) {
	type spec = v1alpha1.DisruptionPolicySpec
	hook := func(name string, d time.Duration, on v1alpha1.OnTimeout) []v1alpha1.HookSpec {
		return []v1alpha1.HookSpec{{Name: name, Timeout: metav1.Duration{Duration: d}, OnTimeout: on}}
	}
	last := func(name string, on v1alpha1.OnTimeout) []v1alpha1.UncordonHookSpec {
		return []v1alpha1.UncordonHookSpec{{Name: name, Timeout: metav1.Duration{Duration: time.Minute}, OnTimeout: on}}
	}
	window := func(days []v1alpha1.Day, start string, d time.Duration, zone string) []v1alpha1.Window {
		return []v1alpha1.Window{{Days: days, Start: start, Duration: metav1.Duration{Duration: d}, TimeZone: zone}}
	}
	rule := func(r v1alpha1.Rule, actions ...v1alpha1.Action) []v1alpha1.Rule {
		r.Actions = actions
		return []v1alpha1.Rule{r}
	}
	file := v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/x"}
	reboot, none, drain := v1alpha1.Action{Type: v1alpha1.ActionReboot}, v1alpha1.Action{Type: v1alpha1.ActionNone}, v1alpha1.Action{Type: v1alpha1.ActionDrain}
	noDrain := file
	noDrain.Drain = v1alpha1.DrainNever
	for name, c := range map[string]struct {
		change func(*spec)
		want   string // the beginning of the problem; "" is none
	}{
		"zero budget":                        {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromInt32(0) }, "spec.rollout.maxUnavailable: 0, expected 1 to 10000"},
		"huge budget":                        {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromInt32(10001) }, "spec.rollout.maxUnavailable: 10001"},
		"a share":                            {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromString("10%") }, ""},
		"a share of nothing":                 {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromString("0%") }, "spec.rollout.maxUnavailable: \"0%\""},
		"more than all":                      {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromString("101%") }, "spec.rollout.maxUnavailable: \"101%\""},
		"a share with a sign":                {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromString("+5%") }, "spec.rollout.maxUnavailable: \"+5%\""},
		"a number as text":                   {func(s *spec) { s.Rollout.MaxUnavailable = intstr.FromString("5") }, "spec.rollout.maxUnavailable: \"5\""},
		"zero in all":                        {func(s *spec) { s.Rollout.MaxUnavailableTotal = new(intstr.FromInt32(0)) }, "spec.rollout.maxUnavailableTotal: 0"},
		"negative failures":                  {func(s *spec) { s.Rollout.MaxFailed = -1 }, "spec.rollout.maxFailed: -1"},
		"an order by mood":                   {func(s *spec) { s.Rollout.Order = []v1alpha1.OrderKey{"Mood"} }, "spec.rollout.order[0]: \"Mood\""},
		"priority too high":                  {func(s *spec) { s.Priority = 1001 }, "spec.priority: 1001"},
		"a mode that is none":                {func(s *spec) { s.Mode = "Maybe" }, "spec.mode: \"Maybe\""},
		"no settle":                          {func(s *spec) { s.Rollout.Settle.Duration = 0 }, ""},
		"negative settle":                    {func(s *spec) { s.Rollout.Settle.Duration = -1 }, "spec.rollout.settle: -1ns"},
		"long settle":                        {func(s *spec) { s.Rollout.Settle.Duration = 25 * time.Hour }, "spec.rollout.settle: 25h"},
		"no backoff":                         {func(s *spec) { s.Rollout.Backoff.Duration = 0 }, "spec.rollout.backoff: 0s"},
		"backoff over its max":               {func(s *spec) { s.Rollout.Backoff.Duration = 2 * time.Hour }, "spec.rollout.backoffMax: 1h"},
		"a turn in no time":                  {func(s *spec) { s.Rollout.ExpectedDuration.Duration = 0 }, "spec.rollout.expectedDuration: 0s"},
		"a close that is none":               {func(s *spec) { s.Rollout.OnClose = "Slam" }, "spec.rollout.onClose: \"Slam\""},
		"no time to be seen":                 {func(s *spec) { s.Timeouts.Seen.Duration = 0 }, "spec.timeouts.seen: 0s"},
		"no time to drain":                   {func(s *spec) { s.Drain.Timeout.Duration = 0 }, "spec.drain.timeout: 0s"},
		"no time to reboot":                  {func(s *spec) { s.Timeouts.Rebooting.Duration = 0 }, "spec.timeouts.rebooting: 0s"},
		"no time to apply":                   {func(s *spec) { s.Timeouts.Applying.Duration = 0 }, "spec.timeouts.applying: 0s"},
		"no time for units":                  {func(s *spec) { s.Timeouts.HostHooks.Duration = 0 }, "spec.timeouts.hostHooks: 0s"},
		"no time to uncordon":                {func(s *spec) { s.Timeouts.Uncordoning.Duration = 0 }, "spec.timeouts.uncordoning: 0s"},
		"a drain continues":                  {func(s *spec) { s.Drain.OnTimeout = v1alpha1.OnTimeoutContinue }, "spec.drain.onTimeout: \"Continue\""},
		"no time for pods that block":        {func(s *spec) { s.Drain.OnBlockTimeout = v1alpha1.OnBlockTimeoutEvict }, "spec.drain.blockTimeout: missing"},
		"pods that block are skipped":        {func(s *spec) { s.Drain.OnBlockTimeout = "Skip" }, "spec.drain.onBlockTimeout: \"Skip\""},
		"pods block indefinitely":            {func(s *spec) { s.Drain.OnBlockTimeout = "" }, ""},
		"a drain forces":                     {func(s *spec) { s.Drain.OnTimeout = v1alpha1.OnTimeoutForce }, ""},
		"a hook":                             {func(s *spec) { s.Hooks.BeforeDrain = hook("lb", time.Minute, v1alpha1.OnTimeoutAbort) }, ""},
		"a nameless hook":                    {func(s *spec) { s.Hooks.BeforeDrain = hook("", time.Minute, v1alpha1.OnTimeoutAbort) }, "spec.hooks.beforeDrain[0].name: "},
		"a hasty hook":                       {func(s *spec) { s.Hooks.BeforeReboot = hook("lb", 0, v1alpha1.OnTimeoutAbort) }, "spec.hooks.beforeReboot[0].timeout: 0s"},
		"a hook that aborts what is aborted": {func(s *spec) { s.Hooks.BeforeUncordon = last("lb", v1alpha1.OnTimeoutAbort) }, "spec.hooks.beforeUncordon[0].onTimeout: Abort is not possible"},
		"a hook that does nonsense":          {func(s *spec) { s.Hooks.BeforeDrain = hook("lb", time.Minute, "Pray") }, "spec.hooks.beforeDrain[0].onTimeout: \"Pray\""},
		"a hook in two stages": {func(s *spec) {
			s.Hooks.BeforeDrain = hook("lb", time.Minute, v1alpha1.OnTimeoutWait)
			s.Hooks.BeforeUncordon = last("lb", v1alpha1.OnTimeoutWait)
		}, "spec.hooks.beforeUncordon[0].name: \"lb\" stands in beforeDrain[0] already"},

		"a window":              {func(s *spec) { s.Rollout.Windows = window(nil, "22:30", time.Hour, "Europe/Berlin") }, ""},
		"a zone on Mars":        {func(s *spec) { s.Rollout.Windows = window(nil, "22:30", time.Hour, "Mars/Olympus") }, "spec.rollout.windows[0].timeZone: \"Mars/Olympus\""},
		"the machine's zone":    {func(s *spec) { s.Rollout.Windows = window(nil, "22:30", time.Hour, "Local") }, "spec.rollout.windows[0].timeZone: \"Local\""},
		"its file's name":       {func(s *spec) { s.Rollout.Windows = window(nil, "22:30", time.Hour, "localtime") }, "spec.rollout.windows[0].timeZone: \"localtime\""},
		"no zone":               {func(s *spec) { s.Rollout.Windows = window(nil, "22:30", time.Hour, "") }, "spec.rollout.windows[0].timeZone: \"\""},
		"an hour after the day": {func(s *spec) { s.Rollout.Windows = window(nil, "24:00", time.Hour, "UTC") }, "spec.rollout.windows[0].start: \"24:00\""},
		"an hour of one digit":  {func(s *spec) { s.Rollout.Windows = window(nil, "2:00", time.Hour, "UTC") }, "spec.rollout.windows[0].start: \"2:00\""},
		"a day off":             {func(s *spec) { s.Rollout.Windows = window([]v1alpha1.Day{"Caturday"}, "02:00", time.Hour, "UTC") }, "spec.rollout.windows[0].days[0]: \"Caturday\""},
		"a wink":                {func(s *spec) { s.Rollout.Windows = window(nil, "02:00", time.Minute, "UTC") }, "spec.rollout.windows[0].duration: 1m0s"},

		"a rule":                   {func(s *spec) { s.Rules = rule(file, reboot) }, ""},
		"a rule without a path":    {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceFile}, reboot) }, "spec.rules[0].path: missing"},
		"a relative path":          {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "etc"}, reboot) }, "spec.rules[0].path: \"etc\", expected an absolute and clean path, \"/etc\""},
		"a path that is not clean": {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/"}, reboot) }, "spec.rules[0].path: \"/etc/\", expected an absolute and clean path, \"/etc\""},
		"a path with a line feed":  {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/x\n"}, reboot) }, "spec.rules[0].path: \"/etc/x\\n\", expected an absolute and clean path, \"/etc/x\""},
		"a unit without a type":    {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceUnit, Unit: "sshd"}, reboot) }, "spec.rules[0].unit: \"sshd\""},
		"a template": {func(s *spec) {
			s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceUnit, Unit: "getty@.service"}, reboot)
		}, "spec.rules[0].unit: \"getty@.service\""},
		"a source that is none":   {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: "Weather"}, reboot) }, "spec.rules[0].source: \"Weather\""},
		"a request with a path":   {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceRequest, Path: "/x"}, reboot) }, "spec.rules[0].path: a rule for Request has none"},
		"no actions":              {func(s *spec) { s.Rules = rule(file) }, "spec.rules[0].actions: empty"},
		"None with another":       {func(s *spec) { s.Rules = rule(file, none, reboot) }, "spec.rules[0].actions[0]: None is listed with other actions"},
		"a restart of nothing":    {func(s *spec) { s.Rules = rule(file, v1alpha1.Action{Type: v1alpha1.ActionRestart}) }, "spec.rules[0].actions[0].unit: \"\""},
		"a reboot of a unit":      {func(s *spec) { s.Rules = rule(file, v1alpha1.Action{Type: v1alpha1.ActionReboot, Unit: "x.service"}) }, "spec.rules[0].actions[0].unit: Reboot has none"},
		"a drain without a drain": {func(s *spec) { s.Rules = rule(noDrain, drain) }, "spec.rules[0].actions[0]: Drain in a rule with drain: Never"},
		"an action that is none":  {func(s *spec) { s.Rules = rule(file, v1alpha1.Action{Type: "Explode"}) }, "spec.rules[0].actions[0].type: \"Explode\""},
		"versions of a file":      {func(s *spec) { r := file; r.HoldBack = "4*"; s.Rules = rule(r, reboot) }, "spec.rules[0].holdBack: \"4*\""},
		"a broken pattern":        {func(s *spec) { s.Rules = rule(v1alpha1.Rule{Source: v1alpha1.SourceOSUpdate, HoldBack: "["}, reboot) }, "spec.rules[0].holdBack: \"[\""},
		"two rules for one file":  {func(s *spec) { s.Rules = append(rule(file, reboot), rule(file, none)...) }, "spec.rules[1]: spec.rules[0] is already a rule for File /etc/x"},
		"an odd selector": {func(s *spec) {
			s.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		}, "spec.nodeSelector: \"Like\" is not a valid label selector operator"},
	} {
		spec := v1alpha1.DefaultPolicySpec()
		c.change(&spec)
		var got string
		if p := compile(spec); len(p.Problems) > 0 {
			got = p.Problems[0].String()
		}
		if (got != "") != (c.want != "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
}

func TestSet(t *testing.T) {
	of := func(name string, priority int32, selects string, mangle func(*v1alpha1.DisruptionPolicySpec)) Policy {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Priority = name, priority
		if selects != "" {
			obj.Spec.NodeSelector.MatchLabels = map[string]string{"pool": selects}
		}
		if mangle != nil {
			mangle(&obj.Spec)
		}
		return Compile(obj, time.LoadLocation)
	}
	bad := func(s *v1alpha1.DisruptionPolicySpec) { s.Mode = "Maybe" }
	set := NewSet(of("b", 5, "db", nil), of("low", -999, "", nil), of("a", 5, "db", nil), of("broken", -5, "gpu", bad))
	for _, c := range []struct {
		pool, policy, all string
		reason            v1alpha1.Reason
	}{
		{"db", "a", "a b low", ""},
		{"web", "low", "low", ""},
		{"gpu", "broken", "broken low", v1alpha1.ReasonInvalidPolicy},
	} {
		m := set.For(map[string]string{"pool": c.pool})
		var all []string
		for _, p := range m.All {
			all = append(all, p.Name)
		}
		if m.Policy.Name != c.policy || strings.Join(all, " ") != c.all || m.Reason != c.reason {
			t.Errorf("%s: %s of %v, %s %s", c.pool, m.Policy.Name, all, m.Reason, m.Detail)
		}
	}
	if m := NewSet(of("b", 5, "db", nil)).For(nil); m.Reason != v1alpha1.ReasonNoPolicy || m.Policy != nil {
		t.Errorf("a node that nothing selects: %+v", m)
	}
	// It may be meant for any node.
	odd := of("odd", 0, "", func(s *v1alpha1.DisruptionPolicySpec) {
		s.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	})
	if m := NewSet(odd, of("low", -999, "", nil)).For(nil); m.Reason != v1alpha1.ReasonInvalidPolicy || m.Policy.Name != "odd" {
		t.Errorf("beside a policy with an odd selector: %+v", m)
	}
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		l         Limit
		all, want int
	}{
		{Limit{Number: 3}, 2, 3}, {Limit{Percent: 10}, 0, 1}, {Limit{Percent: 10}, 9, 1}, {Limit{Percent: 10}, 19, 1},
		{Limit{Percent: 10}, 20, 2}, {Limit{Percent: 100}, 7, 7}, {Limit{Percent: 33}, 10, 3}, {Limit{}, 5, 0},
	} {
		if got := c.l.Of(c.all); got != c.want {
			t.Errorf("%v of %d is %d, expected %d", c.l, c.all, got, c.want)
		}
	}
}

// A grant holds the policy's terms, and one that is too large is not read.
func TestTermsAreBounded(t *testing.T) {
	spec := v1alpha1.DefaultPolicySpec()
	for range 16 {
		labels := map[string]string{}
		for i := range 20 {
			labels["example.com/"+strings.Repeat("k", 50)+string(rune('a'+i))] = strings.Repeat("v", 60)
		}
		spec.Drain.Skip = append(spec.Drain.Skip, v1alpha1.PodSelector{Selector: metav1.LabelSelector{MatchLabels: labels}})
	}
	p := compile(spec)
	if len(p.Problems) != 1 || !strings.HasPrefix(p.Problems[0].String(), "spec: hooks and drain take ") {
		t.Errorf("%v", p.Problems)
	}
	spec.Drain.Skip = spec.Drain.Skip[:2]
	if p := compile(spec); len(p.Problems) != 0 {
		t.Errorf("two of them: %v", p.Problems)
	}
}
