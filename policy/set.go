package policy

import (
	"cmp"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Set holds all policies of the cluster in the order of precedence. Create it with
// [NewSet].
type Set []Policy

// NewSet sorts policies: the highest priority comes first, and policies with the same
// priority are sorted by name.
func NewSet(policies ...Policy) Set {
	s := Set(slices.Clone(policies))
	slices.SortFunc(s, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	return s
}

// Named returns the policy of that name, or nil.
func (s Set) Named(name string) *Policy {
	for i := range s {
		if s[i].Name == name {
			return &s[i]
		}
	}
	return nil
}

// Match is what the policies say about one node.
type Match struct {
	// Policy decides about rollout, hooks and drain: the first of All without rulesOnly.
	// It is nil if there is none. It may be invalid. The invalid policy in Reason may be
	// another one.
	Policy *Policy
	// All are all policies that select the node, in the order of the Set.
	All []*Policy
	// Reason is why the node is granted nothing: NoPolicy, InvalidPolicy, or "". Detail
	// names the invalid policy and its first problem.
	Reason v1alpha1.Reason
	Detail string
}

// For returns the policies for a node with these labels. A policy with an invalid selector
// selects all nodes, because it may be meant for any of them.
func (s Set) For(labels map[string]string) Match {
	var m Match
	for i := range s {
		p := &s[i]
		if !p.Selects(labels) {
			continue
		}
		m.All = append(m.All, p)
		if m.Policy == nil && !p.RulesOnly {
			m.Policy = p
		}
		if len(p.Problems) > 0 && m.Reason == "" {
			m.Reason, m.Detail = v1alpha1.ReasonInvalidPolicy, "policy "+p.Name+": "+p.Problems[0].String()
		}
	}
	switch {
	case len(m.All) == 0:
		m.Reason, m.Detail = v1alpha1.ReasonNoPolicy, "no DisruptionPolicy selects the node"
	case m.Policy == nil:
		m.Reason, m.Detail = v1alpha1.ReasonNoPolicy, "only policies with rulesOnly select the node, and they decide no rollout"
	}
	return m
}
