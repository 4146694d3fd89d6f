package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

const (
	// minSeen is how many finished turns are needed before their median duration
	// replaces the policy's expectedDuration.
	minSeen = 3
	// slowTurn times its expected duration is the longest time for which a turn's end
	// is estimated. After that, the end is unknown.
	slowTurn = 2
)

// End estimates when the nodes of a policy, or of all policies, will be up to date. It
// covers the nodes that want something or are in a turn.
type End struct {
	// At is the estimated time. It is zero if the time is unknown or no node is left.
	At time.Time
	// Unknown says why At is not known.
	Unknown string
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
	v1alpha1.ReasonLoadBalancerDelay: true,
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
		if e.Unknown == "" && e.Left > 0 && e.Held == e.Left {
			e.Unknown = "every node that is left is held"
		}
		if e.Unknown != "" {
			e.At = time.Time{}
		}
		policies[l.figures.Name] = e
		fleet.Left, fleet.Held = fleet.Left+e.Left, fleet.Held+e.Held
		if e.Left == e.Held {
			continue // it does not delay the fleet
		}
		if e.Turn > fleet.Turn {
			fleet.Turn, fleet.Seen = e.Turn, e.Seen
		}
		if e.At.After(fleet.At) {
			fleet.At = e.At
		}
		if e.Unknown != "" && fleet.Unknown == "" {
			fleet.Unknown = e.Unknown
			if len(c.lines) > 1 {
				fleet.Unknown = "policy " + l.figures.Name + ": " + e.Unknown
			}
		}
	}
	if fleet.Unknown == "" && fleet.Left > 0 && fleet.Held == fleet.Left {
		fleet.Unknown = "every node that is left is held"
	}
	if fleet.Unknown != "" {
		fleet.At = time.Time{}
	}
	return fleet, policies
}

// begins estimates when the waiting nodes will be granted their turns, by node name. It
// follows the rules of [Ends], except that nodes also wait for the next window. A node
// that the rollout does not release, or whose time is unknown, is not in the result.
func begins(s rollout.Snapshot, out *rollout.Outcome) map[string]time.Time {
	c := newSimulation(s, out, nil, true)
	c.run()
	return c.begin
}

// simulation simulates the rest of a rollout.
type simulation struct {
	acrossWindows bool                 // nodes wait for the next window
	begin         map[string]time.Time // when each node was granted its turn
	now           time.Time
	lines         []line
	byName        map[string]*line
	total         int // how many of all nodes may be unavailable
	taken         int // how many of all nodes are unavailable
	waiting       []*simulatedNode
	running       []*simulatedNode
	seen          map[string][]time.Duration // durations of finished turns, by turnKind
	slots         map[string][]string        // by node, the policies in which it counts as unavailable
	unmatched     int                        // nodes that want something and that no policy selects
}

// line is one policy's part of the simulation.
type line struct {
	End
	figures *rollout.PolicyFigures
	*policy.Policy
	taken int       // how many of its nodes are unavailable
	next  time.Time // it grants no turn before this time
	// shut is why no node of the policy may begin a turn now, or "".
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
}

func newSimulation(s rollout.Snapshot, out *rollout.Outcome, held map[string]v1alpha1.Reason, acrossWindows bool) *simulation {
	c := &simulation{acrossWindows: acrossWindows, begin: map[string]time.Time{}, now: s.Now, total: math.MaxInt, taken: out.Unavailable, byName: map[string]*line{}, seen: map[string][]time.Duration{}, slots: map[string][]string{}}
	c.lines = make([]line, len(out.Policies))
	for i := range out.Policies {
		f := &out.Policies[i]
		l := &c.lines[i]
		l.figures, l.Policy, l.taken, l.next = f, &s.Policies[i], f.Unavailable, f.Settling
		l.shut = l.closed(s.Now, acrossWindows)
		c.byName[f.Name] = l
		if t := s.Policies[i].MaxUnavailableTotal; t != nil {
			c.total = min(c.total, t.Of(out.Managed))
		}
	}
	for _, slot := range out.Slots {
		c.slots[slot.Node] = slot.Policies
	}
	place := make(map[string]int, len(out.Queue))
	for i, name := range out.Queue {
		place[name] = i + 1
	}
	nodes := make(map[string]*turn.Node, len(s.Nodes))
	for i := range s.Nodes {
		nodes[s.Nodes[i].Name] = &s.Nodes[i]
	}
	for i := range out.Verdicts {
		if l := c.byName[out.Verdicts[i].Policy]; l != nil {
			c.recordLast(nodes[out.Verdicts[i].Node], l)
		}
	}
	for i := range out.Verdicts {
		v, n := &out.Verdicts[i], nodes[out.Verdicts[i].Node]
		reason, known := held[v.Node]
		if !known {
			reason = v.Held
		}
		switch l := c.byName[v.Policy]; {
		case !n.InTurn() && (n.State == v1alpha1.StateAbsent || !n.Wants.Something()):
		case l == nil:
			c.unmatched++
		default:
			c.add(n, l, reason)
		}
	}
	// Nodes that are not in the queue yet come last.
	slices.SortStableFunc(c.waiting, func(a, b *simulatedNode) int {
		return cmp.Compare(cmp.Or(place[a.Name], math.MaxInt), cmp.Or(place[b.Name], math.MaxInt))
	})
	return c
}

