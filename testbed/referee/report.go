package referee

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Violation is one broken promise.
type Violation struct {
	Rule Rule
	Node string // "" where it is nobody's
	// Revision is the store's at the write that broke it, which is that object's resourceVersion; of a host's own deed, the
	// last one before it.
	Revision int64
	Time     time.Time // when the referee learned of it
	Text     string    // what was, what came
}

// String is one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s at %s (resourceVersion %d): %s", v.Rule, orNobody(v.Node), v.Time.Format(time.TimeOnly), v.Revision, v.Text)
}

func orNobody(node string) string {
	if node == "" {
		return "the cluster"
	}
	return node
}

// Turn results next to those of v1alpha1.
const (
	// GaveBack: a turn that did nothing but undo a lost cordon of ours.
	GaveBack v1alpha1.Result = "GaveBack"
	// LetGo: the node was detached with force, or its Node object replaced.
	LetGo v1alpha1.Result = "LetGo"
)

// Report is what the referee counted.
type Report struct {
	// Updated are the nodes of which a turn ended Done, by name.
	Updated []string
	// MaxDisturbed is how many nodes were disturbed at once, at most.
	MaxDisturbed int
	// Reboots are the boots that logind was told to end.
	Reboots int
	// Turns are the turns that ended, by their result.
	Turns map[v1alpha1.Result]int
	// Evictions are the pods that were evicted.
	Evictions int
	// LateGrants are the grants that came when the Lease named another epoch than theirs; LateGrantsOpen those of them that
	// are neither backed out nor taken over yet.
	LateGrants, LateGrantsOpen int
	// Terms are the epochs that the Lease has named.
	Terms int
	// Events are the writes that were seen: of Nodes, of the Lease, of pods.
	NodeEvents, LeaseEvents, PodEvents int
	// Reconnects is how often the watch was resumed.
	Reconnects int

	// Violations are at most [MaxViolations], the first ones; More is how many came after them.
	Violations []Violation
	More       int
	// Expected are violations that the test had declared.
	Expected []Violation
	// Unused are declarations that nothing came of.
	Unused []Declaration
}

// MaxViolations bounds Report.Violations.
const MaxViolations = 100

// Count is how many violations there were.
func (r *Report) Count() int { return len(r.Violations) + r.More }

// Broke reports whether the rule was broken.
func (r *Report) Broke(rule Rule) bool {
	return slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Rule == rule })
}

// Summary is the last line of a run of a fleet with that many hosts, without a name before it: "3 of 3 hosts updated, at most 1
// disrupted at once, 3 reboots, 0 violations".
func (r *Report) Summary(hosts int) string {
	return fmt.Sprintf("%d of %d hosts updated, at most %d disrupted at once, %d reboots, %d violations",
		len(r.Updated), hosts, r.MaxDisturbed, r.Reboots, r.Count())
}

// String is the whole report for a log.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; turns:", r.Summary(len(r.Updated)))
	for _, result := range slices.Sorted(maps.Keys(r.Turns)) {
		fmt.Fprintf(&b, " %s %d", result, r.Turns[result])
	}
	fmt.Fprintf(&b, "; %d evictions, %d terms, %d late grants (%d open); seen: %d Node, %d Lease, %d pod writes, %d reconnects\n",
		r.Evictions, r.Terms, r.LateGrants, r.LateGrantsOpen, r.NodeEvents, r.LeaseEvents, r.PodEvents, r.Reconnects)
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  %s\n", v)
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "  and %d more\n", r.More)
	}
	for _, v := range r.Expected {
		fmt.Fprintf(&b, "  declared: %s\n", v)
	}
	for _, d := range r.Unused {
		fmt.Fprintf(&b, "  declared and not seen: %s on %s: %s\n", d.Rule, orNobody(d.Node), d.Why)
	}
	return b.String()
}
