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

// Bounds that DESIGN sets.
const (
	// actWithin is how old the first of the two reads before an act may be.
	actWithin = 10 * time.Second
	// lookEvery is how often a host in a turn looks at the Lease; jitter and the renewals of a leader are within twice that.
	lookEvery = 10 * time.Second
	// lateGrant is how long a leader may take to settle a late grant.
	lateGrant = time.Minute
)

// moment is where in the store's history something happened, and when: not before after, not after by.
type moment struct {
	rev       int64
	after, by time.Time
}

// elapsed is the shortest time that can lie between two moments.
func (m moment) elapsed(since moment) time.Duration { return m.after.Sub(since.by) }

// config is what the engine is told once.
type config struct {
	budget   int
	policies []PolicyBudget // within the budget
	// lag is by how much the run's faults may hold back a write or a watch of a host's or leader's.
	lag time.Duration
	// admins are field managers whose cordons are a person's.
	admins []string
	// skip are pods that a policy says are not evicted; nil for none.
	skip func(*corev1.Pod) bool
	// line gets one readable line for each transition; nil for none.
	line func(at time.Time, node, text string)
}

// engine holds every rule. It is fed with versions of objects in the order of their revisions and with hosts' deeds; it has
// no clock, no client, no goroutine. Its user guards it.
type engine struct {
	config
	now   moment
	first bool // what is fed is the first list: facts to begin with, judged by no one

	nodes   map[string]*node
	pods    map[string]*pod
	leases  []leaseVersion    // all, oldest first
	terms   map[string]bool   // epochs that the Lease named
	held    map[string]bool   // these, and those of grants from before our time
	turns   map[string]string // every turn's id ever seen, to its node
	budgets []budgetChange

	updated  map[string]bool
	rebooted map[string]bool // host and boot
	windows  map[*window]bool
	declared []Declaration
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

// node is what the engine remembers of one Node's name.
type node struct {
	name string
	cur  *turn.Node // nil: there is no such Node
	rev  int64      // of cur
	turn *turnMemory

	disturbed bool
	// evictable is how many pods on it a drain would evict or wait for; nonzero since the moment.
	evictable    int
	nonzeroSince moment
	pausedSince  moment // while cur.Paused stands
	// evictUntil is until when an eviction may still land, after the moment from which none was to be sent any more.
	evictUntil time.Time

	// Of a reboot in boot rebootBoot: until when its turn asked for it, and the Lease named its epoch.
	ready      readyToReboot
	cancelled  time.Time // a test's word; zero: the want stands
	leaseUntil time.Time
}

// readyToReboot is until when the Node said that a boot may be ended.
type readyToReboot struct {
	boot, turn string
	until      time.Time
}

// turnMemory is what the engine remembers of a node's present turn.
type turnMemory struct {
	id        string
	began     moment
	committed bool
	ourCordon bool
	late      bool     // granted by a term that was over, and not settled
	boots     []string // ended by a reboot in this turn
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

// breaks reports a broken rule, unless it was declared.
func (e *engine) breaks(rule Rule, name, format string, args ...any) {
	v := Violation{Rule: rule, Node: name, Revision: e.now.rev, Time: e.now.by, Text: fmt.Sprintf(format, args...)}
	if why, ok := e.expected(rule, name); ok {
		e.report.Expected = append(e.report.Expected, v)
		e.say(name, "declared (%s): %s", why, v.Text)
		return
	}
	e.say(name, "VIOLATION of %s: %s", rule, v.Text)
	if len(e.report.Violations) >= MaxViolations {
		e.report.More++
		return
	}
	e.report.Violations = append(e.report.Violations, v)
}

// expected takes the declaration that a violation was foreseen by. One of no rule in particular stands for everything that
// the one write breaks.
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

func (e *engine) say(name, format string, args ...any) {
	if e.line != nil && !e.first {
		e.line(e.now.by, name, fmt.Sprintf(format, args...))
	}
}

// setBudget is a change of the policy.
func (e *engine) setBudget(m moment, budget int) {
	e.now = m
	e.budgets = append(e.budgets, budgetChange{m, budget})
}

// allowed is the largest budget in force since a moment, or a little before: a leader has to learn of a change.
func (e *engine) allowed(since moment) int {
	most, from := 0, since.after.Add(-lookEvery-e.lag)
	for i, b := range e.budgets {
		if i+1 < len(e.budgets) && e.budgets[i+1].at.by.Before(from) {
			continue // replaced before
		}
		most = max(most, b.budget)
	}
	return most
}

// onNode takes a version of a Node; nil: it was deleted.
func (e *engine) onNode(m moment, name string, obj *corev1.Node) {
	e.now = m
	if !e.first {
		e.report.NodeEvents++
	}
	n := e.node(name)
	before := n.cur
	if obj == nil {
		// A deleted Node frees its slot; whatever was marked is marked no more.
		n.cur, n.rev, n.turn, n.disturbed, n.pausedSince = nil, m.rev, nil, false, moment{}
		e.say(name, "the Node was deleted")
		e.followEvictions(n)
		e.look(n)
		return
	}
	after := turn.FromNode(obj)
	if before == nil {
		e.begin(n, &after)
	} else {
		e.changed(n, before, &after, managersOf(obj))
	}
	n.cur, n.rev = &after, m.rev
	e.recount(n, before != nil)
	e.follow(n)
}

// begin takes a Node that was not there before: of the first list, or created. A created one may carry old labels of ours (a
// restored backup); what a coordinator makes of that is judged from here on.
func (e *engine) begin(n *node, after *turn.Node) {
	if epoch := epochOf(after); e.first && epoch != "" {
		e.held[epoch] = true // a term from before our time
	}
	if after.InTurn() {
		n.turn = &turnMemory{id: after.Turn, began: e.now, committed: after.Mark || after.Committed() || saysCommitted(after), ourCordon: after.Mark}
		e.turns[after.Turn] = n.name
	}
	if l := after.Last; l != nil {
		e.turns[l.Turn] = n.name
	}
	e.say(n.name, "a Node, %s", after.State)
}

// changed judges one write.
func (e *engine) changed(n *node, before, after *turn.Node, managers []string) {
	if before.Turn != after.Turn || before.State != after.State || epochOf(before) != epochOf(after) {
		e.moved(n, before, after)
	}
	e.acked(n, before, after)
	e.cordoned(n, before, after, managers)
	e.stripped(n, before, after)
	e.released(n, before, after)
	e.tell(before, after)
}

func epochOf(n *turn.Node) string {
	if n.Grant == nil {
		return ""
	}
	return n.Grant.Epoch
}

// recount keeps the count of disturbed nodes, and judges it when it grows. A Node that came with a mark on it was disturbed by whoever
// created it.
func (e *engine) recount(n *node, judge bool) {
	was := n.disturbed
	n.disturbed = n.cur.Mark || n.turn != nil && n.turn.committed
	if !n.disturbed || was {
		return
	}
	oldest, names, control := e.now, []string{}, []string{}
	for _, o := range e.nodes {
		if !o.disturbed {
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

// has reports whether the node is one of the policy's.
func (p *PolicyBudget) has(n *turn.Node) bool {
	for key, value := range p.Labels {
		if got, ok := n.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// under are those of the nodes, all of which there are, that are the policy's.
func (e *engine) under(p PolicyBudget, names []string) (its []string) {
	for _, name := range names {
		if p.has(e.nodes[name].cur) {
			its = append(its, name)
		}
	}
	return its
}

// follow keeps what later events are held against.
func (e *engine) follow(n *node) {
	switch {
	case n.cur.Paused == nil:
		n.pausedSince = moment{}
	case n.pausedSince == (moment{}):
		n.pausedSince = e.now
	}
	e.followEvictions(n)
	e.look(n)
}

// end is the end of the run.
func (e *engine) end(m moment) {
	e.now = m
	for w := range e.windows {
		e.settle(m, w)
	}
	for _, n := range e.nodes {
		if n.turn == nil || !n.turn.late {
			continue
		}
		// Only a leader that could have is to blame: one that holds the Lease for long, with neither stop nor pause.
		l := e.lease()
		if n.cur.Paused == nil && l.holder != "" && !l.stopped &&
			m.elapsed(n.turn.began) > lateGrant+e.lag && m.elapsed(e.holderSince()) > lateGrant+e.lag {
			e.breaks(LateGrant, n.name, "turn %s was granted by the term %s that was over, and is still %s", n.turn.id, epochOf(n.cur), n.cur.State)
		}
	}
	e.report.Unused = slices.Clone(e.declared)
}

// snapshot is the report so far.
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
