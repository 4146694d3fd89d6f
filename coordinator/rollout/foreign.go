package rollout

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// foreign settles the turns of other terms, and turns whose records are damaged.
// It reports whether this leader still has a turn of another term to settle: then
// it grants nothing new.
//
// A leader that lost its term may have sent one more grant than the budget
// allows, which lands after the successor's list. Its host cannot commit,
// because the Lease names another epoch; and the successor neither promotes
// such a turn nor forgets it.
//
// A turn that cannot be settled now does not hold up the others: one that is
// paused beyond the budget, one that is damaged, and one on a Node to which the
// API server refuses writes (a hostile kubelet can make its Node too large for
// any write). Each takes its slot, and its host commits nothing.
func (d *decision) foreign() bool {
	if d.Epoch == "" {
		return false
	}
	found := false
	var others []*turn.Node
	for _, n := range d.nodes {
		if !n.InTurn() || !n.State.Known() {
			continue
		}
		if g := n.Grant; g != nil && g.NodeUID != n.UID {
			// Another Node object of the same name: a restored backup. The
			// turn was the old object's.
			if !d.Stopped && !d.Uncertain[n.Name] {
				d.replaced(n)
			}
			continue
		}
		damaged := !n.Ours()
		if !damaged && d.own(n) {
			continue
		}
		reason, text := pausedBy(n)
		_, refused := d.Refused[n.Name]
		waits := damaged || refused
		switch {
		case d.Uncertain[n.Name]:
			d.hold(n, v1alpha1.ReasonHandover, d.uncertain(n.Name))
		case d.Stopped:
			d.hold(n, v1alpha1.ReasonStopped, d.StopText)
			if !damaged {
				d.freeze(n)
			}
		case d.expired(n):
			// An admin's intent takes precedence over takeover and repair.
		case n.Detached != nil && n.Detached.Force && !barred(n):
			d.letGo(n)
		case reason != "" && damaged:
			d.hold(n, reason, text)
		case damaged:
			d.repair(n)
		case reason == "" && !n.Committed() && takenOut(n) != "" && d.backOut(n, takenOut(n)):
		case n.Committed(), n.State == v1alpha1.StateBeforeUncordon, n.State == v1alpha1.StateUncordoning:
			// The turn only gives the node back, or cannot be called off.
			d.restamp(n)
		default:
			others = append(others, n)
			waits = waits || reason != ""
		}
		found = found || !waits
	}
	d.settleForeign(others)
	return found
}

// barred reports whether the turn cannot be backed out any more, also where its
// records are damaged: then the host's report counts whatever turn it names.
func barred(n *turn.Node) bool {
	return n.Committed() || !n.Ours() && committedBy(n, &v1alpha1.Grant{Turn: n.Ack.Turn})
}

// backOut backs the turn out. It reports whether the table has an edge for that.
func (d *decision) backOut(n *turn.Node, reason v1alpha1.Reason) bool {
	return d.advance(n, turn.Vanished, v1alpha1.ResultCancelled, reason) ||
		d.advance(n, turn.Refused, v1alpha1.ResultCancelled, reason)
}

// settleForeign backs out the turns that exceed the budgets, the least advanced
// first, and takes the rest over once the budgets that they count in hold,
// foreign turns included. It does not back out a paused turn, nor one on a Node to
// which the API server refuses writes: if such a turn exceeds a budget, it backs out
// others instead.
func (d *decision) settleForeign(others []*turn.Node) {
	slices.SortFunc(others, func(a, b *turn.Node) int {
		return cmp.Or(
			cmp.Compare(slices.Index(v1alpha1.States(), a.State), slices.Index(v1alpha1.States(), b.State)),
			cmpBool(a.Mark, b.Mark),
			cmp.Compare(a.Name, b.Name),
		)
	})
	// Turns that are backed out already do not count as excess: a turn that this
	// decision backs out still counts as unavailable in the next one.
	excess := d.Unavailable - d.readTotal
	for i := range d.groups {
		g := &d.groups[i]
		g.excess = g.Unavailable - g.allowed()
	}
	spend := func(n *turn.Node) {
		excess--
		for _, g := range d.counting(n) {
			if g != nil {
				g.excess--
			}
		}
	}
	for _, n := range d.nodes {
		if givesBack(n) {
			spend(n)
		}
	}
	back := map[string]bool{}
	for _, n := range others {
		// Two control-plane nodes are too many, whatever the budget: a stale leader may
		// have granted one late, or even two.
		other := d.otherControlPlane(n, back)
		over, full := excess > 0, d.Unavailable > d.readTotal
		for _, g := range d.counting(n) {
			if g != nil {
				over = over || g.excess > 0
				full = full || g.Unavailable > g.allowed()
			}
		}
		message, refused := d.Refused[n.Name]
		switch reason, text := pausedBy(n); {
		case refused && (full || other != ""):
			d.hold(n, v1alpha1.ReasonForbidden, message)
		case reason != "" && (full || other != ""):
			d.hold(n, reason, text)
			d.freeze(n) // the next leader only knows when this one last led
		case over || other != "":
			spend(n)
			back[n.Name] = true
			d.backOut(n, v1alpha1.ReasonOverBudget)
		case full:
			d.hold(n, v1alpha1.ReasonHandover, "more nodes than the budget are unavailable")
		case d.otherControlPlane(n, nil) != "":
			d.hold(n, v1alpha1.ReasonHandover, d.otherControlPlane(n, nil)+" is given back first")
		default:
			d.hold(n, reason, text)
			d.restamp(n)
		}
	}
}

