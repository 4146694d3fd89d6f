package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// maxAhead is how far in the future a time on a Node may be. Leaders' clocks are within
// 30 s of the API server's. A user wrote a time that is further ahead, and it must not hold
// the fleet indefinitely.
const maxAhead = time.Minute

// grant grants as many nodes their turn as the budgets allow, in order, and holds the
// others with the reason.
//
// Nodes of a policy that only observes come after all others, and count as if they had
// their turn. So the reason that is published for them is what would happen if their policy
// acted too, and they hold no other node.
func (d *decision) grant(foreign bool) {
	if d.Stopped {
		return
	}
	d.queue = d.eligible()
	d.settle()
	all := d.Unavailable
	taken := make([]int, len(d.groups)) // by rank
	for i := range d.groups {
		taken[i] = d.groups[i].Unavailable
	}
	// Sorting takes long. The order makes no difference if only nodes that are unavailable already
	// are granted a turn, because these need no slot. Each of them was cordoned by another owner,
	// and if it is a control-plane node, it holds all other control-plane nodes in any order.
	wouldTake := func(p *place) bool {
		reason, _ := d.queueHold(p, foreign)
		return reason == "" && taken[p.group.rank] < p.group.Allowed
	}
	if slices.ContainsFunc(d.queue, wouldTake) {
		slices.SortFunc(d.queue, inOrder)
	}
	for _, p := range d.queue {
		e, n, g := p.entry, p.Node, p.group
		more := 1
		if e.gone {
			more = 0 // it counts already
		}
		reason, detail := d.queueHold(p, foreign)
		switch {
		case reason != "":
			e.hold(reason, detail)
		case taken[g.rank]+more > g.Allowed:
			e.hold(v1alpha1.ReasonBudget, d.fullText(g, taken[g.rank]))
		case all+more > d.total:
			e.hold(v1alpha1.ReasonBudget, fmt.Sprintf("%d unavailable in all, %d allowed in all by policy %s%s", all, d.total, d.totalBy, d.slotsText(nil)))
		default:
			if d.grantOne(n, g) {
				taken[g.rank] += more
				all += more
			}
		}
	}
}

// queueHold returns what holds a node of the queue, even if a slot is free; the reason is "" if
// nothing does.
func (d *decision) queueHold(p *place, foreign bool) (v1alpha1.Reason, string) {
	reason, detail := d.groupHold(p.group)
	switch {
	case foreign:
		return v1alpha1.ReasonHandover, "turns of another term come first"
	case len(d.Uncertain) > 0:
		return v1alpha1.ReasonHandover, d.uncertain(d.firstUncertain())
	case d.Unread != "":
		// An admin may have paused a policy, or reduced a budget.
		return v1alpha1.ReasonSourceUnreadable, "the coordinator cannot read the policies again: " + d.Unread
	case reason != "" && !waits(reason):
		return reason, detail
	case d.canaryHold(p.Node, p.group) != "":
		return v1alpha1.ReasonCanary, d.canaryHold(p.Node, p.group)
	case d.skipsWaits(p.Node, p.group):
		return "", ""
	}
	return reason, detail
}

// fullText says that the group's budget allows no more than the nodes that are unavailable, taken of them. It is the same
// for all nodes that wait: once the budget is full, only nodes that are unavailable already are granted a turn.
func (d *decision) fullText(g *group, taken int) string {
	if g.full == "" {
		g.full = d.says(g, "%d unavailable, %d allowed%s", taken, g.Allowed, d.slotsText(g))
	}
	return g.full
}

// grantOne grants the node its turn, which the budgets allow. It returns false if something of
// the node itself prevents that, and holds the node.
func (d *decision) grantOne(n *turn.Node, g *group) bool {
	if other := d.controlPlaneBlock(n); other != "" {
		d.hold(n, v1alpha1.ReasonControlPlane, other)
		return false
	}
	grant, fits := d.grantFor(n)
	if !fits {
		d.hold(n, v1alpha1.ReasonInvalidRecord, "the grant would be too large: the host names too many changes, or changes that are too long")
		return false
	}
	if g.Observe {
		d.hold(n, v1alpha1.ReasonWouldGrant, "policy "+g.Name+" only observes")
	} else {
		d.promoteOut(n, grant)
	}
	return true
}

