package referee

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// These limits come from DESIGN.
const (
	// actWithin is the maximum age of the first of the two reads before an act.
	actWithin = 10 * time.Second
	// rereadEvery is the interval at which a host in a turn reads the Lease. With jitter and the leader's renewals, the interval stays below twice
	// this value.
	rereadEvery = 10 * time.Second
	// lateGrant is how long a leader may take to resolve a late grant.
	lateGrant = time.Minute
)

// moment is a position in the store's history, with the earliest (after) and the latest (by) time at which it happened.
type moment struct {
	rev       int64
	after, by time.Time
}

// elapsed returns the shortest time that can have passed between two moments.
func (m moment) elapsed(since moment) time.Duration { return m.after.Sub(since.by) }

// config is the configuration of the engine, which does not change in a run.
type config struct {
	budget   int
	policies []PolicyBudget // within the budget
	// lag is the longest delay that the run's faults may cause for a write or a watch of a host or a leader.
	lag time.Duration
	// late is how long a leader may take to notice that a stage is overdue, or that nothing stops its clock any more. 0: that is not judged.
	late time.Duration
	// admins are the field managers whose cordons count as an admin's.
	admins []string
	// line receives one readable line for each transition. It may be nil.
	line func(at time.Time, node, text string)
}

// engine holds every rule. Its caller passes it versions of objects in the order of their revisions, and the acts of hosts. The engine has
// no clock, no client and no goroutine, and its caller must serialize the calls.
type engine struct {
	config
	now   moment
	first bool // the input is the first list, which is not judged

	nodes   map[string]*node
	pods    map[string]*pod
	leases  []leaseVersion // all versions, oldest first
	renewed moment         // of the last write of the Lease by or for a holder
	unled   []span         // the times between the last renewal of one holder and the first of the next
	leaders leaders
	terms   map[string]bool   // epochs that the Lease has named
	held    map[string]bool   // terms, plus the epochs of grants that existed before the referee started
	turns   map[string]string // the node of each turn id so far
	budgets []budgetChange
	rewound time.Time // when the store was set back last

	updated  map[string]bool
	rebooted map[string]bool // keys are host and boot
	windows  map[*window]bool
	declared []Declaration
	attack   Attack
	excused  struct {
		node, why string
		rev       int64
	}
	report Report
}

type budgetChange struct {
	at     moment
	budget int
}

// node is the engine's memory of one Node name.
type node struct {
	name string
	cur  *turn.Node // nil: the Node does not exist
	turn *turnMemory
	// versions are cur's moment and, before it, those of the versions that only the host's own writes have replaced.
	versions []moment

	// lost is what cur was when the store was set back last, and lostRev its revision. The store gives lostRev out again, and a write that was under
	// way then may land on the version that has it now.
	lost    *turn.Node
	lostRev int64

	disturbed bool
	// evictable is the number of pods on the node that a drain would evict or wait for. nonzeroSince is the moment since which that number
	// has not been zero.
	evictable    int
	nonzeroSince moment
	pausedSince  moment // the moment since which cur.Paused is set
	// evictUntil is the latest time at which an eviction may still land, after the host had to stop sending evictions.
	evictUntil time.Time

	// ready and leaseUntil belong to a reboot in rebootBoot: the last moment at which the turn required the reboot, and the last moment at
	// which the Lease named the turn's epoch.
	ready      readyToReboot
	cancelled  time.Time // set by the test; zero: the host still has its want
	leaseUntil time.Time
}

// readyToReboot is the time until which the Node allowed the host to end the boot.
type readyToReboot struct {
	boot, turn string
	until      time.Time
}

// turnMemory is the engine's memory of a node's current turn.
type turnMemory struct {
	id        string
	began     moment
	terms     []string // that it has been of
	committed bool
	ourCordon bool
	late      bool     // granted by a term that had ended, and not resolved yet
	backedOut bool     // it was late, and the leader has backed it out
	boots     []string // boots that a reboot in this turn ended
	clock     clock
	edited    bool // someone other than a leader may have begun the current stage: an edit of the Node was declared
}

func newEngine(c config) *engine {
	e := &engine{
		config: c, nodes: map[string]*node{}, pods: map[string]*pod{}, held: map[string]bool{}, terms: map[string]bool{}, turns: map[string]string{},
		updated: map[string]bool{}, rebooted: map[string]bool{}, windows: map[*window]bool{},
	}
	e.report.Turns = map[v1alpha1.Result]int{}
	e.budgets = []budgetChange{{budget: c.budget}}
	return e
}

func (e *engine) node(name string) *node {
	n := e.nodes[name]
	if n == nil {
		n = &node{name: name}
		e.nodes[name] = n
	}
	return n
}

