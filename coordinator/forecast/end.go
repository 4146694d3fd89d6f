package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// slowTurn times its expected duration is the longest time for which a turn's end
// is estimated. After that, the end is unknown.
const slowTurn = 2

// End estimates when the nodes of a policy, or of all policies, will be up to date. It
// covers the nodes that want something or are in a turn.
type End struct {
	// At is the estimated time. It is zero if the time is unknown or no node is left.
	At time.Time
	// Unknown says why At is not known. NotBefore is the earliest possible time then, because
	// of the time that canaries run a version; zero if they do not delay the end.
	Unknown   string
	NotBefore time.Time
	// Left counts the nodes that want something or are in a turn. Held counts those of
	// them that the rollout itself does not release. At does not include them.
	Left, Held int
	// Turn is how long a turn is expected to take. It is the median of the Seen turns
	// that the policy's nodes finished within the last day for the same changes, or the
	// policy's expectedDuration if Seen is 0. If nodes differ, it is the longest.
	Turn time.Duration
	Seen int
}

// transient holds the reasons that go away as the rollout continues.
var transient = map[v1alpha1.Reason]bool{
	v1alpha1.ReasonNone: true, v1alpha1.ReasonBudget: true, v1alpha1.ReasonControlPlane: true,
	v1alpha1.ReasonMinUptime: true, v1alpha1.ReasonSessions: true, v1alpha1.ReasonHandover: true,
	v1alpha1.ReasonLoadBalancerDelay: true, v1alpha1.ReasonCanary: true,
}

// Ends estimates when the rollout will be over, for the fleet and for each policy by
// name. out is the decision on s. held overrides, by node name, the reasons in out.
func Ends(s rollout.Snapshot, out *rollout.Outcome, held map[string]v1alpha1.Reason) (fleet End, policies map[string]End) {
	c := newSimulation(s, out, held, false)
	c.run()
	policies = make(map[string]End, len(c.lines))
	fleet.Left, fleet.Held = c.unmatched, c.unmatched
	for i := range c.lines {
		l := &c.lines[i]
		e := l.End
		e.finish()
		policies[l.figures.Name] = e
		fleet.Left, fleet.Held = fleet.Left+e.Left, fleet.Held+e.Held
		if e.Left == e.Held {
			continue // it does not delay the fleet
		}
		if e.Turn > fleet.Turn {
			fleet.Turn, fleet.Seen = e.Turn, e.Seen
		}
		fleet.At, fleet.NotBefore = later(fleet.At, e.At), later(fleet.NotBefore, e.NotBefore)
		if e.Unknown != "" && fleet.Unknown == "" {
			fleet.Unknown = e.Unknown
			if len(c.lines) > 1 {
				fleet.Unknown = "policy " + l.figures.Name + ": " + e.Unknown
			}
		}
	}
	fleet.finish()
	return fleet, policies
}

