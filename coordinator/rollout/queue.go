package rollout

import (
	"cmp"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

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
			if reason == e.match.Reason {
				detail = e.match.Detail // the policy is invalid to the host too
			}
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

func backedOut(n *turn.Node) bool {
	return n.Last != nil && n.Last.Result == v1alpha1.ResultBackedOut && n.Retry != n.Last.Turn && wantsAgain(n.Last, n.Host.Changes)
}
