package rollout

import (
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
