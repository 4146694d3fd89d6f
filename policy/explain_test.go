package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Which rule says what a change costs, which others name it, and which it replaces.
func TestChoose(t *testing.T) {
	file := func(path string, action v1alpha1.ActionType) v1alpha1.Rule {
		return v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: path, Actions: []v1alpha1.Action{{Type: action}}}
	}
	sentinel := func(path string) v1alpha1.Rule {
		return v1alpha1.Rule{Source: v1alpha1.SourceSentinel, Path: path, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}, Drain: v1alpha1.DrainNever}
	}
	of := func(name string, priority int32, rules ...v1alpha1.Rule) policy.Policy {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Priority, obj.Spec.Rules = name, priority, rules
		return policy.Compile(obj, time.LoadLocation)
	}
	broken := of("broken", 30, file("/etc/a/b/c", v1alpha1.ActionNone))
	broken.Problems = []policy.Problem{{Field: "spec.mode", Text: "?"}}
	set := policy.NewSet(
		broken,
		of("high", 20, file("/etc/a", v1alpha1.ActionReboot), sentinel("/run/x")),
		of("middle", 10, file("/etc/a/b", v1alpha1.ActionDrain), file("/etc/a", v1alpha1.ActionNone)),
		of("low", 0, file("/", v1alpha1.ActionDaemonReload), file("/etc/a", v1alpha1.ActionDrain), sentinel("")),
	)
	words := func(rules []policy.OwnedRule) string {
		var all []string
		for _, r := range rules {
			all = append(all, policy.Key(&r.Rule)+" of "+r.Policy+" ("+strings.Join(policy.Costs(&r.Rule), ", ")+")")
		}
		return strings.Join(all, "; ")
	}
	for _, tc := range []struct {
		change                v1alpha1.Change
		rule, wider, replaced string
	}{
		{v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/a/b/c"},
			"File /etc/a/b of middle (Drain)", "File /etc/a of high (Reboot); File / of low (DaemonReload)", ""},
		{v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/a"},
			"File /etc/a of high (Reboot)", "File / of low (DaemonReload)", "File /etc/a of middle (None); File /etc/a of low (Drain)"},
		{v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/ab"}, "File / of low (DaemonReload)", "", ""},
		{v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/run/x"}, "Sentinel /run/x of high (Reboot without Drain)", "Sentinel of low (Reboot without Drain)", ""},
		{v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/run/y"}, "Sentinel of low (Reboot without Drain)", "", ""},
		{v1alpha1.Change{Source: v1alpha1.SourceRequest}, "", "", ""},
	} {
		m := set.For(nil)
		before := words(m.Rules())
		c := m.Choose(tc.change)
		rule := ""
		if c.Rule != nil {
			rule = words([]policy.OwnedRule{*c.Rule})
		}
		if rule != tc.rule || words(c.Wider) != tc.wider || words(c.Replaced) != tc.replaced {
			t.Errorf("%v: %q; %q; %q, expected %q; %q; %q", tc.change, rule, words(c.Wider), words(c.Replaced), tc.rule, tc.wider, tc.replaced)
		}
		if plan := m.Plan([]v1alpha1.Change{tc.change}); c.Rule != nil && !slices.ContainsFunc(plan.Steps, func(s policy.Step) bool {
			return s.Because[0].Policy == c.Rule.Policy && s.Because[0].Rule == policy.Key(&c.Rule.Rule)
		}) {
			t.Errorf("%v: the plan is by another rule: %v", tc.change, plan.Steps)
		}
		if words(m.Rules()) != before {
			t.Errorf("%v: the rules are others now", tc.change)
		}
	}
}
