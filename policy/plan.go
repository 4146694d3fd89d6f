package policy

import (
	"path"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Plan is what the changes pending on a node cost together, and why.
type Plan struct {
	// Wants is the strongest action in the plan. Drains reports whether the node has to
	// be drained; then the first step is a Drain.
	Wants  v1alpha1.Wants
	Drains bool
	// Steps are done in this order, each once.
	Steps []Step
	// Nothing are the changes that a rule says cost nothing.
	Nothing []Cause
	// HeldBack are the changes to OS versions that a policy holds back. They cost
	// nothing.
	HeldBack []HeldBack
	// Veto is why the host must not commit the plan, or "". It is
	// [v1alpha1.ReasonHeldBack] if the plan's reboot would boot a version that is held
	// back.
	Veto v1alpha1.Reason
}

// Step is one action and its causes.
type Step struct {
	Action  v1alpha1.Action
	Because []Cause // one for each change, in order of the changes; never empty
}

// Cause is a change with the rule that says what it costs.
type Cause struct {
	Change v1alpha1.Change
	// Policy and Rule are the policy's name and the rule's [Key]. Both are empty if no
	// rule names the change; such a change costs a drain and a reboot.
	Policy, Rule string
	// Swallowed: the rule asks for a lesser action that this step includes. The step is
	// in the plan because of its other causes.
	Swallowed bool
}

// String returns the cause as "File /etc/x@01, by File /etc of web".
func (c Cause) String() string {
	s := c.Change.String() + ", by no rule"
	if c.Policy != "" {
		s = c.Change.String() + ", by " + c.Rule + " of " + c.Policy
	}
	if c.Swallowed {
		s += ", which asks for less"
	}
	return s
}

// HeldBack is a change to an OS version that a policy holds back.
type HeldBack struct {
	Cause
	Pattern string // the rule's holdBack
}

// OwnedRule is a rule with the name of its policy.
type OwnedRule struct {
	v1alpha1.Rule
	Policy string
}

// Rules returns the rules in force on the node: the rules of all its valid policies, in
// the order of precedence. Of rules with the same [Key], only the first counts. Rules
// ignores all rules of an invalid policy, even those that are valid, because the intent of
// the policy is unknown.
func (m Match) Rules() []OwnedRule {
	var all []OwnedRule
	taken := map[string]bool{}
	for _, p := range m.All {
		if len(p.Problems) > 0 {
			continue
		}
		for _, r := range p.Rules {
			if key := Key(&r); !taken[key] {
				taken[key] = true
				all = append(all, OwnedRule{Rule: r, Policy: p.Name})
			}
		}
	}
	return all
}

// Watches returns the paths and units that the node's rules name, which its host has to
// watch. Both lists are sorted, without duplicates.
func (m Match) Watches() (paths, units []string) {
	for _, r := range m.Rules() {
		switch r.Source {
		case v1alpha1.SourceFile:
			paths = append(paths, r.Path)
		case v1alpha1.SourceUnit:
			units = append(units, r.Unit)
		}
	}
	slices.Sort(paths)
	slices.Sort(units)
	return paths, units
}

// Plan returns what the changes cost on the node. It does so even if the node is granted
// nothing (see Reason), so that users see what is pending.
func (m Match) Plan(changes []v1alpha1.Change) Plan { return MakePlan(m.Rules(), changes) }

// MakePlan returns what the changes cost by the given rules, as [Match.Rules] returns them:
// rules of valid policies, in the order of precedence, each [Key] once. The order of the
// changes does not matter.
func MakePlan(rules []OwnedRule, changes []v1alpha1.Change) Plan {
	changes = slices.SortedFunc(slices.Values(changes), v1alpha1.CompareChanges)
	d := draft{steps: map[v1alpha1.Action][]Cause{}}
	applies := make([]bool, len(rules)) // by index in rules
	for _, change := range slices.Compact(changes) {
		i := ruleFor(rules, change)
		if i < 0 {
			d.reboot(Cause{Change: change}, true)
			continue
		}
		r := &rules[i]
		cause := Cause{Change: change, Policy: r.Policy, Rule: Key(&r.Rule)}
		if heldBack(r, change) {
			d.heldBack = append(d.heldBack, HeldBack{cause, r.HoldBack})
			continue
		}
		applies[i] = true
		d.add(r, cause)
	}
	d.merge()
	var lists [][]v1alpha1.Action
	for i := range rules {
		if applies[i] {
			lists = append(lists, rules[i].Actions)
		}
	}
	return d.plan(lists)
}

// ruleFor returns the index of the rule that says what the change costs, or -1.
func ruleFor(rules []OwnedRule, change v1alpha1.Change) int {
	best := -1
	for i := range rules {
		r := &rules[i]
		names := r.Source == change.Source
		switch r.Source {
		case v1alpha1.SourceFile:
			names = names && contains(r.Path, change.Name)
		case v1alpha1.SourceSentinel:
			names = names && (r.Path == "" || r.Path == change.Name)
		case v1alpha1.SourceUnit:
			names = names && r.Unit == change.Name
		}
		// The paths that contain a file are its own and those of its parents, so no two
		// have the same length.
		if names && (best < 0 || len(r.Path) > len(rules[best].Path)) {
			best = i
		}
	}
	return best
}

// contains reports whether dir is the file itself or a directory above it.
func contains(dir, file string) bool {
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// heldBack reports whether the change leads to a version that the rule holds back. An
// unknown version counts as held back: the engine does not report the version after a
// restart.
func heldBack(r *OwnedRule, change v1alpha1.Change) bool {
	if r.Source != v1alpha1.SourceOSUpdate || r.HoldBack == "" {
		return false
	}
	match, err := path.Match(r.HoldBack, change.Version)
	return match || err != nil || change.Version == ""
}