// turnKind returns a key that is equal for turns of one policy for the same sources. It
// leaves out versions, because the content of a file differs from host to host.
func turnKind(l *line, changes []v1alpha1.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, string(c.Source)+" "+c.Name)
	}
	slices.Sort(parts)
	return l.figures.Name + "\x00" + strings.Join(parts, "\x00")
}

// recordLast records how long the node's last turn took, if its result is Done.
func (c *simulation) recordLast(n *turn.Node, l *line) {
	if n.Last == nil || n.Last.Result != v1alpha1.ResultDone || len(n.Last.Turns) == 0 {
		return
	}
	took := n.Last.End.Sub(n.Last.Turns[len(n.Last.Turns)-1])
	if age := c.now.Sub(n.Last.End); took > 0 && age >= 0 && age < 24*time.Hour {
		kind := turnKind(l, n.Last.Changes)
		c.seen[kind] = append(c.seen[kind], took)
	}
}

// turnDuration returns how long a turn for the changes is expected to take, and from how
// many finished turns that was computed; 0: from none.
func (c *simulation) turnDuration(l *line, changes []v1alpha1.Change) (d time.Duration, seen int) {
	took := c.seen[turnKind(l, changes)]
	if len(took) < minSeen {
		return l.ExpectedDuration, 0
	}
	slices.Sort(took)
	return took[len(took)/2], len(took)
}

// add counts a node as in a turn, waiting for its turn, or held.
func (c *simulation) add(n *turn.Node, l *line, held v1alpha1.Reason) {
	inTurn := n.InTurn()
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
	if !inTurn && l.shut != "" {
		l.Unknown = cmp.Or(l.Unknown, l.shut)
		return
	}
	waitsForWindow := c.acrossWindows && held == v1alpha1.ReasonWindow && l.closed(c.now, false) != ""
	if !transient[held] && !waitsForWindow || inTurn && n.Grant == nil {
		l.Held++
		return
	}
	if g.lasts > l.Turn {
		l.Turn, l.Seen = g.lasts, seen
	}
	if !inTurn {
		c.waiting = append(c.waiting, g)
		return
	}
	elapsed := c.now.Sub(n.Grant.StartedAt)
	if elapsed > slowTurn*g.lasts {
		l.Unknown = cmp.Or(l.Unknown, n.Name+" has been in its turn for far longer than expected")
		return
	}
	// A turn that already takes longer than expected gets a quarter of that time more.
	g.end = c.now.Add(max(g.lasts-elapsed, g.lasts/4))
	c.running = append(c.running, g)
}

// closed returns why the policy grants no turn now, or "". With acrossWindows, a window
// that opens later is not a reason.
func (l *line) closed(now time.Time, acrossWindows bool) string {
	open, _, next := l.OpenUntil(now, l.ExpectedDuration)
	switch {
	case len(l.Problems) > 0:
		return "the policy is invalid"
	case l.figures.Halted:
		return "nothing is granted because of nodes that failed"
	case l.Paused:
		return "the policy is paused"
	case l.Observe:
		return "the policy only observes"
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
		l.Unknown = cmp.Or(l.Unknown, "its slots are taken by nodes that are not in a turn")
	}
}

// endTurn ends the turn of a node. A node that another owner cordoned or deletes
// stays unavailable.
func (c *simulation) endTurn(g *simulatedNode) {
	if !g.Deleted && (!g.Unschedulable || g.OwnCordon()) {
		for _, name := range g.counts {
			if l := c.byName[name]; l != nil {
				l.taken--
			}
		}
		c.taken--
	}
	g.line.At = g.end
	if next := g.end.Add(g.line.Settle); next.After(g.line.next) {
		g.line.next = next
	}
}

// grant grants turns to as many nodes as the policies allow now. It returns when it has
// to run again even if no turn ends, or the zero time.
func (c *simulation) grant(now time.Time) (again time.Time) {
	for i := range c.lines {
		l := &c.lines[i]
		l.open, l.closes, l.opens = l.OpenUntil(now, l.ExpectedDuration)
	}
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
		switch {
		case l.next.After(now):
			wait(g, l.next)
		case !l.open && c.acrossWindows && !l.opens.IsZero():
			wait(g, l.opens)
		case !l.open:
			why := "its window closes before that"
			if b := l.Blackout(l.closes); b != nil {
				why = b.Name + " begins before that"
			}
			l.Unknown = cmp.Or(l.Unknown, why)
		case l.taken+more > l.figures.Allowed, c.taken+more > c.total, g.ControlPlane && c.controlPlaneBusy():
			kept = append(kept, g)
		default:
			l.taken, c.taken = l.taken+more, c.taken+more
			if more == 1 {
				g.counts = []string{l.figures.Name}
			}
			c.begin[g.Name], g.end = now, now.Add(g.lasts)
			c.running = append(c.running, g)
		}
	}
	c.waiting = kept
	return again
}

// controlPlaneBusy reports whether a control-plane node is in its turn.
func (c *simulation) controlPlaneBusy() bool {
	return slices.ContainsFunc(c.running, func(g *simulatedNode) bool { return g.ControlPlane })
}