// eligible returns the nodes that want something and that only their policies and the
// budgets can hold. It holds the others.
func (d *decision) eligible() []*place {
	places := make([]place, 0, d.Wanting)
	for i := range d.all {
		e := &d.all[i]
		n := e.Node
		if n.State != v1alpha1.StateIdle || e.decided() {
			continue
		}
		if reason, detail, ok := d.ownHold(n); !ok {
			e.hold(reason, detail)
			continue
		}
		switch {
		case !n.Wants.Something():
		case requestGone(n):
			e.verdict.Detail = "waits for its host to report that the request is gone"
		case e.match.Reason != "":
			e.hold(e.match.Reason, e.match.Detail)
		default:
			if text := d.blockHold(n); text != "" {
				e.hold(v1alpha1.ReasonDrainBlocked, text)
			} else {
				places = append(places, d.place(e, i))
			}
		}
	}
	queue := make([]*place, len(places))
	for i := range places {
		queue[i] = &places[i]
	}
	return queue
}

// place is what decides a node's place in the queue: it is read once, and compared many times.
type place struct {
	*entry
	group    *group
	first    int   // compared first, see [decision.place]
	lastTurn int64 // µs
	boot     int64 // µs
	zone     string
	byName   int // its place in the order of names
}

// place returns the node's place. Nodes of policies that only observe come last. Before them
// comes the leader's own node, because its turn ends the term; before that, the nodes whose
// last turn was backed out. Otherwise the policies decide, in the order of the Set, and within
// a policy its own order.
func (d *decision) place(e *entry, at int) place {
	first, step := e.group.rank, len(d.groups)
	for _, later := range []bool{backedOut(e.Node), e.Name == d.Self, e.group.Observe} {
		if later {
			first += step
		}
		step *= 2
	}
	return place{e, e.group, first, d.lastTurn(e.Node).UnixMicro(), e.Host.BootTime.UnixMicro(), d.zone(e.Zone), at}
}

// zone returns one and the same string for equal zones: comparing it reads no memory of the Nodes.
func (d *decision) zone(zone string) string {
	if d.zones == nil {
		d.zones = map[string]string{}
	}
	if one, ok := d.zones[zone]; ok {
		return one
	}
	d.zones[zone] = zone
	return zone
}

