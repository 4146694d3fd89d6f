package policy

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// dice makes random policies and changes over few names, so that they meet often.
type dice struct{ *rand.Rand }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

func (d dice) path() string {
	return pick(d, "/", "/etc", "/etc/a", "/etc/ab", "/etc/a/b", "/etc/a/b/c", "/run/x", "/run/y")
}

func (d dice) unit() string {
	return pick(d, "a.service", "b.service", "c.socket", "x@1.service", "lockkeeper.service")
}

func (d dice) rule() v1alpha1.Rule {
	r := v1alpha1.Rule{Source: pick(d, v1alpha1.SourceFile, v1alpha1.SourceFile, v1alpha1.SourceUnit, v1alpha1.SourceSentinel, v1alpha1.SourceOSUpdate, v1alpha1.SourceRequest)}
	switch r.Source {
	case v1alpha1.SourceFile:
		r.Path = d.path()
	case v1alpha1.SourceUnit:
		r.Unit = d.unit()
	case v1alpha1.SourceSentinel:
		r.Path = pick(d, "", "/run/x", "/run/y")
	case v1alpha1.SourceOSUpdate:
		r.HoldBack = pick(d, "", "", "4.*", "5.?")
	}
	if d.IntN(5) == 0 {
		r.Actions = []v1alpha1.Action{{Type: v1alpha1.ActionNone}}
		return r
	}
	for range 1 + d.IntN(4) {
		a := v1alpha1.Action{Type: pick(d, v1alpha1.ActionReload, v1alpha1.ActionRestart, v1alpha1.ActionRestart, v1alpha1.ActionDaemonReload, v1alpha1.ActionDrain)}
		if d.IntN(12) == 0 {
			a.Type = v1alpha1.ActionReboot
		}
		if a.Type == v1alpha1.ActionReload || a.Type == v1alpha1.ActionRestart {
			a.Unit = d.unit()
		}
		r.Actions = append(r.Actions, a)
	}
	if !asks(r, v1alpha1.ActionDrain) && d.IntN(3) == 0 {
		r.Drain = v1alpha1.DrainNever
	}
	return r
}

func asks(r v1alpha1.Rule, t v1alpha1.ActionType) bool {
	return slices.ContainsFunc(r.Actions, func(a v1alpha1.Action) bool { return a.Type == t })
}

func (d dice) policies() (all []Policy) {
	for i := range d.IntN(5) {
		spec := v1alpha1.DefaultPolicySpec()
		spec.Priority = int32(d.IntN(3))
		seen := map[string]bool{}
		for range d.IntN(6) {
			r := d.rule()
			if !seen[Key(&r)] {
				spec.Rules = append(spec.Rules, r)
			}
			seen[Key(&r)] = true
		}
		if d.IntN(10) == 0 {
			spec.Mode = "Maybe"
		}
		obj := &v1alpha1.DisruptionPolicy{Spec: spec}
		obj.Name = fmt.Sprintf("p%d", i)
		all = append(all, Compile(obj, time.LoadLocation))
	}
	return all
}

func (d dice) change() v1alpha1.Change {
	c := v1alpha1.Change{Source: pick(d, v1alpha1.SourceFile, v1alpha1.SourceFile, v1alpha1.SourceUnit, v1alpha1.SourceSentinel, v1alpha1.SourceOSUpdate, v1alpha1.SourceRequest)}
	switch c.Source {
	case v1alpha1.SourceFile:
		c.Name, c.Version = path.Join(d.path(), pick(d, "", "f")), pick(d, "01", "absent")
	case v1alpha1.SourceUnit:
		c.Name, c.Version = d.unit(), "02"
	case v1alpha1.SourceSentinel:
		c.Name = pick(d, "/run/x", "/run/y", "/run/z")
	case v1alpha1.SourceOSUpdate:
		c.Version = pick(d, "", "4.1", "5.1", "5.10")
	}
	return c
}

