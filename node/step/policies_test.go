package step

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestPolicyMemoryMatch: policies that become invalid or are deleted change no plan.
func TestPolicyMemoryMatch(t *testing.T) {
	match := func(name string, reason v1alpha1.Reason) policy.Match {
		return policy.Match{Policy: &policy.Policy{Name: name}, Reason: reason}
	}
	var p PolicyMemory
	for i, c := range []struct {
		name   string
		reason v1alpha1.Reason
		want   string
	}{
		{"a", v1alpha1.ReasonInvalidPolicy, "a"}, // none was valid before
		{"b", "", "b"},
		{"c", v1alpha1.ReasonInvalidPolicy, "b"},
		{"d", v1alpha1.ReasonNoPolicy, "b"},
		{"e", "", "e"},
		{"f", v1alpha1.ReasonNoPolicy, "e"},
	} {
		if got := p.Match(match(c.name, c.reason)); got.Policy.Name != c.want {
			t.Errorf("%d: %s, expected %s", i, got.Policy.Name, c.want)
		}
	}
}

// TestPoliciesUnread: while the policies cannot be read, nothing is committed by them. A
// server that refuses keeps turns from beginning too, and so does one that returns Nodes
// and no policies for a minute and a half, but not one that was away.
func TestPoliciesUnread(t *testing.T) {
	const again = "the policies to be read again: "
	var p PolicyMemory
	now := time.Now()
	for _, c := range []struct {
		name           string
		after          time.Duration
		problem        string
		refused, nodes bool // nodes: Nodes cannot be read either
		text           string
		lasts          bool
	}{
		{"read", 0, "", false, false, "", false},
		{"refused", 0, "forbidden", true, false, again + "forbidden", true},
		{"refused, and away", time.Hour, "forbidden", true, true, again + "forbidden", true},
		{"read again", 0, "", false, false, "", false},
		{"all away", time.Hour, "away", false, true, again + "away", false},
		{"all away for long", time.Hour, "away", false, true, again + "away", false},
		{"Nodes are back", 0, "away", false, false, again + "away", false},
		{"not long enough", 89 * time.Second, "away", false, false, again + "away", false},
		{"policies are back", 0, "", false, false, "", false},
		{"broken", time.Hour, "broken", false, false, again + "broken", false},
		{"broken, not long enough", 89 * time.Second, "busy", false, false, again + "busy", false},
		{"broken for long", time.Second, "broken", false, false, again + "broken", true},
		{"and all away", time.Hour, "away", false, true, again + "away", true},
		{"broken again", 0, "broken", false, false, again + "broken", true},
		{"deleted", 0, "", false, false, "", false},
		{"away again", 0, "away", false, false, again + "away", false},
	} {
		now = now.Add(c.after)
		if text, lasts := p.Unread(c.problem, c.refused, c.nodes, now); text != c.text || lasts != c.lasts {
			t.Errorf("%s: %q, %t; expected %q, %t", c.name, text, lasts, c.text, c.lasts)
		}
	}
}
