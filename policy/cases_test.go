package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// worked is one file of testdata/cases; see the README there.
type worked struct {
	labels   map[string]string
	policies []v1alpha1.DisruptionPolicy
	changes  []v1alpha1.Change
	want     string
}

// TestCases holds plans against the worked cases, written by hand.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := parseCase(string(text))
			if err != nil {
				t.Fatal(err)
			}
			var compiled []Policy
			for i := range c.policies {
				compiled = append(compiled, Compile(&c.policies[i], time.LoadLocation))
			}
			m := NewSet(compiled...).For(c.labels)
			// The reason that is expected says which policies may be invalid.
			got := formatPlan(t, m.Reason, m.Plan(c.changes))
			if got != c.want {
				t.Errorf("got\n%s\nexpected\n%s", got, c.want)
			}
			// A case that is true by accident of order is none.
			for i, j := 0, len(c.changes)-1; i < j; i, j = i+1, j-1 {
				c.changes[i], c.changes[j] = c.changes[j], c.changes[i]
			}
			for i, j := 0, len(compiled)-1; i < j; i, j = i+1, j-1 {
				compiled[i], compiled[j] = compiled[j], compiled[i]
			}
			m = NewSet(compiled...).For(c.labels)
			if again := formatPlan(t, m.Reason, m.Plan(c.changes)); again != got {
				t.Errorf("with policies and changes in the opposite order\n%s\ninstead of\n%s", again, got)
			}
		})
	}
}

// formatPlan writes a plan as the cases have it.
func formatPlan(t *testing.T, reason v1alpha1.Reason, p Plan) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if reason != "" {
		line("reason %s", reason)
	}
	if p.Veto != "" {
		line("veto %s", p.Veto)
	}
	line("wants %s", p.Wants)
	for _, s := range p.Steps {
		line("do %s", s.Action)
		for _, c := range s.Because {
			line("  %s", c)
		}
	}
	if len(p.Nothing) > 0 {
		line("nothing")
	}
	for _, c := range p.Nothing {
		line("  %s", c)
	}
	if len(p.HeldBack) > 0 {
		line("held back")
	}
	for _, h := range p.HeldBack {
		line("  %s, holdBack %s", h.Cause, h.Pattern)
	}
	if first := len(p.Steps) > 0 && p.Steps[0].Action.Type == v1alpha1.ActionDrain; first != p.Drains {
		t.Errorf("drains: %t, with the steps %v", p.Drains, p.Steps)
	}
	return b.String()
}

func parseCase(text string) (c worked, err error) {
	given, want, ok := strings.Cut(text, "\nplan\n")
	if !ok {
		return c, fmt.Errorf("no plan")
	}
	c.want = want
	for i, line := range strings.Split(given, "\n") {
		words := strings.Fields(line)
		bad := fmt.Errorf("line %d: %q", i+1, line)
		switch {
		case len(words) == 0 || words[0] == "#" || words[0][0] == '#':
		case strings.HasPrefix(line, "  ") && len(c.policies) > 0:
			r, ok := parseRule(strings.TrimSpace(line))
			if !ok {
				return c, bad
			}
			s := &c.policies[len(c.policies)-1].Spec
			s.Rules = append(s.Rules, r)
		case words[0] == "policy":
			p := v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
			if n, _ := fmt.Sscanf(line, "policy %s priority %d", &p.Name, &p.Spec.Priority); n != 2 {
				return c, bad
			}
			if len(words) == 6 && words[4] == "selects" {
				p.Spec.NodeSelector.MatchLabels = labelsOf(words[5:])
			} else if len(words) == 5 && words[4] == "rulesOnly" {
				p.Spec.RulesOnly = true
			} else if len(words) != 4 {
				return c, bad
			}
			c.policies = append(c.policies, p)
		case words[0] == "node":
			c.labels = labelsOf(words[1:])
		case words[0] == "change" && len(words) > 1:
			change := v1alpha1.Change{Source: v1alpha1.Source(words[1])}
			rest := words[2:]
			if len(rest) > 0 && change.Source != v1alpha1.SourceOSUpdate {
				change.Name, rest = rest[0], rest[1:]
			}
			if len(rest) > 0 {
				change.Version, rest = rest[0], rest[1:]
			}
			if len(rest) > 0 {
				return c, bad
			}
			c.changes = append(c.changes, change)
		default:
			return c, bad
		}
	}
	return c, nil
}

func labelsOf(words []string) map[string]string {
	labels := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		labels[key] = value
	}
	return labels
}

// parseRule reads "KEY [holdBack PATTERN] [drain Never]: ACTION, ACTION".
func parseRule(line string) (r v1alpha1.Rule, ok bool) {
	head, actions, ok := strings.Cut(line+" ", ": ")
	words := strings.Fields(head)
	if !ok || len(words) == 0 {
		return r, false
	}
	r.Source, words = v1alpha1.Source(words[0]), words[1:]
	if len(words)%2 == 1 {
		switch r.Source {
		case v1alpha1.SourceUnit:
			r.Unit = words[0]
		default:
			r.Path = words[0]
		}
		words = words[1:]
	}
	for ; len(words) > 0; words = words[2:] {
		switch words[0] {
		case "holdBack":
			r.HoldBack = words[1]
		case "drain":
			r.Drain = v1alpha1.DrainMode(words[1])
		default:
			return r, false
		}
	}
	for a := range strings.SplitSeq(actions, ",") {
		kind, unit, _ := strings.Cut(strings.TrimSpace(a), " ")
		if kind != "" {
			r.Actions = append(r.Actions, v1alpha1.Action{Type: v1alpha1.ActionType(kind), Unit: unit})
		}
	}
	return r, true
}
