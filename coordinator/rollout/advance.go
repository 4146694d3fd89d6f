package rollout

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// advance moves the node along the table on the event. It reports whether the table has an
// edge for it. The grant keeps result and reason for the end of the turn; the first ones
// that backed it out stay.
func (d *decision) advance(n *turn.Node, on turn.Event, result v1alpha1.Result, reason v1alpha1.Reason) bool {
	g := *n.Grant
	early := on == turn.Progressed && (n.State == v1alpha1.StateBeforeDrain || n.State == v1alpha1.StateDraining)
	if early && (g.Wants.AtLeast(n.Wants) || d.at(n).match.Reason == "") {
		// A want that changed before the drain was over belongs to the turn. But without a
		// valid policy each change counts as a reboot, and a turn that was granted for
		// less does not become one.
		g = fitting(g, func(g *v1alpha1.Grant) {
			g.Wants, g.Changes, g.Steps = n.Wants, n.Host.Changes, v1alpha1.StepsDigest(n.Host.Steps)
			setRequest(g, n)
		})
	}
	if on == turn.FailedHealthy && (reason == v1alpha1.ReasonStillWanted || reason == v1alpha1.ReasonApplyFailed) && n.HostReported() {
		g = fitting(g, func(g *v1alpha1.Grant) { g.Changes = stillWanted(n) })
	}
	// A turn without a drain has no mark, unless a user edited its grant. No node reaches
	// idle with a mark.
	plan := turn.PlanOf(&g)
	plan.Drains = plan.Drains || n.Mark
	next, ok := turn.Next(n.State, on, plan, WaitsIn(n, &g))
	if !ok {
		return false
	}
	if result != "" && g.Result == "" {
		g.Result, g.Reason = result, reason
	}
	m := Move{To: next, On: on, Reason: reason, Remove: hookKeys(n)}
	switch {
	case !next.InTurn():
		m.Last = d.last(n, &g)
		if v1alpha1.Has(g.Changes, v1alpha1.SourceRequest) && (m.Last.Result == v1alpha1.ResultDone || m.Last.Result == v1alpha1.ResultFailed) {
			m.Remove = append(m.Remove, carriedOut(n, &g)...)
		}
	default:
		g.Epoch, g.StageAt, g.PausedSince, g.PausedFor = d.Epoch, d.Now, nil, metav1.Duration{}
		if d.Epoch == "" {
			g.Epoch = n.Grant.Epoch
		}
		if next == v1alpha1.StateRebooting || next == v1alpha1.StateApplying {
			// The turn has to end the present boot. The host may have crashed during the drain
			// and be in another boot than when it was granted.
			g.BootID = n.BootID
			if n.Host != nil {
				g = fitting(g, func(g *v1alpha1.Grant) { g.OSVersion = n.Host.OSVersion })
			}
		}
		m.Grant = &g
	}
	d.move(n, m)
	return true
}

// stillWanted returns the changes for which a turn failed. Files and units are those of now,
// not of the grant: otherwise a unit that rewrites the file for which it is restarted would
// be granted turn after turn, each for other content. Of the other changes it returns those
// that the turn was for, because an update or request that came later was not tried.
func stillWanted(n *turn.Node) []v1alpha1.Change {
	return slices.DeleteFunc(slices.Clone(n.Host.Changes), func(c v1alpha1.Change) bool {
		return !c.Watched() && !slices.ContainsFunc(n.Grant.Changes, c.Same)
	})
}

// last returns the record of a turn that ends. A turn that only removed a cordon of ours
// says nothing about the host, so the record before it stays, except for the end, because
// the fleet settles after such a turn too. A host can cause such turns one after the other,
// by marking its own Node; so the fleet settles after no more of them than the node may have
// turns in a day.
func (d *decision) last(n *turn.Node, g *v1alpha1.Grant) *v1alpha1.Last {
	if g.Reason == v1alpha1.ReasonOwnCordonLeft && n.Last != nil {
		l := *n.Last
		if l.Turns = d.turns(n, g); len(d.recent(n.Last.Turns)) < d.policyOf(n).MaxTurnsPerDay {
			l.End = d.Now
		}
		return &l
	}
	l := &v1alpha1.Last{Turn: g.Turn, Result: cmp.Or(g.Result, v1alpha1.ResultDone), Reason: g.Reason, Changes: g.Changes, Request: g.Request, End: d.Now, Turns: d.turns(n, g)}
	if p := n.Last; p != nil && l.Result != v1alpha1.ResultDone && p.Result != v1alpha1.ResultDone && v1alpha1.SameChanges(p.Changes, l.Changes) {
		// A cancel or failure in between does not reset the attempts.
		l.Attempts = min(p.Attempts, 100)
	}
	if l.Result != v1alpha1.ResultBackedOut {
		return l
	}
	l.Attempts++
	p := d.policyOf(n)
	wait := p.Backoff
	for range l.Attempts - 1 {
		wait = min(2*wait, p.BackoffMax)
	}
	notBefore := d.Now.Add(wait)
	l.NotBefore = &notBefore
	if l.Reason == v1alpha1.ReasonHostSilent {
		l.HostDigest = v1alpha1.Digest(n.RawHost)
	}
	return l
}

// turns returns the times at which the node's turns of the last day began,
// including g's.
func (d *decision) turns(n *turn.Node, g *v1alpha1.Grant) []time.Time {
	turns := []time.Time{g.StartedAt}
	if n.Last != nil {
		turns = append(d.recent(n.Last.Turns), g.StartedAt)
	}
	return turns[max(0, len(turns)-v1alpha1.MaxTurnsPerDay):]
}
