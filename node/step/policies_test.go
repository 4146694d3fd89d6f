package step

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
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
	const again = "policies cannot be read again: "
	var p PolicyMemory
	now := time.Now()
	for _, c := range []struct {
		name           string
		after          time.Duration
		problem        string
		refused, nodes bool // nodes: Nodes cannot be read either
		text           string
		veto, lasts    bool
	}{
		{"read", 0, "", false, false, "", false, false},
		{"refused", 0, "forbidden", true, false, again + "forbidden", false, false},
		{"refused, as by a server that starts", 9 * time.Second, "forbidden", true, false, again + "forbidden", false, false},
		{"refused, and does not only start", time.Second, "forbidden", true, false, again + "forbidden", true, false},
		{"refused for long", 80 * time.Second, "forbidden", true, false, again + "forbidden", true, true},
		{"refused, and away", time.Hour, "forbidden", true, true, again + "forbidden", true, true},
		{"read again", 0, "", false, false, "", false, false},
		{"all away", time.Hour, "away", false, true, again + "away", false, false},
		{"all away for long", time.Hour, "away", false, true, again + "away", false, false},
		{"Nodes are back", 0, "away", false, false, again + "away", false, false},
		{"refused after that", 5 * time.Second, "forbidden", true, false, again + "forbidden", false, false},
		{"not long enough", 84 * time.Second, "away", false, false, again + "away", false, false},
		{"policies are back", 0, "", false, false, "", false, false},
		{"broken", time.Hour, "broken", false, false, again + "broken", false, false},
		{"broken, not long enough", 89 * time.Second, "busy", false, false, again + "busy", false, false},
		{"broken for long", time.Second, "broken", false, false, again + "broken", true, true},
		{"and all away", time.Hour, "away", false, true, again + "away", true, true},
		{"broken again", 0, "broken", false, false, again + "broken", true, true},
		{"deleted", 0, "", false, false, "", false, false},
		{"away again", 0, "away", false, false, again + "away", false, false},
	} {
		now = now.Add(c.after)
		if text, veto, lasts := p.Unread(c.problem, c.refused, c.nodes, now); text != c.text || veto != c.veto || lasts != c.lasts {
			t.Errorf("%s: %q, %t, %t; expected %q, %t, %t", c.name, text, veto, lasts, c.text, c.veto, c.lasts)
		}
	}
}

// TestTerms: a host has terms of its own once it has read a valid policy.
func TestTerms(t *testing.T) {
	p := policy.Policy{Terms: v1alpha1.Terms{OnClose: v1alpha1.OnCloseCancel}}
	for name, c := range map[string]struct {
		policies Policies
		want     bool
	}{
		"none is read":   {Policies{Match: policy.Match{Policy: &p}}, false},
		"none selects":   {Policies{Listed: true, Match: policy.Match{Reason: v1alpha1.ReasonNoPolicy}}, false},
		"no policy":      {Policies{Listed: true}, false},
		"invalid":        {Policies{Listed: true, Match: policy.Match{Policy: &p, Reason: v1alpha1.ReasonInvalidPolicy}}, false},
		"valid":          {Policies{Listed: true, Match: policy.Match{Policy: &p}}, true},
		"cannot be read": {Policies{Listed: true, Match: policy.Match{Policy: &p}, Unread: "forbidden"}, true},
	} {
		if got := c.policies.Terms(); (got == &p.Terms) != c.want || (got != nil) != c.want {
			t.Errorf("%s: %v, expected terms: %t", name, got, c.want)
		}
	}
}

// TestEvictionBy: a pod is skipped or deleted only if the grant and the host's own policy say so, and blocks if either does.
func TestEvictionBy(t *testing.T) {
	selector := func(name string) []v1alpha1.PodSelector { return []v1alpha1.PodSelector{{Namespace: name}} }
	grant := v1alpha1.Grant{Force: true, Terms: v1alpha1.Terms{PodRules: v1alpha1.PodRules{Block: selector("granted-block"), Skip: selector("granted-skip")}}}
	gentle, own := grant, v1alpha1.Terms{
		DrainTimeout: v1alpha1.OnTimeoutForce, PodRules: v1alpha1.PodRules{Block: selector("own-block"), Skip: selector("own-skip")},
	}
	gentle.Force = false
	ownAborts := own
	ownAborts.DrainTimeout = v1alpha1.OnTimeoutAbort
	for name, c := range map[string]struct {
		grant *v1alpha1.Grant
		own   *v1alpha1.Terms
		want  string
	}{
		"both":              {&grant, &own, "force; block granted-block; skip granted-skip; block own-block; skip own-skip"},
		"own policy aborts": {&grant, &ownAborts, "block granted-block; skip granted-skip; block own-block; skip own-skip"},
		"not overdue":       {&gentle, &own, "block granted-block; skip granted-skip; block own-block; skip own-skip"},
		"no own policy":     {&grant, nil, "block granted-block; skip granted-skip; no rules"},
		"no grant":          {nil, &own, ""},
	} {
		n := turn.Node{}
		n.Grant = c.grant
		e := EvictionBy(&n, c.own)
		var parts []string
		if e.Force {
			parts = append(parts, "force")
		}
		add := func(what string, selectors []v1alpha1.PodSelector) {
			for _, s := range selectors {
				what += " " + s.Namespace
			}
			if len(selectors) > 0 {
				parts = append(parts, what)
			}
		}
		for _, r := range e.Rules {
			add("block", r.Block)
			add("skip", r.Skip)
			if len(r.Block)+len(r.Skip) == 0 {
				parts = append(parts, "no rules")
			}
		}
		if got := strings.Join(parts, "; "); got != c.want {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
}
