package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// nonsense bounds what a time on a Node may lie in the future. Clocks of
// leaders are within 30 s of the API server's; what is further ahead was
// typed by somebody, and must not hold the fleet for ever.
const nonsense = time.Minute

// grant gives as many nodes as may be their turn, in order, and holds the
// others with the reason that stands in their way.
func (d *decision) grant(foreign bool) {
	if d.Stopped {
		return
	}
	queue := d.eligible()
	settled, until := d.settled()
	if !settled {
		d.Settling = until
		d.wake(until)
	}
	taken := d.Unavailable
	for _, n := range queue {
		counted := unavailable(n) || d.Uncertain[n.Name]
		need := taken
		if !counted {
			need++
		}
		switch {
		case foreign:
			d.hold(n, v1alpha1.ReasonHandover, "turns of another term come first")
		case len(d.Uncertain) > 0:
			d.hold(n, v1alpha1.ReasonHandover, "a write's outcome is not known")
		case d.Halted:
			d.hold(n, v1alpha1.ReasonHalted, fmt.Sprintf("%d failed, %d allowed", d.Failed, d.Policy.MaxFailed))
		case d.Policy.Paused:
			d.hold(n, v1alpha1.ReasonPaused, "the policy is paused")
		case !settled:
			d.hold(n, v1alpha1.ReasonBudget, "the fleet settles until "+until.UTC().Format(time.TimeOnly)+" UTC")
		case need > d.Budget:
			d.hold(n, v1alpha1.ReasonBudget, fmt.Sprintf("%d unavailable, %d allowed", taken, d.Budget))
		default:
			if other := d.controlPlaneBlock(n); other != "" {
				d.hold(n, v1alpha1.ReasonControlPlane, other)
				continue
			}
			d.promoteOut(n)
			taken = need
		}
	}
}

// eligible are the nodes that want something and that nothing of their own
// holds, in the order in which they get their turn; the others are held.
func (d *decision) eligible() []*turn.Node {
	var queue []*turn.Node
	for _, n := range d.nodes {
		if n.State != v1alpha1.StateIdle || d.decided(n) {
			continue
		}
		if reason, detail, ok := d.ownHold(n); !ok {
			d.hold(n, reason, detail)
			continue
		}
		if n.Wants.Something() {
			queue = append(queue, n)
		}
	}
	slices.SortFunc(queue, d.order)
	return queue
}

// order: whoever was turned back goes behind the others; the leader's own host
// goes last of all, because its turn ends the term; then zone by zone, the
// longest without a boot first.
func (d *decision) order(a, b *turn.Node) int {
	return cmp.Or(
		cmpBool(a.Name == d.Self, b.Name == d.Self),
		cmpBool(turnedBack(a), turnedBack(b)),
		cmp.Compare(a.Zone, b.Zone),
		a.Host.BootTime.Compare(b.Host.BootTime),
		cmp.Compare(a.Name, b.Name),
	)
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func turnedBack(n *turn.Node) bool {
	return n.Last != nil && n.Last.Result == v1alpha1.ResultTurnedBack && n.Retry != n.Last.Turn &&
		v1alpha1.SameChanges(n.Last.Changes, n.Host.Changes)
}

// ownHold says why an idle node is held by what stands on itself.
func (d *decision) ownHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	if !n.HostSpeaks() {
		// A want from another boot: the host has not spoken since.
		if n.Wants.Something() || n.Host == nil {
			return v1alpha1.ReasonHostSilent, "no word from its present boot", false
		}
		return "", "", true
	}
	if !n.Wants.Something() {
		return "", "", true
	}
	if p := n.Host.Protocol; p > v1alpha1.Protocol || p < v1alpha1.Protocol-1 {
		return v1alpha1.ReasonVersion, fmt.Sprintf("the host speaks protocol %d, the coordinator %d", p, v1alpha1.Protocol), false
	}
	if words, refused := d.Refused[n.Name]; refused {
		return v1alpha1.ReasonForbidden, words, false
	}
	if n.Host.Veto != "" {
		return n.Host.Veto, "the host's own veto", false
	}
	if !n.Ready {
		return v1alpha1.ReasonNotReady, "", false
	}
	return d.lastHold(n)
}

// lastHold says why the end of the node's last turn holds it.
func (d *decision) lastHold(n *turn.Node) (v1alpha1.Reason, string, bool) {
	l := n.Last
	if l == nil || n.Retry == l.Turn || !v1alpha1.SameChanges(l.Changes, n.Host.Changes) {
		return "", "", true
	}
	switch l.Result {
	case v1alpha1.ResultFailed:
		return v1alpha1.ReasonFailed, string(l.Reason), false
	case v1alpha1.ResultTurnedBack:
		if l.NotBefore == nil || !l.NotBefore.After(d.Now) || l.NotBefore.After(d.Now.Add(d.Policy.BackoffMax+nonsense)) {
			return "", "", true
		}
		if l.Reason == v1alpha1.ReasonHostSilent {
			if l.HostDigest != digest(n.RawHost) {
				return "", "", true // it has spoken since
			}
			d.wake(*l.NotBefore)
			return v1alpha1.ReasonHostSilent, "no answer in its last turn; tried again at " + l.NotBefore.UTC().Format(time.TimeOnly) + " UTC", false
		}
		d.wake(*l.NotBefore)
		return v1alpha1.ReasonBackoff, fmt.Sprintf("%s; tried again at %s UTC", l.Reason, l.NotBefore.UTC().Format(time.TimeOnly)), false
	}
	return "", "", true
}

// settled reports whether the fleet has settled, and until when it does not.
func (d *decision) settled() (bool, time.Time) {
	var until time.Time
	for _, n := range d.nodes {
		if n.Last != nil {
			until = later(until, d.credible(n.Last.End))
		}
		until = later(until, d.credible(n.Created))
	}
	until = until.Add(d.Policy.Settle)
	return !until.After(d.Now), until
}

func (d *decision) credible(t time.Time) time.Time {
	if t.After(d.Now.Add(nonsense)) {
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

// controlPlaneBlock names the control-plane node that stands in the way of
// another's turn, or "". A quorum of etcd lives on these nodes, whatever
// policies say.
func (d *decision) controlPlaneBlock(n *turn.Node) string {
	if !n.ControlPlane {
		return ""
	}
	for _, o := range d.nodes {
		if !o.ControlPlane || o.Name == n.Name {
			continue
		}
		switch m := d.verdicts[o.Name].Move; {
		case through(o), m != nil && m.Disturbs(), d.Uncertain[o.Name]:
			return o.Name + " is in a turn"
		case !o.Ready:
			return o.Name + " is not Ready"
		case o.Unschedulable:
			return o.Name + " is unschedulable"
		}
	}
	return ""
}

// promoteOut grants the node its turn.
func (d *decision) promoteOut(n *turn.Node) {
	g := d.newGrant(n)
	if g.Drains && d.Total == 1 {
		g.Drains, g.OnlyNode = false, true
	}
	plan := turn.Plan{Drains: g.Drains, Reboots: g.Wants == v1alpha1.WantsReboot}
	next, _ := turn.Next(n.State, turn.Granted, plan, d.waitsIn(n, &g))
	d.move(n, Move{To: next, On: turn.Granted, NewTurn: true, Grant: &g, Remove: hookKeys(n)})
}
