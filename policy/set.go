package policy

import (
	"cmp"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Set are all policies of the cluster, in the order in which they win: make it
// with [NewSet].
type Set []Policy

// NewSet puts policies in order: the highest priority first, of two with the
// same the one whose name comes first.
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

// Match is what the policies say of one node.
type Match struct {
	// Policy is the one that decides rollout, hooks and drain; nil if none
	// selects the node. It may be invalid, or not be the one at fault: see
	// Reason.
	Policy *Policy
	// All are all policies that select the node, in the order of the Set.
	All []*Policy
	// Reason is why nothing is granted to the node: NoPolicy, InvalidPolicy, or
	// "". Detail says which policy, and what is wrong with it.
	Reason v1alpha1.Reason
	Detail string
}

// For says which policies hold on a node with these labels. A policy whose
// selector cannot be read may be meant for any node: it selects all of them.
func (s Set) For(labels map[string]string) Match {
	var m Match
	for i := range s {
		p := &s[i]
		if !p.Selects(labels) {
			continue
		}
		m.All = append(m.All, p)
		if len(p.Problems) > 0 && m.Reason == "" {
			m.Reason, m.Detail = v1alpha1.ReasonInvalidPolicy, "policy "+p.Name+": "+p.Problems[0].String()
		}
	}
	if len(m.All) == 0 {
		m.Reason = v1alpha1.ReasonNoPolicy
		m.Detail = "no DisruptionPolicy selects the node"
		return m
	}
	m.Policy = m.All[0]
	return m
}