// breaks reports a broken rule, unless a test declared the violation.
func (e *engine) breaks(rule Rule, name, format string, args ...any) {
	v := Violation{Rule: rule, Node: name, Revision: e.now.rev, Time: e.now.by, Text: fmt.Sprintf(format, args...)}
	why, ok := e.expected(rule, name)
	if !ok {
		why = e.attack.excuses(rule, name)
	}
	if ok || why != "" {
		e.report.Expected = append(e.report.Expected, v)
		e.logLine(name, "declared (%s): %s", why, v.Text)
		return
	}
	e.logLine(name, "VIOLATION of %s: %s", rule, v.Text)
	if len(e.report.Violations) >= MaxViolations {
		e.report.More++
		return
	}
	e.report.Violations = append(e.report.Violations, v)
}

// expected uses up the declaration that covers the violation. A declaration without a rule covers everything that one write breaks.
func (e *engine) expected(rule Rule, name string) (why string, ok bool) {
	if x := e.excused; x.node == name && x.rev == e.now.rev && name != "" {
		return x.why, true
	}
	for i, d := range e.declared {
		if d.Node != name || d.Rule != "" && d.Rule != rule {
			continue
		}
		e.declared = slices.Delete(e.declared, i, i+1)
		if d.Rule == "" {
			e.excused.node, e.excused.rev, e.excused.why = name, e.now.rev, d.Why
		}
		return d.Why, true
	}
	return "", false
}

func (e *engine) logLine(name, format string, args ...any) {
	if e.line != nil && !e.first {
		e.line(e.now.by, name, fmt.Sprintf(format, args...))
	}
}

// setBudget records a new budget of the policy.
func (e *engine) setBudget(m moment, budget int) {
	e.now = m
	e.budgets = append(e.budgets, budgetChange{m, budget})
}

// allowed returns the largest budget since a moment, or since shortly before it, because a leader needs time to notice a change.
func (e *engine) allowed(since moment) int {
	most, from := 0, since.after.Add(-rereadEvery-e.lag)
	for i, b := range e.budgets {
		if i+1 < len(e.budgets) && e.budgets[i+1].at.by.Before(from) {
			continue // another budget replaced it earlier
		}
		most = max(most, b.budget)
	}
	return most
}

// onNode takes a version of a Node. A nil obj means that the Node was deleted.
func (e *engine) onNode(m moment, name string, obj *corev1.Node) {
	e.now = m
	if !e.first {
		e.report.NodeEvents++
	}
	n := e.node(name)
	before := n.cur
	if obj == nil {
		// A deleted Node frees its slot, and its mark is gone with it.
		n.cur, n.versions, n.turn, n.disturbed, n.pausedSince = nil, nil, nil, false, moment{}
		e.logLine(name, "the Node was deleted")
		e.followEvictions(n)
		e.updateWindows(n)
		return
	}
	after := turn.FromNode(obj)
	edited := slices.ContainsFunc(e.declared, func(d Declaration) bool { return d.Node == name && d.Rule == "" })
	if before == nil {
		e.begin(n, &after)
	} else {
		e.changed(n, before, &after, managersOf(obj))
	}
	if epoch := epochOf(&after); n.turn != nil && !slices.Contains(n.turn.terms, epoch) {
		n.turn.terms = append(n.turn.terms, epoch)
	}
	if n.turn != nil && (before == nil || before.State != after.State || !stageAt(before).Equal(stageAt(&after))) {
		n.turn.edited = edited
	}
	e.followClock(n, before, &after, edited)
	if before == nil || !publishes(before, &after) {
		n.versions = nil
	}
	n.cur, n.versions = &after, append(n.versions, m)
	e.recount(n, before != nil)
	e.follow(n)
}

// rev returns the revision of cur, or 0.
func (n *node) rev() int64 {
	if len(n.versions) == 0 {
		return 0
	}
	return n.versions[len(n.versions)-1].rev
}

// rewind forgets all objects: the store went back in time. What a Node and the Lease allowed until now counts as for any
// write that ends it.
func (e *engine) rewind(m moment) {
	e.now, e.first, e.rewound = m, true, m.by
	for _, n := range e.nodes {
		n.lost, n.lostRev = n.cur, n.rev()
		n.cur, n.turn, n.disturbed, n.pausedSince = nil, nil, false, moment{}
		n.evictable = 0
		e.updateWindows(n)
	}
	clear(e.pods)
	clear(e.turns)
}

// drained reports whether the turn has drained the node, by its state: the cordon may be another user's, so that there is no mark.
func drained(n *turn.Node) bool {
	past := n.State == v1alpha1.StateBeforeReboot || n.State == v1alpha1.StateRebooting || n.State == v1alpha1.StateApplying
	return past && n.Grant != nil && n.Grant.Drains
}

// begin takes a Node that did not exist before: it is in the first list, or was created. A created Node may have old labels of lockkeeper,
// for example from a restored backup. The referee judges what a coordinator does with them.
func (e *engine) begin(n *node, after *turn.Node) {
	if epoch := epochOf(after); e.first && epoch != "" {
		e.held[epoch] = true // a term from before the referee started
	}
	if after.InTurn() {
		committed := after.Mark || after.Committed() || hasCommittedAck(after) || drained(after)
		n.turn = &turnMemory{id: after.Turn, began: e.now, committed: committed, ourCordon: after.OwnCordon()}
		e.turns[after.Turn] = n.name
	}
	if l := after.Last; l != nil {
		e.turns[l.Turn] = n.name
	}
	e.logLine(n.name, "a Node, %s", after.State)
}