func inOrder(a, b *place) int {
	if c := cmp.Compare(a.first, b.first); c != 0 {
		return c
	}
	for _, key := range a.group.p.Order {
		c := 0
		switch key {
		case v1alpha1.OrderLastTurn:
			c = cmp.Compare(a.lastTurn, b.lastTurn)
		case v1alpha1.OrderZone:
			c = cmp.Compare(a.zone, b.zone)
		case v1alpha1.OrderOldestBoot:
			c = cmp.Compare(a.boot, b.boot)
		case v1alpha1.OrderName:
			c = cmp.Compare(a.byName, b.byName)
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(a.byName, b.byName)
}

// day is how long a turn counts against maxTurnsPerDay.
const day = 24 * time.Hour

// lastTurn returns when the node's last turn ended, if that was within the last
// day, and the zero time otherwise. A node that an admin's retry names keeps its
// place, because the admin wants it tried soon.
func (d *decision) lastTurn(n *turn.Node) time.Time {
	if n.Last == nil || n.Retry == n.Last.Turn || n.Last.End.Before(d.Now.Add(-day)) {
		return time.Time{}
	}
	return d.credible(n.Last.End)
}

// recent returns the grant times in turns that still count.
func (d *decision) recent(turns []time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(turns), func(t time.Time) bool {
		return !t.After(d.Now.Add(-day)) || d.credible(t).IsZero()
	})
}

// turnLimit returns why the node may not have another turn yet, and when it may,
// or "" if it may now. An admin can allow one more turn; a host cannot.
func (d *decision) turnLimit(n *turn.Node) string {
	if n.Last == nil || n.Retry == n.Last.Turn {
		return ""
	}
	limit := d.policyOf(n).MaxTurnsPerDay
	turns := d.recent(n.Last.Turns)
	if len(turns) < limit {
		return ""
	}
	again := turns[len(turns)-limit].Add(day)
	d.wake(again)
	return fmt.Sprintf("%d turns within 24 hours, %d allowed; the next may begin at %s", len(turns), limit, moment(d.Now, again))
}

func backedOut(n *turn.Node) bool {
	return n.Last != nil && n.Last.Result == v1alpha1.ResultBackedOut && n.Retry != n.Last.Turn && wantsAgain(n.Last, n.Host.Changes)
}

// ownHold returns why an idle node is held, from its own Node alone; ok is true if it is not
// held.
func (d *decision) ownHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	if text := unreadable(n); text != "" {
		return v1alpha1.ReasonInvalidRecord, text, false
	}
	if !n.HostReported() {
		// The want is from another boot, and the host has not reported since.
		if n.Wants.Something() || n.Host == nil {
			return v1alpha1.ReasonHostSilent, "no report from its present boot", false
		}
		return "", "", true
	}
	if !n.Wants.Something() {
		return "", "", true
	}
	if p := n.Host.Protocol; p > v1alpha1.Protocol || p < v1alpha1.Protocol-1 {
		return v1alpha1.ReasonVersionSkew, fmt.Sprintf("the host speaks protocol %d, the coordinator %d", p, v1alpha1.Protocol), false
	}
	if message, refused := d.Refused[n.Name]; refused {
		return v1alpha1.ReasonForbidden, message, false
	}
	if n.Owner != "" {
		return v1alpha1.ReasonOtherManager, n.Owner, false
	}
	if v := n.Host.Veto; v != "" && !v.IsVeto() {
		return v1alpha1.ReasonVersionSkew, fmt.Sprintf("the host has the veto %q, which the coordinator does not know", v), false
	} else if v != "" {
		return v, "the host's own veto", false
	}
	if !n.Ready {
		return v1alpha1.ReasonNotReady, "", false
	}
	if text := d.turnLimit(n); text != "" {
		return v1alpha1.ReasonTurnLimit, text, false
	}
	return d.lastHold(n)
}

// blockHold returns why a node is held whose host says that Block is off for its next turn, or
// "". The coordinator's own policy and clock have to say so too. Otherwise the node would be
// granted a turn in which the host still may not evict the pods, and would refuse.
func (d *decision) blockHold(n *turn.Node) string {
	if !n.Host.BlockOff {
		return ""
	}
	if n.Host.BlockedSince.IsZero() {
		// The host said so in the turn before this one, whose drain evicted the pods. Another
		// may have come since.
		return "until its host reports again whether pods block the drain"
	}
	p := d.policyOf(n)
	limit := p.Terms.BlockLimit()
	if limit == 0 {
		return "policy " + p.Name + " does not end what blocks the drain (onBlockTimeout), although the host says so"
	}
	if end := n.Host.BlockedSince.Add(limit); end.After(d.Now) {
		d.wake(end)
		return "until " + moment(d.Now, end) + ", when blockTimeout of policy " + p.Name + " is over"
	}
	return ""
}

// lastHold returns why the result of the node's last turn holds it; ok is true if it does
// not.
func (d *decision) lastHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	l := n.Last
	if l == nil || n.Retry == l.Turn || !wantsAgain(l, n.Host.Changes) {
		return "", "", true
	}
	switch l.Result {
	case v1alpha1.ResultFailed:
		detail := string(l.Reason)
		if l.Reason == v1alpha1.ReasonStillWanted && len(l.Changes) > 0 {
			detail += ": " + l.Changes[0].String()
			if more := len(l.Changes) - 1; more > 0 {
				detail += fmt.Sprintf(" and %d more", more)
			}
		}
		return v1alpha1.ReasonFailed, detail, false
	case v1alpha1.ResultBackedOut:
		if l.NotBefore == nil || !l.NotBefore.After(d.Now) || l.NotBefore.After(d.Now.Add(d.policyOf(n).BackoffMax+maxAhead)) {
			return "", "", true
		}
		if l.Reason == v1alpha1.ReasonHostSilent {
			if l.HostDigest != v1alpha1.Digest(n.RawHost) {
				return "", "", true // the host has reported since
			}
			d.wake(*l.NotBefore)
			return v1alpha1.ReasonHostSilent, "no answer in its last turn; tried again at " + moment(d.Now, *l.NotBefore), false
		}
		d.wake(*l.NotBefore)
		return v1alpha1.ReasonBackoff, fmt.Sprintf("%s; tried again at %s", l.Reason, moment(d.Now, *l.NotBefore)), false
	}
	return "", "", true
}