// TestPlanProperties holds what has to be true of every plan against random
// policies and changes.
func TestPlanProperties(t *testing.T) {
	for seed := range uint64(3000) {
		d := dice{rand.New(rand.NewPCG(seed, 6))}
		policies := d.policies()
		var changes []v1alpha1.Change
		for range d.IntN(6) {
			changes = append(changes, d.change())
		}
		m := NewSet(policies...).For(nil)
		p := m.Plan(changes)
		text := formatPlan(t, m.Reason, p)
		wrong := func(format string, args ...any) {
			t.Errorf("seed %d: %s\nrules %+v\nchanges %v\n%s", seed, fmt.Sprintf(format, args...), m.Rules(), changes, text)
		}

		d.Shuffle(len(policies), func(i, j int) { policies[i], policies[j] = policies[j], policies[i] })
		shuffled := slices.Clone(changes)
		d.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again := NewSet(policies...).For(nil)
		if got := formatPlan(t, again.Reason, again.Plan(shuffled)); got != text {
			wrong("in another order the plan is\n%s", got)
		}
		one := d.change()
		if more := m.Plan(append(slices.Clone(changes), one)); !more.Wants.AtLeast(p.Wants) || p.Drains && !more.Drains {
			wrong("with %v it wants less: %s, drains %t", one, more.Wants, more.Drains)
		}
		for _, problem := range form(p) {
			wrong("%s", problem)
		}
		for _, problem := range account(m.Rules(), changes, p) {
			wrong("%s", problem)
		}
		if t.Failed() {
			return
		}
	}
}

// form says what is wrong with a plan's steps, whatever they are for.
func form(p Plan) (problems []string) {
	kinds := []v1alpha1.ActionType{v1alpha1.ActionDrain, v1alpha1.ActionDaemonReload, v1alpha1.ActionReload, v1alpha1.ActionRestart, v1alpha1.ActionReboot}
	last, seen := 0, map[v1alpha1.Action]bool{}
	strongest := v1alpha1.WantsNothing
	for _, s := range p.Steps {
		at := slices.Index(kinds, s.Action.Type)
		if at < last {
			problems = append(problems, s.Action.String()+" comes too late")
		}
		if seen[s.Action] {
			problems = append(problems, s.Action.String()+" stands there twice")
		}
		last, seen[s.Action] = at, true
		wants := map[v1alpha1.ActionType]v1alpha1.Wants{v1alpha1.ActionDrain: v1alpha1.WantsDrain, v1alpha1.ActionReboot: v1alpha1.WantsReboot}[s.Action.Type]
		if wants == "" {
			wants = v1alpha1.WantsApply
		}
		if wants.AtLeast(strongest) {
			strongest = wants
		}
		if !slices.ContainsFunc(s.Because, func(c Cause) bool { return !c.Swallowed }) {
			problems = append(problems, "nobody asks for "+s.Action.String())
		}
	}
	if p.Wants != strongest {
		problems = append(problems, "wants other than its steps")
	}
	for a := range seen {
		if a.Type == v1alpha1.ActionReload && seen[v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: a.Unit}] {
			problems = append(problems, a.Unit+" is reloaded and restarted")
		}
		if unit := a.Type != v1alpha1.ActionDrain && a.Type != v1alpha1.ActionReboot; unit && p.Wants == v1alpha1.WantsReboot {
			problems = append(problems, a.String()+" beside a reboot")
		}
	}
	if veto := p.Wants == v1alpha1.WantsReboot && len(p.HeldBack) > 0; veto != (p.Veto == v1alpha1.ReasonHeldBack) {
		problems = append(problems, "veto "+string(p.Veto))
	}
	return problems
}