// finish sets why the time is unknown if every node is held, and removes the estimate that the end has no use for.
func (e *End) finish() {
	if e.Unknown == "" && e.Left > 0 && e.Held == e.Left {
		e.Unknown = "every node that is left is held"
	}
	if e.Unknown != "" {
		e.At = time.Time{}
	} else {
		e.NotBefore = time.Time{}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// begins estimates when the waiting nodes will be granted their turns, by node name. It
// follows the rules of [Ends], except that nodes also wait for the next window. A node
// that the rollout does not release, or whose time is unknown, is not in at. notBefore has
// the times before which nodes get no turn because of their canaries.
func begins(s rollout.Snapshot, out *rollout.Outcome) (at, notBefore map[string]time.Time) {
	c := newSimulation(s, out, nil, true)
	c.run()
	return c.begin, c.notBefore
}

// simulation simulates the rest of a rollout.
type simulation struct {
	now           time.Time
	acrossWindows bool // nodes wait for the next window

	waiting, running []*simulatedNode
	lines            []line
	byName           map[string]*line
	canaries         *canaries
	total, taken     int                        // how many of all nodes may be unavailable, and how many are
	slots            map[string][]string        // by node, the policies in which it counts as unavailable
	controlPlane     map[string]bool            // the control-plane nodes that keep others from their turns
	seen             map[string][]time.Duration // durations of finished turns, by turnKind

	// The results, besides those in lines.
	begin     map[string]time.Time // when each node was granted its turn
	notBefore map[string]time.Time // see canaries.earliest
	unmatched int                  // nodes that want something and that no policy selects
}

// line is one policy's part of the simulation.
type line struct {
	End
	figures *rollout.PolicyFigures
	*policy.Policy
	taken int       // how many of its nodes are unavailable
	next  time.Time // it grants no turn before this time
	// shut is why no node of the policy may begin a turn now, or "", except those that wait for nothing; see skips.
	shut string
	// open reports whether, at the last call of grant, a window was open that a turn
	// fits in, and closes when it closes. opens is when the next such window opens.
	// See [policy.Calendar.OpenUntil].
	open          bool
	closes, opens time.Time
}

// simulatedNode is a node that is in a turn, or will be.
type simulatedNode struct {
	*turn.Node
	line  *line
	lasts time.Duration
	end   time.Time
	// counts are the policies in which the node counts as unavailable.
	counts []string
	// stages reports that the next turn boots another OS version, version, which may be
	// unknown. waits is why canaries or another control-plane node keep the node from its turn.
	stages  bool
	version string
	waits   string
	// skips reports that the node waits for no window, gate or settle time; see [rollout.RequestedNow].
	skips bool
}

func newSimulation(s rollout.Snapshot, out *rollout.Outcome, held map[string]v1alpha1.Reason, acrossWindows bool) *simulation {
	c := &simulation{
		now: s.Now, acrossWindows: acrossWindows,
		lines: make([]line, len(out.Policies)), byName: map[string]*line{}, canaries: newCanaries(s),
		total: math.MaxInt, taken: out.Unavailable, slots: map[string][]string{}, controlPlane: map[string]bool{},
		seen: map[string][]time.Duration{}, begin: map[string]time.Time{}, notBefore: map[string]time.Time{},
	}
	c.addLines(s.Policies, out)
	for _, slot := range out.Slots {
		c.slots[slot.Node] = slot.Policies
	}
	nodes := make(map[string]*turn.Node, len(s.Nodes))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		nodes[n.Name] = n
		if n.ControlPlane && (n.InTurn() || n.Mark || !n.Ready || n.Unschedulable) {
			c.controlPlane[n.Name] = true
		}
	}
	for i := range out.Verdicts {
		if l := c.byName[out.Verdicts[i].Policy]; l != nil {
			c.recordLast(nodes[out.Verdicts[i].Node], l)
		}
	}
	for i := range out.Verdicts {
		v := &out.Verdicts[i]
		reason, known := held[v.Node]
		if !known {
			reason = v.Held
		}
		c.add(nodes[v.Node], c.byName[v.Policy], reason)
	}
	c.sortWaiting(out.Queue())
	return c
}

// addLines adds the policies.
func (c *simulation) addLines(policies policy.Set, out *rollout.Outcome) {
	for i := range out.Policies {
		f := &out.Policies[i]
		l := &c.lines[i]
		l.figures, l.Policy, l.taken, l.next = f, &policies[i], f.Unavailable, f.Settling
		l.shut = l.closed(c.now, c.acrossWindows)
		c.byName[f.Name] = l
		if t := l.MaxUnavailableTotal; t != nil {
			c.total = min(c.total, t.Of(out.Managed))
		}
	}
}

// sortWaiting sorts the waiting nodes like the queue. Nodes that are not in it yet come last.
func (c *simulation) sortWaiting(queue []string) {
	place := make(map[string]int, len(queue))
	for i, name := range queue {
		place[name] = i
	}
	at := func(g *simulatedNode) int {
		if i, ok := place[g.Name]; ok {
			return i
		}
		return len(queue)
	}
	slices.SortStableFunc(c.waiting, func(a, b *simulatedNode) int { return cmp.Compare(at(a), at(b)) })
}

// add counts a node that is in a turn, waits for its turn, or is held. l is nil if no policy selects it.
func (c *simulation) add(n *turn.Node, l *line, held v1alpha1.Reason) {
	inTurn := n.InTurn()
	if !inTurn && (n.State == v1alpha1.StateAbsent || !n.Wants.Something()) {
		return
	}
	if l == nil {
		c.unmatched++
		return
	}
	l.Left++
	g := &simulatedNode{Node: n, line: l, counts: c.slots[n.Name]}
	var changes []v1alpha1.Change
	switch {
	case inTurn && n.Grant != nil:
		changes = n.Grant.Changes
	case n.Host != nil:
		changes = n.Host.Changes
	}
	var seen int
	g.lasts, seen = c.turnDuration(l, changes)
	if !inTurn && held == v1alpha1.ReasonGateClosed {
		l.shut = cmp.Or(l.shut, "a gate is closed")
	}
	shut := l.shut
	if g.skips = rollout.RequestedNow(n); g.skips {
		shut = l.stopped()
	}
	waitsForWindow := c.acrossWindows && held == v1alpha1.ReasonWindow && l.closed(c.now, false) != ""
	released := transient[held] || waitsForWindow
	if !inTurn && (released || shut != "") {
		if g.version, g.stages = osUpdate(changes); g.stages {
			if at := c.canaries.earliest(l, g.version); !at.IsZero() {
				c.notBefore[n.Name], l.NotBefore = at, later(l.NotBefore, at)
			}
		}
	}
	switch {
	case !inTurn && shut != "":
		l.Unknown = cmp.Or(l.Unknown, shut)
		c.canaries.add(n, "gets no turn: "+shut)
		return
	case !released, inTurn && n.Grant == nil:
		l.Held++
		c.canaries.add(n, "is held ("+string(held)+")")
		return
	}
	if g.lasts > l.Turn {
		l.Turn, l.Seen = g.lasts, seen
	}
	if !inTurn {
		c.waiting = append(c.waiting, g)
		c.canaries.add(n, "")
		return
	}
	elapsed := c.now.Sub(n.Grant.StartedAt)
	if elapsed > slowTurn*g.lasts {
		l.Unknown = cmp.Or(l.Unknown, n.Name+" has been in its turn for far longer than expected")
		c.canaries.add(n, "has been in its turn for far longer than expected")
		return
	}
	// A turn that already takes longer than expected gets a quarter of that time more.
	g.end = c.now.Add(max(g.lasts-elapsed, g.lasts/4))
	c.running = append(c.running, g)
	c.canaries.add(n, "")
}

// stopped returns why the policy grants no turn until someone acts, or "".
func (l *line) stopped() string {
	switch {
	case len(l.Problems) > 0:
		return "the policy is invalid"
	case l.figures.Halted:
		return "nothing is granted because of nodes that failed"
	case l.Paused:
		return "the policy is paused"
	case l.Observe:
		return "the policy only observes"
	}
	return ""
}

// closed returns why the policy grants no turn now, or "". With acrossWindows, a window
// that opens later is not a reason.
func (l *line) closed(now time.Time, acrossWindows bool) string {
	open, _, next := l.OpenUntil(now, l.ExpectedDuration)
	switch why := l.stopped(); {
	case why != "":
		return why
	case !open && next.IsZero():
		return "no window opens within eight days"
	case !open && !acrossWindows && l.Blackout(now) != nil:
		b := l.Blackout(now)
		return fmt.Sprintf("%s holds until %s UTC", b.Name, b.To.UTC().Format(time.DateTime))
	case !open && !acrossWindows:
		return fmt.Sprintf("the next window opens at %s UTC", next.UTC().Format(time.DateTime))
	}
	return ""
}

// run grants and ends turns in the order of time, by the rules of [rollout.Decide], until
// no turn runs and none can be granted.
func (c *simulation) run() {
	for now := c.now; ; {
		next := c.grant(now)
		for i := range c.running {
			if e := c.running[i].end; next.IsZero() || e.Before(next) {
				next = e
			}
		}
		if next.IsZero() {
			break
		}
		now = next
		c.running = slices.DeleteFunc(c.running, func(g *simulatedNode) bool {
			if g.end.After(now) {
				return false
			}
			c.endTurn(g)
			return true
		})
	}
	for i := range c.waiting {
		l := c.waiting[i].line
		l.Unknown = cmp.Or(l.Unknown, c.waiting[i].waits, "its slots are taken by nodes that are not in a turn")
	}
}

// endTurn ends the turn of a node. A node that another owner cordoned or deletes
// stays unavailable.
func (c *simulation) endTurn(g *simulatedNode) {
	cordoned := g.Unschedulable && !g.OwnCordon()
	stays := g.Deleted || cordoned
	if !cordoned {
		delete(c.controlPlane, g.Name)
	}
	if !stays {
		for _, name := range g.counts {
			if l := c.byName[name]; l != nil {
				l.taken--
			}
		}
		c.taken--
	}
	c.canaries.end(g, stays)
	g.line.At = g.end
	g.line.next = later(g.line.next, g.end.Add(g.line.Settle))
}

// grant grants turns to as many nodes as the policies allow now. It returns when it has
// to run again even if no turn ends, or the zero time.
func (c *simulation) grant(now time.Time) (again time.Time) {
	for i := range c.lines {
		l := &c.lines[i]
		l.open, l.closes, l.opens = l.OpenUntil(now, l.ExpectedDuration)
	}
	clear(c.canaries.asked)
	kept := c.waiting[:0]
	wait := func(g *simulatedNode, until time.Time) {
		if kept = append(kept, g); again.IsZero() || until.Before(again) {
			again = until
		}
	}
	for _, g := range c.waiting {
		l := g.line
		more := 1
		if len(g.counts) > 0 {
			more = 0 // it is unavailable already
		}
		var after wakeup
		if g.waits = ""; g.stages {
			after = c.canaries.until(l, g.version)
		}
		switch {
		case !g.skips && l.next.After(now):
			wait(g, l.next)
		case after.why != "":
			g.waits, kept = after.why, append(kept, g)
		case after.at.After(now):
			wait(g, after.at)
		case !g.skips && !l.open && c.acrossWindows && !l.opens.IsZero():
			wait(g, l.opens)
		case !g.skips && !l.open:
			why := "its window closes before that"
			if b := cmp.Or(l.Blackout(now), l.Blackout(l.closes)); b != nil {
				why = b.Name + " begins before that"
			}
			l.Unknown = cmp.Or(l.Unknown, why)
		case l.taken+more > l.figures.Allowed, c.taken+more > c.total:
			kept = append(kept, g)
		case g.ControlPlane && c.controlPlaneBusy(g.Name) != "":
			g.waits, kept = "control-plane node "+c.controlPlaneBusy(g.Name)+" is unavailable", append(kept, g)
		default:
			if g.ControlPlane {
				c.controlPlane[g.Name] = true
			}
			l.taken, c.taken = l.taken+more, c.taken+more
			if more == 1 {
				g.counts = []string{l.figures.Name}
			}
			c.begin[g.Name], g.end = now, now.Add(g.lasts)
			c.canaries.begin(g)
			c.running = append(c.running, g)
		}
	}
	c.waiting = kept
	return again
}

// controlPlaneBusy returns the first control-plane node that keeps the others from their turns, except the named one,
// or "".
func (c *simulation) controlPlaneBusy(except string) string {
	for _, name := range slices.Sorted(maps.Keys(c.controlPlane)) {
		if name != except {
			return name
		}
	}
	return ""
}
