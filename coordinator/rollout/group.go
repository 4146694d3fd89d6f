package rollout

import (
	"fmt"
	"math"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// entry is what a decision knows about one node.
type entry struct {
	*turn.Node
	verdict *Verdict
	gone    bool // it counts as unavailable
	*match
}

// match is what the policies say about the nodes that the same policies select.
type match struct {
	policy.Match
	group *group // of the policy that decides; nil if none selects the nodes
	nodes int    // managed ones
}

// group are the nodes of one policy.
type group struct {
	p    *policy.Policy
	rank int // in the Set
	PolicyFigures
	// excess is by how many nodes the budget is exceeded, without those that are given
	// back already; see settleForeign.
	excess int
	// ended is when the last of its nodes ended a turn, or was created.
	ended time.Time
	// held and detail are what holds all of its nodes; valid if asked is set.
	asked  bool
	held   v1alpha1.Reason
	detail string
	takers string // see slotsText
	// full is the text of [decision.fullText].
	full string
	// waitsFor holds the texts of [decision.waitsFor], by OS version.
	waitsFor map[string]string
	// shut is set if no window is open, or a blackout holds; valid if shutAsked is set.
	shutAsked, shut bool
}

// builtIn is used if no policy that can be read selects a node. No turn begins then, but a
// turn may end.
var builtIn = policy.Compile(&v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}, nil)

// match finds the policies of each node. It compares labels once for each node and policy
// with a selector, and does the rest once for all nodes that the same policies select.
func (d *decision) match() {
	d.groups = make([]group, len(d.Snapshot.Policies))
	for i := range d.groups {
		p := &d.Snapshot.Policies[i]
		d.groups[i] = group{p: p, rank: i, PolicyFigures: PolicyFigures{
			Name: p.Name, Generation: p.Generation, MaxFailed: max(p.MaxFailed, 0), RulesOnly: p.RulesOnly, Observe: p.Observe, Paused: p.Paused, Problems: p.Problems}}
	}
	matches := map[string]*match{}
	key := make([]byte, len(d.Snapshot.Policies))
	var last *match
	var lastKey string
	for i := range d.all {
		e := &d.all[i]
		for k := range d.Snapshot.Policies {
			key[k] = 0
			if d.Snapshot.Policies[k].Selects(e.Labels) {
				key[k] = 1
			}
		}
		if last == nil || lastKey != string(key) {
			lastKey = string(key)
			if last = matches[lastKey]; last == nil {
				last = &match{Match: d.Snapshot.Policies.For(e.Labels)}
				if last.Policy != nil {
					last.group = d.named(last.Policy.Name)
				}
				matches[lastKey] = last
				d.matches = append(d.matches, last)
			}
		}
		e.match = last
		if e.group != nil {
			e.verdict.Policy = e.group.Name
		}
	}
}

// named returns the group of the policy of that name, or nil. A policy with rulesOnly
// decides about no node, so it counts as missing here.
func (d *decision) named(name string) *group {
	for i := range d.groups {
		if d.groups[i].Name == name && !d.groups[i].RulesOnly {
			return &d.groups[i]
		}
	}
	return nil
}

// counting returns the groups in which the node counts while it is unavailable: that of the
// policy in its turn's grant, if that policy still exists, and that of the policy that
// decides now. If they are the same, the second is nil.
func (d *decision) counting(n *turn.Node) (in [2]*group) {
	in[0] = d.at(n).group
	if n.InTurn() && n.Grant != nil && (in[0] == nil || in[0].Name != n.Grant.Policy) {
		in[1] = d.named(n.Grant.Policy)
	}
	return in
}

// policyOf returns the policy that decides about the node now, or the built-in one if no
// policy that can be read does. The name is "" if no policy selects the node.
func (d *decision) policyOf(n *turn.Node) policy.Policy {
	p := builtIn
	if g := d.at(n).group; g != nil {
		if len(g.p.Problems) == 0 {
			return *g.p
		}
		p.Name, p.Generation = g.Name, g.Generation
	}
	return p
}

