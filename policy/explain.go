package policy

import (
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Choice is the rule that says what a change costs on a node, and the rules that it takes
// precedence over.
type Choice struct {
	// Rule is nil if no rule names the change.
	Rule *OwnedRule
	// Wider are the other rules in force that name the change. They have shorter paths;
	// the longest comes first.
	Wider []OwnedRule
	// Replaced are the rules with the same key as Rule in other policies that select the
	// node, in the order of the Set.
	Replaced []OwnedRule
}

// Choose returns which rule of the node's policies says what the change costs.
func (m Match) Choose(change v1alpha1.Change) Choice {
	var c Choice
	rules := m.Rules()
	for {
		i := ruleFor(rules, change)
		if i < 0 {
			break
		}
		if r := rules[i]; c.Rule == nil {
			c.Rule = &r
		} else {
			c.Wider = append(c.Wider, r)
		}
		rules = slices.Delete(rules, i, i+1)
	}
	if c.Rule == nil {
		return c
	}
	for _, p := range m.All {
		for _, r := range p.Rules {
			if len(p.Problems) == 0 && p.Name != c.Rule.Policy && Key(&r) == Key(&c.Rule.Rule) {
				c.Replaced = append(c.Replaced, OwnedRule{r, p.Name})
			}
		}
	}
	return c
}

// Costs returns what the rule's changes cost, as text for users: "Restart
// containerd.service", "Reboot without Drain", "holds back 4081.*".
func Costs(r *v1alpha1.Rule) []string {
	var costs []string
	for _, a := range r.Actions {
		cost := a.String()
		if a.Type == v1alpha1.ActionReboot && r.Drain == v1alpha1.DrainNever {
			cost += " without Drain"
		}
		costs = append(costs, cost)
	}
	if r.HoldBack != "" {
		costs = append(costs, "holds back "+r.HoldBack)
	}
	return costs
}

// Actions returns the actions of the plan's steps.
func (p *Plan) Actions() []v1alpha1.Action {
	var all []v1alpha1.Action
	for _, s := range p.Steps {
		all = append(all, s.Action)
	}
	return all
}

// Changes returns the changes that need a step of the plan, in the order of the steps.
func (p *Plan) Changes() []v1alpha1.Change {
	var all []v1alpha1.Change
	for _, s := range p.Steps {
		for _, c := range s.Because {
			if !slices.Contains(all, c.Change) {
				all = append(all, c.Change)
			}
		}
	}
	return all
}
