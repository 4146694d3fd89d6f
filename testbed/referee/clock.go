package referee

import (
	"reflect"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// clock measures for how long, at least, leaders of a turn could continue its present stage. It runs from one version of the Lease that names the
// turn's leader to the next, unless there was a stop or a pause at one of them.
type clock struct {
	led   time.Duration // negative if a leader may notice late that it can continue
	since moment        // the last of these versions, or zero while the clock does not run
	began bool          // a version of the Lease was seen in this stage
	// over means that the stage is not judged any more: it was called overdue, or someone other than a leader edited the turn.
	over bool
}

// leaders says how the Lease came to its present holder.
type leaders struct {
	holder string // the last one
	before string // the one before it
	// unknown means that someone blanked or deleted the Lease between the two, so that the later one did not know until when the earlier one led.
	unknown bool
	blanked bool // someone did so since holder was named
}

// followLeaders takes a version of the Lease. A nil obj means that the Lease does not exist.
func (e *engine) followLeaders(v leaseVersion, obj *coordinationv1.Lease) {
	l := &e.leaders
	given := obj != nil && obj.Spec.LeaseDurationSeconds != nil && *obj.Spec.LeaseDurationSeconds == 1 // by the leader itself
	switch {
	case v.holder == "" && !given:
		l.blanked = true
	case v.holder != "" && v.holder != l.holder:
		*l = leaders{holder: v.holder, before: l.holder, unknown: l.blanked}
	}
}

// runClock lets the clock of a node's turn run on, at a version of the Lease.
func (e *engine) runClock(n *node) {
	if n.turn == nil || n.cur == nil {
		return
	}
	c := &n.turn.clock
	if l := e.lease(); l.stopped || l.holder == "" || l.holder != epochOf(n.cur) || halted(n.cur) {
		c.since, c.began = moment{}, true
		return
	}
	switch {
	case c.since != moment{}:
		c.led += e.now.elapsed(c.since)
	case c.began:
		c.led -= e.late
	}
	c.since, c.began = e.now, true
}

// halted reports whether an admin or the host stops the clock of a node's turn, or the host has reported an end for which no timeout counts.
func halted(n *turn.Node) bool {
	return n.Paused != nil || n.Host != nil && (n.Host.Veto == v1alpha1.ReasonHostPaused || n.Host.Veto == v1alpha1.ReasonObserve) ||
		n.HasReport(v1alpha1.ReportRefused) || n.HasReport(v1alpha1.ReportFailed)
}

// followClock takes a version of a Node in a turn.
func (e *engine) followClock(n *node, before, after *turn.Node, edited bool) {
	if n.turn == nil {
		return
	}
	c := &n.turn.clock
	switch {
	case before == nil || !stageAt(before).Equal(stageAt(after)):
		*c = clock{}
	case epochOf(before) != epochOf(after) && (e.leaders.unknown || e.leaders.before != epochOf(before)):
		// It is not known until when the turn had a leader, so it had none since its stage began.
		c.led = 0
	}
	// A pause is declared as an edit, and changes nothing that the clock depends on.
	edited = edited && (before == nil || before.State != after.State || !reflect.DeepEqual(before.Grant, after.Grant))
	c.over = c.over || edited || after.Held == v1alpha1.ReasonOverdue
}

// overdueLate judges a leader that does not call a turn overdue, although its stage has lasted for the longest of its timeouts.
func (e *engine) overdueLate(n *node) {
	if e.late == 0 || n.turn == nil || n.cur == nil || n.turn.clock.over || !n.cur.Ours() || halted(n.cur) {
		return
	}
	if c := &n.turn.clock; c.led > longest(n.cur)+e.late {
		c.over = true
		e.breaks(Overdue, n.name, "not overdue in %s after at least %v, its timeout is %v", n.cur.State, c.led.Round(time.Second), longest(n.cur))
	}
}

// longest returns the longest timeout of the state of a node in a turn.
func longest(n *turn.Node) time.Duration {
	most := timeout(n)
	switch n.State {
	case v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon:
		most = n.Grant.Terms.HostHooks.Duration
	}
	for _, h := range n.Grant.Terms.Hooks(n.State) {
		most = max(most, h.Timeout.Duration)
	}
	return most
}