// count computes the figures.
func (d *decision) count() {
	d.Total = len(d.all)
	for i := range d.all {
		e := &d.all[i]
		n := e.Node
		inTurn, gone, failed := n.InTurn(), d.slotUse(n) != "", d.failed(n)
		wanting := inTurn || managed(n) && n.Wants.Something()
		if n.State != v1alpha1.StateAbsent {
			d.Managed++
			add(&d.Reporting, n.HostReported())
			e.nodes++
		}
		add(&d.InTurn, inTurn)
		add(&d.Wanting, wanting)
		add(&d.Unavailable, gone)
		add(&d.Failed, failed)
		if e.gone = gone; gone {
			d.taken = append(d.taken, e)
		}
		if g := e.group; g != nil {
			add(&g.Selected, n.State != v1alpha1.StateAbsent)
			add(&g.Wanting, wanting)
			add(&g.Waiting, wanting && !inTurn)
			add(&g.UpToDate, n.State != v1alpha1.StateAbsent && !inTurn && n.Wants == v1alpha1.WantsNothing && n.HostReported())
			if n.Last != nil {
				g.ended = later(g.ended, d.credible(n.Last.End))
			}
			g.ended = later(g.ended, d.credible(n.Created))
		}
		if !inTurn && !gone && !failed {
			continue
		}
		for _, g := range d.counting(n) {
			if g != nil {
				add(&g.InTurn, inTurn)
				add(&g.Unavailable, gone)
				add(&g.Failed, failed)
			}
		}
	}
	d.limits()
}

func add(count *int, is bool) {
	if is {
		*count++
	}
}

// limits computes how many nodes each policy allows to be unavailable.
func (d *decision) limits() {
	d.total, d.readTotal = math.MaxInt, math.MaxInt
	for i := range d.groups {
		g := &d.groups[i]
		if g.RulesOnly {
			continue
		}
		g.Allowed = g.p.MaxUnavailable.Of(g.Selected)
		g.Halted = g.Failed > g.MaxFailed
		d.Halted = d.Halted || g.Halted
		invalid := len(g.p.Problems) > 0
		if !invalid && (g.Selected > 0 || len(d.groups) == 1) {
			d.Budget += g.Allowed
		}
		// Making a policy invalid must not release nodes that it held. Its total applies as
		// long as it can be read, and counts as 1 if it cannot.
		switch t := g.p.MaxUnavailableTotal; {
		case t == nil:
		case invalid && *t == (policy.Limit{}):
			if d.total > 1 {
				d.total, d.totalBy = 1, g.Name+", whose maxUnavailableTotal cannot be read"
			}
		default:
			n := t.Of(d.Managed)
			d.readTotal = min(d.readTotal, n)
			if n < d.total {
				d.total, d.totalBy = n, g.Name
			}
		}
	}
	d.Budget = min(d.Budget, d.total)
}

// allowed returns how many nodes of the group may be unavailable. It is unknown if that
// field is what makes the policy invalid; then no turn begins, and none is backed out.
func (g *group) allowed() int {
	if len(g.p.Problems) > 0 && g.p.MaxUnavailable == (policy.Limit{}) {
		return math.MaxInt
	}
	return g.Allowed
}

// says formats a text about the policy. It begins with the policy's name if there is more
// than one policy.
func (d *decision) says(g *group, format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if len(d.groups) > 1 {
		text = "policy " + g.Name + ": " + text
	}
	return text
}

// groupHold returns what holds all nodes of the group, or "".
func (d *decision) groupHold(g *group) (v1alpha1.Reason, string) {
	if g.asked {
		return g.held, g.detail
	}
	g.asked = true
	hold := func(r v1alpha1.Reason, detail string) { g.held, g.detail = r, detail }
	window := d.closedWindow(g)
	gate, why := d.closedGate(g)
	switch {
	case g.Halted:
		hold(v1alpha1.ReasonHalted, d.says(g, "%d failed, %d allowed", g.Failed, g.MaxFailed))
	case g.Paused:
		hold(v1alpha1.ReasonPaused, "policy "+g.Name+" is paused")
	case window != "":
		hold(v1alpha1.ReasonWindow, d.says(g, "%s", window))
	case gate != "":
		hold(v1alpha1.ReasonGateClosed, d.says(g, "gate %s is closed: %s", gate, why))
	case !g.Settling.IsZero():
		hold(v1alpha1.ReasonBudget, d.says(g, "the fleet settles until %s", moment(d.Now, g.Settling)))
	}
	return g.held, g.detail
}

