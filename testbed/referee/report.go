package referee

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Violation is one violation of a rule.
type Violation struct {
	Rule Rule
	Node string // "" if it concerns no node
	// Revision is the store's revision at the write that broke the rule, which is the object's resourceVersion. If a host's act broke the rule,
	// Revision is the last one before the act.
	Revision int64
	Time     time.Time // when the referee received it
	Text     string    // the state before and after
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s at %s (resourceVersion %d): %s", v.Rule, orNoNode(v.Node), v.Time.Format(time.TimeOnly), v.Revision, v.Text)
}

func orNoNode(node string) string {
	if node == "" {
		return "the cluster"
	}
	return node
}

// These results of turns complement those of v1alpha1.
const (
	// GaveBack means that the turn only removed an orphaned cordon of lockkeeper.
	GaveBack v1alpha1.Result = "GaveBack"
	// LetGo means that the node was detached with force, or that its Node object was replaced.
	LetGo v1alpha1.Result = "LetGo"
)

// Report contains what the referee counted.
type Report struct {
	// Updated are the names of the nodes that ended a turn with Done.
	Updated []string
	// MaxDisturbed is the largest number of nodes that were disturbed at once.
	MaxDisturbed int
	// Reboots is the number of boots that a call to logind ended.
	Reboots int
	// Turns is the number of ended turns by result.
	Turns map[v1alpha1.Result]int
	// Evictions is the number of evicted pods.
	Evictions int
	// LateGrants is the number of grants that landed when the Lease named another epoch. LateGrantsOpen is the number of those that are neither
	// backed out nor taken over yet.
	LateGrants, LateGrantsOpen int
	// Terms is the number of epochs that the Lease has named.
	Terms int
	// NodeEvents, LeaseEvents and PodEvents are the numbers of writes that the referee saw.
	NodeEvents, LeaseEvents, PodEvents int
	// Reconnects is how often the referee resumed the watch.
	Reconnects int

	// Violations are the first [MaxViolations] violations. More is the number of further ones.
	Violations []Violation
	More       int
	// Expected are violations that the test had declared.
	Expected []Violation
	// Unused are declarations that covered no violation.
	Unused []Declaration
}

// MaxViolations limits Report.Violations.
const MaxViolations = 100

// Count returns the number of violations.
func (r *Report) Count() int { return len(r.Violations) + r.More }

// Broke reports whether the rule was broken.
func (r *Report) Broke(rule Rule) bool {
	return slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Rule == rule })
}

// Summary returns the last line for a run of a fleet with that many hosts, such as "3 of 3 hosts updated, at most 1 disrupted at once, 3 reboots, 0
// violations".
func (r *Report) Summary(hosts int) string {
	return fmt.Sprintf("%d of %d hosts updated, at most %d disrupted at once, %d reboots, %d violations",
		len(r.Updated), hosts, r.MaxDisturbed, r.Reboots, r.Count())
}

// String returns the whole report for a log.
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
		fmt.Fprintf(&b, "  declared but not observed: %s on %s: %s\n", d.Rule, orNoNode(d.Node), d.Why)
	}
	return b.String()
}
