package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

const (
	// minSeen is how many turns must have been seen before their duration counts
	// instead of the policy's expectedDuration.
	minSeen = 3
	// slowTurn is from how many times its expected duration on a turn's end is not
	// known.
	slowTurn = 2
)

// End is when the nodes of a policy, or of all policies, that want something or are
// in a turn are expected to be up to date.
type End struct {
	// At is about when; the zero time if it is not known, or if no node is left.
	At time.Time
	// Unknown says why At is not known.
	Unknown string
	// Left is how many nodes want something or are in a turn. Held of them are held
	// for a reason of their own: At is without them.
	Left, Held int
	// Turn is how long a turn is expected to take: the median of those that were
	// Seen on the policy's nodes within a day and were for the same changes, or the
	// policy's expectedDuration if Seen is 0. The longest one counts.
	Turn time.Duration
	Seen int
}

// passing are reasons that hold a node in the course of a rollout.
var passing = map[v1alpha1.Reason]bool{
	v1alpha1.ReasonNone: true, v1alpha1.ReasonBudget: true, v1alpha1.ReasonControlPlane: true,
	v1alpha1.ReasonMinUptime: true, v1alpha1.ReasonSessions: true, v1alpha1.ReasonHandover: true,
}

// Ends says when the rollout is expected to be over, for each policy by its name and
// for the fleet. out is the decision on s, and held is what holds each node, by its
// name, if it is known better than in out.
func Ends(s rollout.Snapshot, out *rollout.Outcome, held map[string]v1alpha1.Reason) (fleet End, policies map[string]End) {
	c := newCourse(s, out, held, false)
	c.roll()
	policies = make(map[string]End, len(c.lines))
	fleet.Left, fleet.Held = c.lost, c.lost
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
			continue // it keeps no other from its end
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

// begins says when the nodes that wait are expected to be granted their turns, by the
// rules of [Ends], except that nodes wait for the next window. A node that is not there
// is held for a reason of its own, or it is not known when it begins.
func begins(s rollout.Snapshot, out *rollout.Outcome) map[string]time.Time {
	c := newCourse(s, out, nil, true)
	c.roll()
	return c.begin
}

// course is a rollout as it is expected to go on.
type course struct {
	acrossWindows bool                 // nodes wait for the next window
	begin         map[string]time.Time // of the turns that were granted, by node
	now           time.Time
	lines         []line
	byName        map[string]*line
	total         int // of all nodes that may be unavailable; negative: no limit
	taken         int
	waiting       []*goer
	running       []*goer
	seen          map[string][]time.Duration // by policy and changes
	slots         map[string][]string        // by node, the policies in which it counts as unavailable
	lost          int                        // nodes that want something and that no policy selects
}

// line is one policy's part of it.
type line struct {
	End
	figures *rollout.PolicyFigures
	*policy.Policy
	taken int
	next  time.Time // not before this does it grant a turn
	// shut is why none of its nodes may begin a turn at present, or "".
	shut string
	// open is whether a window is open that a turn fits in, at the time of the last
	// grant, and opens when the next one opens; zero: not within eight days.
	open  bool
	opens time.Time
}

// goer is a node that is in a turn, or will be.
type goer struct {
	*turn.Node
	line  *line
	lasts time.Duration
	end   time.Time
	// counts are the policies in which the node counts as unavailable.
	counts []string
}

func newCourse(s rollout.Snapshot, out *rollout.Outcome, held map[string]v1alpha1.Reason, acrossWindows bool) *course {
	c := &course{acrossWindows: acrossWindows, begin: map[string]time.Time{}, now: s.Now, total: -1, taken: out.Unavailable, byName: map[string]*line{}, seen: map[string][]time.Duration{}, slots: map[string][]string{}}
	c.lines = make([]line, len(out.Policies))
	for i := range out.Policies {
		f := &out.Policies[i]
		l := &c.lines[i]
		l.figures, l.Policy, l.taken, l.next = f, &s.Policies[i], f.Unavailable, f.Settling
		l.shut = l.closed(s.Now, acrossWindows)
		c.byName[f.Name] = l
		if t := s.Policies[i].MaxUnavailableTotal; t != nil {
			if n := t.Of(out.Managed); c.total < 0 || n < c.total {
				c.total = n
			}
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
			c.saw(nodes[out.Verdicts[i].Node], l)
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
			c.lost++
		default:
			c.add(n, l, reason)
		}
	}
	last := len(out.Queue) + 1 // of those that are not in the queue yet
	slices.SortStableFunc(c.waiting, func(a, b *goer) int {
		return cmp.Compare(cmp.Or(place[a.Name], last), cmp.Or(place[b.Name], last))
	})
	return c
}

// kindOf tells turns for the same sources from others: what a file holds is another
// thing on each host.
func kindOf(l *line, changes []v1alpha1.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, string(c.Source)+" "+c.Name)
	}
	slices.Sort(parts)
	return l.figures.Name + "\x00" + strings.Join(parts, "\x00")
}