// closedWindow returns why the policy's windows and blackouts let no turn begin now, and when
// one may begin, or "".
func (d *decision) closedWindow(g *group) string {
	need := g.p.ExpectedDuration
	open, until, next := g.p.OpenUntil(d.Now, need)
	if open {
		if !until.IsZero() {
			d.wake(until.Add(tick - need))
		}
		return ""
	}
	text, opens := "no window is open", "the next opens at "
	switch b := g.p.Blackout(d.Now); {
	case b != nil:
		text, opens = b.Name+" holds until "+moment(d.Now, b.To), "the next turn may begin at "
		if next.Equal(b.To) {
			d.wake(next)
			return text
		}
	case !until.IsZero():
		text = "the window closes"
		if b := g.p.Blackout(until); b != nil {
			text, opens = b.Name+" begins", "the next turn may begin at "
		}
		text += fmt.Sprintf(" at %s, and a turn takes %v", moment(d.Now, until), need)
	}
	if next.IsZero() {
		return text + "; none that is long enough opens within eight days"
	}
	d.wake(next)
	return text + "; " + opens + moment(d.Now, next)
}

// tick is added to the last moment at which a turn fits into a window, to get the first
// moment at which it does not.
const tick = time.Millisecond

// moment formats a time in UTC, with the date unless it is today.
func moment(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly) + " UTC"
	}
	return t.Format(time.DateTime) + " UTC"
}

// closing reports whether the turn is to be cancelled because its policy's window has
// closed, or a blackout has begun. A policy that was deleted or became invalid has neither,
// so it cancels nothing.
func (d *decision) closing(n *turn.Node) bool {
	if n.Grant.Terms.OnClose != v1alpha1.OnCloseCancel || RequestedNow(n) && n.Grant.Request != nil && n.Grant.Request.Now {
		return false
	}
	g := d.named(n.Grant.Policy)
	if g == nil || len(g.p.Problems) > 0 {
		return false
	}
	if !g.shutAsked {
		open, until, _ := g.p.OpenUntil(d.Now, 0)
		g.shutAsked, g.shut = true, !open
		if open {
			d.wake(until)
		}
	}
	return g.shut
}

// closedGate returns the name of the policy's first gate that is not open, and why, or "".
func (d *decision) closedGate(g *group) (name, why string) {
	for _, gate := range g.p.Gates {
		switch answer, known := d.Gates[GateKey(g.Name, gate.Name)]; {
		case !known && d.Epoch == "":
		case !known:
			return gate.Name, "its query has not been answered yet"
		case !answer.Open:
			return gate.Name, answer.Detail
		}
	}
	return "", ""
}

// settle computes until when the nodes of each group settle: after the end of a turn, and
// after the API server's store went back in time.
func (d *decision) settle() {
	for i := range d.groups {
		g := &d.groups[i]
		g.ended = later(g.ended, d.credible(d.Rewound))
		if until := g.ended.Add(g.p.Settle); until.After(d.Now) {
			g.Settling = until
			d.Settling = later(d.Settling, until)
			d.wake(until)
		}
	}
}

func (d *decision) credible(t time.Time) time.Time {
	if t.After(d.Now.Add(maxAhead)) {
		return time.Time{}
	}
	return t
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// policyFigures returns the figures of each policy: the counts, and what holds its nodes.
func (d *decision) policyFigures() []PolicyFigures {
	for i := range d.all {
		e := &d.all[i]
		g, v := e.group, e.verdict
		if g == nil || e.State == v1alpha1.StateAbsent {
			continue
		}
		if v.Held == v1alpha1.ReasonNone {
			add(&g.Moving, e.InTurn() || v.Move != nil && v.Move.Disturbs())
			continue
		}
		if g.Held == nil {
			g.Held, g.Details = map[v1alpha1.Reason]int{}, map[v1alpha1.Reason]string{}
		}
		if g.Held[v.Held]++; g.Held[v.Held] == 1 {
			g.Details[v.Held] = v.Detail
		}
	}
	for _, m := range d.matches {
		if m.nodes == 0 {
			continue
		}
		for i := range d.groups {
			if g := &d.groups[i]; g == m.group || g.RulesOnly && slices.Contains(m.All, g.p) {
				g.Matches = append(g.Matches, MatchFigures{m.Match, m.nodes})
			}
		}
	}
	all := make([]PolicyFigures, len(d.groups))
	for i := range d.groups {
		all[i] = d.groups[i].PolicyFigures
	}
	return all
}
