package policy

import (
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Choice is which rule says what a change costs on a node, and which others would
// have.
type Choice struct {
	// Rule is nil if no rule names the change.
	Rule *OwnedRule
	// Wider are the other rules in force that name the change: those of shorter
	// paths, the longest first.
	Wider []OwnedRule
	// Replaced are the rules with the key of Rule in policies that select the node
	// as well and do not win, in the order of the Set.
	Replaced []OwnedRule
}

// Choose says which rule of the node's policies says what the change costs.
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

// Costs are what the rule's changes cost, for people: "Restart containerd.service",
// "Reboot without Drain", "holds back 4081.*".
func Costs(r *v1alpha1.Rule) []string {
	var words []string
	for _, a := range r.Actions {
		word := a.String()
		if a.Type == v1alpha1.ActionReboot && r.Drain == v1alpha1.DrainNever {
			word += " without Drain"
		}
		words = append(words, word)
	}
	if r.HoldBack != "" {
		words = append(words, "holds back "+r.HoldBack)
	}
	return words
}

// Actions returns the actions of the plan's steps.
func (p *Plan) Actions() []v1alpha1.Action {
	var all []v1alpha1.Action
	for _, s := range p.Steps {
		all = append(all, s.Action)
	}
	return all
}

// Changes are those that the plan does something for, in the order of its steps.
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