// account says which changes a plan does not account for. It finds rules in
// another way than the code: by their keys, from the change upwards.
func account(rules []OwnedRule, changes []v1alpha1.Change, p Plan) (problems []string) {
	by := map[string]OwnedRule{}
	for _, r := range rules {
		by[Key(&r.Rule)] = r
	}
	for _, change := range changes {
		keys := []string{string(change.Source)}
		switch change.Source {
		case v1alpha1.SourceFile:
			keys = nil
			for at := change.Name; ; at = path.Dir(at) {
				keys = append(keys, "File "+at)
				if at == "/" {
					break
				}
			}
		case v1alpha1.SourceUnit:
			keys = []string{"Unit " + change.Name}
		case v1alpha1.SourceSentinel:
			keys = []string{"Sentinel " + change.Name, "Sentinel"}
		}
		rule := OwnedRule{Rule: v1alpha1.Rule{Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}}}
		key := ""
		for _, k := range keys {
			if r, ok := by[k]; ok {
				rule, key = r, k
				break
			}
		}
		want := map[string]int{} // where the change has to stand: "+" by its own, "-" swallowed
		match, _ := path.Match(rule.HoldBack, change.Version)
		switch {
		case rule.HoldBack != "" && (match || change.Version == ""):
			want["held back"] = 1
		case asks(rule.Rule, v1alpha1.ActionNone):
			want["nothing"] = 1
		default:
			for _, a := range rule.Actions {
				want["+"+a.String()] = 1
				if a.Type == v1alpha1.ActionReboot && rule.Drain == "" {
					want["+Drain"] = 1
				}
			}
			for _, a := range rule.Actions {
				by := a
				switch restart := (v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: a.Unit}); {
				case a.Type == v1alpha1.ActionDrain || a.Type == v1alpha1.ActionReboot:
				case p.Wants == v1alpha1.WantsReboot:
					by = v1alpha1.Action{Type: v1alpha1.ActionReboot}
				case a.Type == v1alpha1.ActionReload && slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Action == restart }):
					by = restart
				}
				if by != a {
					delete(want, "+"+a.String())
					if want["+"+by.String()] == 0 {
						want["-"+by.String()] = 1
					}
				}
			}
		}
		got := map[string]int{}
		found := func(at string, c Cause) {
			if c.Change == change {
				got[at]++
				if c.Policy != rule.Policy || c.Rule != key {
					problems = append(problems, fmt.Sprintf("%v, expected rule %q of %q", c, key, rule.Policy))
				}
			}
		}
		for _, s := range p.Steps {
			for _, c := range s.Because {
				found(map[bool]string{false: "+", true: "-"}[c.Swallowed]+s.Action.String(), c)
			}
		}
		for _, c := range p.Nothing {
			found("nothing", c)
		}
		for _, h := range p.HeldBack {
			found("held back", h.Cause)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			problems = append(problems, fmt.Sprintf("%v stands at %v, expected %v", change, got, want))
		}
	}
	return problems
}

// TestOrderOfRestarts: the winning rule's order holds whatever the others say,
// but for our own unit.
func TestOrderOfRestarts(t *testing.T) {
	for seed := range uint64(2000) {
		d := dice{rand.New(rand.NewPCG(seed, 7))}
		var rules []OwnedRule
		var changes []v1alpha1.Change
		for i := range 3 {
			r := v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: fmt.Sprintf("/%d", i)}
			for _, n := range d.Perm(6)[:4] {
				r.Actions = append(r.Actions, v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: []string{"a.service", "b.service", "c.service", "d.service", "e.service", ownUnit}[n]})
			}
			rules = append(rules, OwnedRule{Rule: r, Policy: "p"})
			changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: r.Path})
		}
		p := MakePlan(rules, changes)
		var got []string
		for _, s := range p.Steps {
			got = append(got, s.Action.Unit)
		}
		at := -1
		for _, a := range rules[0].Actions {
			next := slices.Index(got, a.Unit)
			if a.Unit == ownUnit {
				if next != len(got)-1 {
					t.Fatalf("seed %d: %v", seed, got)
				}
				continue
			}
			if next <= at {
				t.Fatalf("seed %d: %v against the first rule's %v", seed, got, rules[0].Actions)
			}
			at = next
		}
	}
}

func TestWatches(t *testing.T) {
	of := func(name string, priority int32, keys ...string) Policy {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Priority = name, priority
		for _, k := range keys {
			r, ok := parseRule(k)
			if !ok {
				t.Fatal(k)
			}
			obj.Spec.Rules = append(obj.Spec.Rules, r)
		}
		return Compile(obj, time.LoadLocation)
	}
	m := NewSet(
		of("low", 0, "File /etc/b: Reboot", "Unit b.service: None", "Sentinel /run/x: None", "OSUpdate: Reboot"),
		of("high", 1, "File /etc/b: None", "File /etc/a: None", "Unit a.service: None"),
		of("broken", 2, "File /etc/c: None", "File etc: None"),
	).For(nil)
	// What costs nothing is watched too: a rule above it may say otherwise.
	paths, units := m.Watches()
	if got := strings.Join(paths, " ") + ", " + strings.Join(units, " "); got != "/etc/a /etc/b, a.service b.service" {
		t.Error(got)
	}
	var got []string
	for _, r := range m.Rules() {
		got = append(got, Key(&r.Rule)+" "+r.Policy)
	}
	const want = "File /etc/b high, File /etc/a high, Unit a.service high, Unit b.service low, Sentinel /run/x low, OSUpdate low"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s, expected %s", strings.Join(got, ", "), want)
	}
	if paths, units := (Match{}).Watches(); paths != nil || units != nil {
		t.Errorf("without policies %v, %v are watched", paths, units)
	}
}