// cmpBool compares for sorting: false comes first.
func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// otherControlPlane returns another control-plane node than n that is unavailable because of
// us and not in except, or "". It returns "" if n is not a control-plane node.
func (d *decision) otherControlPlane(n *turn.Node, except map[string]bool) string {
	if !n.ControlPlane {
		return ""
	}
	for _, o := range d.nodes {
		if o.ControlPlane && o.Name != n.Name && !except[o.Name] && (byUs(o) || d.Uncertain[o.Name]) {
			return o.Name
		}
	}
	return ""
}

// givesBack reports whether the node only has to be uncordoned to be available again.
func givesBack(n *turn.Node) bool {
	return (n.State == v1alpha1.StateBeforeUncordon || n.State == v1alpha1.StateUncordoning) && n.Ready && !n.Deleted && (n.OwnCordon() || !n.Unschedulable)
}

// restamp takes over a turn as it is. The time without a leader does not count against its
// timeouts. A turn that is stuck keeps its reason: if this write removed it, the next one would
// set it again, and that would be reported as if the turn had just failed or become overdue.
func (d *decision) restamp(n *turn.Node) {
	g := *n.Grant
	reason, _ := pausedBy(n)
	if reason == "" && (n.Held == v1alpha1.ReasonFailed || n.Held == v1alpha1.ReasonOverdue) {
		d.hold(n, n.Held, "")
	}
	if reason != "" && g.PausedSince == nil {
		g.PausedSince = new(d.Now.Add(-d.unrecorded(n)))
	} else {
		g.PausedFor = metav1.Duration{Duration: g.PausedFor.Duration + d.unrecorded(n)}
	}
	g.Epoch = d.Epoch
	d.move(n, Move{To: n.State, Grant: &g, Reason: v1alpha1.ReasonHandover})
}

// unrecorded returns for how long the turn's clock has been stopped without a record of
// that in its grant. It is 0 for a paused turn, which has the record. For a turn of this term
// it is the time of a stop that this leader could not record, for example because the outcome
// of an earlier write was unknown. For a turn of another term it is the time without a leader
// that could promote it. If it is not known until when the turn had a leader, the whole stage
// counts, except for what is recorded. It is not known if the previous leader did not take
// the turn over: it may have lost its term right after a stop that lasted for most of the stage.
func (d *decision) unrecorded(n *turn.Node) time.Duration {
	switch {
	case n.Grant.PausedSince != nil:
		return 0
	case d.own(n):
		stop := d.StopMissed[n.Name]
		if !d.StoppedSince.IsZero() {
			stop = stop.And(Stop{d.StoppedSince, d.Now})
		}
		return max(0, stop.Until.Sub(later(n.Grant.StageAt, stop.Since)))
	}
	stopped := n.Grant.StageAt.Add(max(0, n.Grant.PausedFor.Duration))
	if d.LedBy == "" || d.LedBy == n.Grant.Epoch {
		stopped = later(stopped, d.credible(d.LedUntil))
	}
	return max(0, d.Now.Sub(stopped))
}

func (d *decision) replaced(n *turn.Node) {
	next, _ := turn.Next(n.State, turn.Replaced, n.Plan(), nothingWaits)
	d.move(n, Move{To: next, On: turn.Replaced, Reason: v1alpha1.ReasonReplaced,
		Remove: append(hookKeys(n), v1alpha1.AnnotationLast, v1alpha1.AnnotationRuns, v1alpha1.AnnotationExpired)})
}

// repair writes a new grant where the one on the Node cannot be read, or is not
// that of the turn on the Node. The host does nothing meanwhile: it cannot check
// what it cannot read. So repair backs out a turn that has not committed, and
// takes over one that has. It uses only the turn and the boot of the last report
// from the host's records: whatever a host writes, the new grant can be read.
func (d *decision) repair(n *turn.Node) {
	if n.Grant != nil && (n.Ack.Turn == n.Grant.Turn || n.Turn == "") {
		// The grant can be read; the annotation turn was edited. A turn of another term is
		// settled once both can be read again.
		d.move(n, Move{To: n.State, Grant: new(*n.Grant), Reason: v1alpha1.ReasonInvalidGrant})
		return
	}
	g := d.newGrant(n)
	g.Drains = n.Mark
	newTurn := true
	if v1alpha1.ValidateID(n.Turn) == nil && n.Ack.Turn == n.Turn {
		g.Turn, newTurn = n.Turn, false
	}
	if !newTurn && committedBy(n, &g) {
		d.move(n, Move{To: n.State, Grant: &g, Reason: v1alpha1.ReasonInvalidGrant})
		return
	}
	next := n.State
	on := turn.Event("")
	if n.State != v1alpha1.StateBeforeUncordon && n.State != v1alpha1.StateUncordoning {
		on = turn.Refused
		next, _ = turn.Next(n.State, on, turn.Plan{}, WaitsIn(n, &g))
	}
	g.Result, g.Reason = v1alpha1.ResultBackedOut, v1alpha1.ReasonInvalidGrant
	d.move(n, Move{To: next, On: on, NewTurn: newTurn, Grant: &g, Reason: v1alpha1.ReasonInvalidGrant, Remove: hookKeys(n)})
}

// committedBy reports whether, by the host's last report, the turn of g cannot be backed out.
// If so, it sets the boot of g that the turn has to end.
func committedBy(n *turn.Node, g *v1alpha1.Grant) bool {
	if n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying {
		return false
	}
	if n.Ack.Turn != g.Turn || n.Ack.State != n.State {
		return false
	}
	switch n.Ack.Report {
	case v1alpha1.ReportCommitted:
		g.BootID = n.Ack.BootID
	case v1alpha1.ReportDone, v1alpha1.ReportFailed:
		if n.State == v1alpha1.StateRebooting {
			g.BootID = "" // any boot but that of the report
		}
	default:
		return false
	}
	if n.State == v1alpha1.StateRebooting {
		g.Wants = v1alpha1.WantsReboot
	}
	return true
}