// saw notes how long the last turn of a node took, if it did what it was for.
func (c *course) saw(n *turn.Node, l *line) {
	if n.Last == nil || n.Last.Result != v1alpha1.ResultDone || len(n.Last.Turns) == 0 {
		return
	}
	took := n.Last.End.Sub(n.Last.Turns[len(n.Last.Turns)-1])
	if age := c.now.Sub(n.Last.End); took > 0 && age >= 0 && age < 24*time.Hour {
		kind := kindOf(l, n.Last.Changes)
		c.seen[kind] = append(c.seen[kind], took)
	}
}

// lasts is how long a turn for the changes is expected to take.
func (c *course) lasts(l *line, changes []v1alpha1.Change) (d time.Duration, seen int) {
	took := c.seen[kindOf(l, changes)]
	if len(took) < minSeen {
		return l.ExpectedDuration, 0
	}
	slices.Sort(took)
	return took[len(took)/2], len(took)
}

// add adds a node to those that are in a turn, wait for theirs, or are held.
func (c *course) add(n *turn.Node, l *line, held v1alpha1.Reason) {
	inTurn := n.InTurn()
	l.Left++
	g := &goer{Node: n, line: l, counts: c.slots[n.Name]}
	var changes []v1alpha1.Change
	switch {
	case inTurn && n.Grant != nil:
		changes = n.Grant.Changes
	case n.Host != nil:
		changes = n.Host.Changes
	}
	var seen int
	g.lasts, seen = c.lasts(l, changes)
	if !inTurn && held == v1alpha1.ReasonGateClosed {
		l.shut = cmp.Or(l.shut, "a gate is closed")
	}
	if !inTurn && l.shut != "" {
		l.Unknown = cmp.Or(l.Unknown, l.shut)
		return
	}
	waitsForWindow := c.acrossWindows && held == v1alpha1.ReasonWindow && l.closed(c.now, false) != ""
	if !passing[held] && !waitsForWindow || inTurn && n.Grant == nil {
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
	// A turn that takes longer than most is not over in the next moment.
	g.end = c.now.Add(max(g.lasts-elapsed, g.lasts/4))
	c.running = append(c.running, g)
}

// closed says why the policy lets none of its nodes go at present, or "". That a window
// opens later is no reason if nodes wait for it.
func (l *line) closed(now time.Time, acrossWindows bool) string {
	open, _, next := policy.OpenUntil(l.Windows, now, l.ExpectedDuration)
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
	case !open && !acrossWindows:
		return fmt.Sprintf("the next window opens at %s UTC", next.UTC().Format(time.DateTime))
	}
	return ""
}

// roll grants turns and ends them, in the order of time, by the rules of
// [rollout.Decide], until no node waits or is in its turn.
func (c *course) roll() {
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
		c.running = slices.DeleteFunc(c.running, func(g *goer) bool {
			if g.end.After(now) {
				return false
			}
			c.ends(g)
			return true
		})
	}
	for i := range c.waiting {
		l := c.waiting[i].line
		l.Unknown = cmp.Or(l.Unknown, "its slots are taken by nodes that are not in a turn")
	}
}

// ends ends the turn of a node. A node that someone else cordoned stays unavailable.
func (c *course) ends(g *goer) {
	if !g.Unschedulable || g.Mark {
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

// grant gives as many nodes their turn as may have it now. It returns when it is to
// be asked again although no turn ends, or the zero time.
func (c *course) grant(now time.Time) (again time.Time) {
	for i := range c.lines {
		l := &c.lines[i]
		l.open, _, l.opens = policy.OpenUntil(l.Windows, now, l.ExpectedDuration)
	}
	kept := c.waiting[:0]
	wait := func(g *goer, until time.Time) {
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
			l.Unknown = cmp.Or(l.Unknown, "its window closes before that")
		case l.taken+more > l.figures.Allowed, c.total >= 0 && c.taken+more > c.total, g.ControlPlane && c.controlPlaneBusy():
			kept = append(kept, g)
		default:
			l.taken, c.taken = l.taken+more, c.taken+more
			if more > 0 {
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
func (c *course) controlPlaneBusy() bool {
	return slices.ContainsFunc(c.running, func(g *goer) bool { return g.ControlPlane })
}
