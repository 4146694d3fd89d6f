package policy

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Plan is what the changes pending on a node cost taken together, and why.
type Plan struct {
	// Wants is the strongest thing in the plan; Drains reports whether the node
	// has to be drained, which is so if the first step is a Drain.
	Wants  v1alpha1.Wants
	Drains bool
	// Steps are to be done in this order, each once.
	Steps []Step
	// Nothing are the changes that a rule says cost nothing.
	Nothing []Cause
	// HeldBack are the changes to an OS version that no node is to boot. They
	// cost nothing.
	HeldBack []HeldBack
	// Veto is why nothing of the plan is to be committed, or "":
	// [v1alpha1.ReasonHeldBack] if its reboot would boot a version that is held
	// back.
	Veto v1alpha1.Reason
}

// Step is one action, and what it is done for.
type Step struct {
	Action  v1alpha1.Action
	Because []Cause // one for each change, in order of the changes; never empty
}

// Cause is a change with the rule that says what it costs.
type Cause struct {
	Change v1alpha1.Change
	// Policy and Rule are the policy's name and the rule's [Key]; both empty: no
	// rule names the change, which so costs a reboot of a drained node.
	Policy, Rule string
	// Swallowed: the rule does not ask for this step, but for something that the
	// step does as well. Without its other causes the step would be a lesser one.
	Swallowed bool
}

// String returns the cause as "File /etc/x@01, by File /etc of web".
func (c Cause) String() string {
	s := c.Change.String() + ", by no rule"
	if c.Policy != "" {
		s = c.Change.String() + ", by " + c.Rule + " of " + c.Policy
	}
	if c.Swallowed {
		s += ", swallowed"
	}
	return s
}

// HeldBack is a change to an OS version that no node is to boot.
type HeldBack struct {
	Cause
	Pattern string // the rule's holdBack
}

// OwnedRule is a rule with the name of its policy.
type OwnedRule struct {
	v1alpha1.Rule
	Policy string
}

// Rules are the rules in force on the node: the union over its policies, in the
// order in which those win, of rules with an equal [Key] the first. An invalid
// policy has no say: what it meant is not known, not even by the rules that can
// be read.
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

// Watches are the paths and units that the node's rules name: what its host has
// to look at. Both are sorted, and each stands there once.
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

// Plan says what the changes cost on the node. It does so too where nothing is
// granted (see Reason), so that people see what waits.
func (m Match) Plan(changes []v1alpha1.Change) Plan { return MakePlan(m.Rules(), changes) }

// MakePlan says what the changes cost by rules of valid policies, which stand in
// the order in which they win, each [Key] once; see [Match.Rules]. The order of
// the changes makes no difference.
func MakePlan(rules []OwnedRule, changes []v1alpha1.Change) Plan {
	changes = slices.SortedFunc(slices.Values(changes), compareChanges)
	d := draft{steps: map[v1alpha1.Action][]Cause{}}
	asked := make([]bool, len(rules)) // which rules have a say
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
		asked[i] = true
		d.add(r, cause)
	}
	d.merge()
	var lists [][]v1alpha1.Action
	for i := range rules {
		if asked[i] {
			lists = append(lists, rules[i].Actions)
		}
	}
	return d.plan(lists)
}

func compareChanges(a, b v1alpha1.Change) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
}

// ruleFor returns the index of the rule that says what the change costs, or -1.
func ruleFor(rules []OwnedRule, change v1alpha1.Change) int {
	best := -1
	for i := range rules {
		r := &rules[i]
		names := r.Source == change.Source
		switch r.Source {
		case v1alpha1.SourceFile:
			names = names && holds(r.Path, change.Name)
		case v1alpha1.SourceSentinel:
			names = names && (r.Path == "" || r.Path == change.Name)
		case v1alpha1.SourceUnit:
			names = names && r.Unit == change.Name
		}
		// Of the paths that hold a file no two are of one length: they are its own
		// and its parents'.
		if names && (best < 0 || len(r.Path) > len(rules[best].Path)) {
			best = i
		}
	}
	return best
}

// holds reports whether the path is that of the file or of a directory above it.
func holds(dir, file string) bool {
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// heldBack reports whether the change leads to a version that the rule holds
// back. A version that is not known, since the engine was restarted, may be the
// one.
func heldBack(r *OwnedRule, change v1alpha1.Change) bool {
	if r.Source != v1alpha1.SourceOSUpdate || r.HoldBack == "" {
		return false
	}
	match, err := path.Match(r.HoldBack, change.Version)
	return match || err != nil || change.Version == ""
}