// wantsAgain reports whether the changes are those that the turn was for. A file or unit
// that changed again during its turn counts as the same change, whatever it contains now.
// Otherwise a unit that rewrites the file at each restart would be granted turn after turn.
func wantsAgain(l *v1alpha1.Last, now []v1alpha1.Change) bool {
	if l.Reason == v1alpha1.ReasonInvalidGrant {
		return true // the changes were in the grant, which could not be read
	}
	if l.Result == v1alpha1.ResultFailed && l.Reason == v1alpha1.ReasonStillWanted {
		return v1alpha1.SameChanges(byName(l.Changes), byName(now))
	}
	return v1alpha1.SameChanges(l.Changes, now)
}

// byName returns the changes, with files and units stripped of their content's digest.
func byName(changes []v1alpha1.Change) []v1alpha1.Change {
	changes = slices.Clone(changes)
	for i := range changes {
		if changes[i].Watched() {
			changes[i].Version = ""
		}
	}
	return changes
}

// controlPlaneBlock returns which control-plane node keeps the control-plane node n from its
// turn, and why, or "". Policies cannot change this, because etcd's quorum depends on these
// nodes.
func (d *decision) controlPlaneBlock(n *turn.Node) string {
	if !n.ControlPlane {
		return ""
	}
	for _, o := range d.nodes {
		if !o.ControlPlane || o.Name == n.Name {
			continue
		}
		switch v := d.at(o).verdict; {
		case byUs(o), v.Move != nil && v.Move.Disturbs(), d.Uncertain[o.Name]:
			return o.Name + " is in a turn"
		case v.Held == v1alpha1.ReasonWouldGrant:
			return o.Name + " would be in a turn"
		case !o.Ready:
			return o.Name + " is not Ready"
		case o.Unschedulable:
			return o.Name + " is unschedulable"
		}
	}
	return ""
}

// unreadable returns why the host's record cannot be read, or "" if it can.
func unreadable(n *turn.Node) string {
	for _, p := range n.Problems {
		if p.Key == v1alpha1.AnnotationHost {
			return p.String()
		}
	}
	return ""
}

// firstUncertain returns one of the nodes to which a write has an unknown outcome,
// preferably one whose write is unsettled.
func (d *decision) firstUncertain() string {
	if len(d.Unsettled) > 0 {
		return slices.Min(slices.Collect(maps.Keys(d.Unsettled)))
	}
	return slices.Min(slices.Collect(maps.Keys(d.Uncertain)))
}

// grantFor returns the node's grant for what its host wants; fits is false if the
// record would be larger than a reader accepts.
func (d *decision) grantFor(n *turn.Node) (g v1alpha1.Grant, fits bool) {
	g = d.newGrant(n)
	g.Wants, g.Drains, g.Changes, g.OSVersion = n.Wants, n.Host.Drains, n.Host.Changes, n.Host.OSVersion
	g.Steps, g.BlockOff = v1alpha1.StepsDigest(n.Host.Steps), n.Host.BlockOff // see blockHold
	setRequest(&g, n)
	return g, g.Fits()
}

// promoteOut grants the node its turn.
func (d *decision) promoteOut(n *turn.Node, g v1alpha1.Grant) {
	if g.Drains && d.Total == 1 {
		g.Drains, g.OnlyNode = false, true
	}
	next, _ := turn.Next(n.State, turn.Granted, turn.PlanOf(&g), WaitsIn(n, &g))
	d.move(n, Move{To: next, On: turn.Granted, NewTurn: true, Grant: &g, Remove: hookKeys(n)})
}