// changed judges one write.
func (e *engine) changed(n *node, before, after *turn.Node, managers []string) {
	if before.Turn != after.Turn || before.State != after.State || epochOf(before) != epochOf(after) {
		e.moved(n, before, after)
	}
	e.overdue(n, before, after)
	e.acked(n, before, after)
	e.cordoned(n, before, after, managers)
	e.excluded(n, before, after)
	e.stripped(n, before, after)
	e.released(n, before, after)
	e.logTransition(before, after)
}

func epochOf(n *turn.Node) string {
	if n.Grant == nil {
		return ""
	}
	return n.Grant.Epoch
}

// stageAt returns when the stage of a node in a turn began.
func stageAt(n *turn.Node) (t time.Time) {
	if n.Grant != nil {
		t = n.Grant.StageAt
	}
	return t
}

// recount updates the count of disturbed nodes, and judges the count when it grows. If a Node is created with a mark, its creator disturbed it.
func (e *engine) recount(n *node, judge bool) {
	was := n.disturbed
	n.disturbed = n.cur.Mark || n.turn != nil && n.turn.committed
	if !n.disturbed || was {
		return
	}
	oldest, names, control := e.now, []string{}, []string{}
	for _, o := range e.nodes {
		if !o.disturbed || o != n && e.attack.lies(o.name) { // a host that lies can disturb its own node at any time
			continue
		}
		names = append(names, o.name)
		if o.cur.ControlPlane {
			control = append(control, o.name)
		}
		if o.turn != nil && o.turn.began.rev < oldest.rev {
			oldest = o.turn.began
		}
	}
	slices.Sort(names)
	slices.Sort(control)
	e.report.MaxDisturbed = max(e.report.MaxDisturbed, len(names))
	if !judge {
		return
	}
	if most := e.allowed(oldest); len(names) > most {
		e.breaks(Budget, n.name, "%d nodes are disturbed (%v), the budget is %d", len(names), names, most)
	}
	for _, p := range e.policies {
		if its := e.under(p, names); p.has(n.cur) && len(its) > p.Budget {
			e.breaks(Budget, n.name, "%d nodes of policy %s are disturbed (%v), its budget is %d", len(its), p.Policy, its, p.Budget)
		}
	}
	if n.cur.ControlPlane && len(control) > 1 {
		e.breaks(ControlPlane, n.name, "%d control-plane nodes are disturbed (%v), at most one may be", len(control), control)
	}
}

// has reports whether the policy selects the node.
func (p *PolicyBudget) has(n *turn.Node) bool {
	for key, value := range p.Labels {
		if got, ok := n.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// under returns the names of the nodes that the policy selects. All names must be of existing nodes.
func (e *engine) under(p PolicyBudget, names []string) (its []string) {
	for _, name := range names {
		if p.has(e.nodes[name].cur) {
			its = append(its, name)
		}
	}
	return its
}

// follow updates the memory against which the engine judges later events.
func (e *engine) follow(n *node) {
	switch {
	case n.cur.Paused == nil:
		n.pausedSince = moment{}
	case n.pausedSince == (moment{}):
		n.pausedSince = e.now
	}
	e.followEvictions(n)
	e.updateWindows(n)
}

// end judges what is still open at the end of the run.
func (e *engine) end(m moment) {
	e.now = m
	for w := range e.windows {
		e.settle(m, w)
	}
	for _, n := range e.nodes {
		if n.turn == nil || !n.turn.late {
			continue
		}
		// Blame only a leader that had the chance to act: one that has held the Lease for long enough, without a stop or a pause.
		l := e.lease()
		if n.cur.Paused == nil && l.holder != "" && !l.stopped &&
			m.elapsed(n.turn.began) > lateGrant+e.lag && m.elapsed(e.holderSince()) > lateGrant+e.lag {
			e.breaks(LateGrant, n.name, "turn %s was granted by the term %s that was over, and is still %s", n.turn.id, epochOf(n.cur), n.cur.State)
		}
	}
	e.report.Unused = slices.Clone(e.declared)
}

// snapshot returns the report up to now.
func (e *engine) snapshot() Report {
	r := e.report
	r.Terms = len(e.terms)
	r.LateGrantsOpen = 0
	for _, n := range e.nodes {
		if n.turn != nil && n.turn.late {
			r.LateGrantsOpen++
		}
	}
	for name := range e.updated {
		r.Updated = append(r.Updated, name)
	}
	slices.Sort(r.Updated)
	r.Turns = map[v1alpha1.Result]int{}
	maps.Copy(r.Turns, e.report.Turns)
	r.Violations, r.Expected, r.Unused = slices.Clone(r.Violations), slices.Clone(r.Expected), slices.Clone(r.Unused)
	return r
}
