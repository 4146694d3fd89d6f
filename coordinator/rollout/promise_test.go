package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// The promises, each named where it is held. They are kept apart from what
// generates the runs: scripts and campaigns are held against the same ones.

func (c *cluster) breaks(format string, args ...any) {
	c.broken = append(c.broken, c.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// disturbed are the nodes that are disturbed by us: marked, or committed.
func (c *cluster) disturbed() int {
	count := 0
	for _, name := range c.names() {
		if n := c.fact(name); disturbs(&n) {
			count++
		}
	}
	return count
}

// promiseMove: states move along the table; nothing reaches idle or loses its
// labels while the mark stands; nobody turns a commit round.
func (c *cluster) promiseMove(before turn.Node, v rollout.Verdict) {
	m, after := v.Move, c.fact(v.Node)
	if m.From != before.State {
		c.breaks("table: %s is moved from %s and is in %s", v.Node, m.From, before.State)
	}
	if m.From != m.To && !turn.Reachable(m.From, m.To) {
		c.breaks("table: %s goes from %s to %s", v.Node, m.From, m.To)
	}
	if after.Mark && m.From != m.To && (m.To == v1alpha1.StateIdle || m.To == v1alpha1.StateAbsent) && m.On != turn.Replaced {
		c.breaks("mark: %s reaches %s with the mark on it", v.Node, m.To)
	}
	if before.Ours() && before.Committed() {
		switch m.On {
		case turn.Vanished, turn.Aborted, turn.TakenBack, turn.LetGo:
			c.breaks("commit: %s is backed out by %s after its commit", v.Node, m.On)
		}
	}
	if m.Reason == v1alpha1.ReasonWindow && m.From != m.To {
		p, known := c.policies[before.Grant.Policy]
		if !known || len(p.Problems) > 0 || before.Grant.Terms.OnClose != v1alpha1.OnCloseCancel || fits(&p, c.now, time.Minute) {
			c.breaks("window: %s is called off by %+v, known %t, as its windows close", v.Node, p, known)
		}
	}
	if c.lease.Stopped && m.From != m.To && !c.stale {
		c.breaks("stop: %s is moved to %s under the emergency stop", v.Node, m.To)
	}
	if before.Paused != nil && before.InTurn() && m.From != m.To && m.On != turn.LetGo && m.On != turn.Replaced &&
		(before.Managed == nil || *before.Managed) {
		c.breaks("paused: %s is moved to %s", v.Node, m.To)
	}
	c.promiseBudget("the coordinator")
}

// promiseHost: only a commit disturbs; only our own cordon is undone.
func (c *cluster) promiseHost(h *host, before turn.Node, w *step.Write) {
	if w.Unschedulable != nil && !*w.Unschedulable && h.adminCordon {
		c.breaks("cordon: %s undoes an admin's cordon", h.name)
	}
	if w.Ack.Report == v1alpha1.ReportCommitted {
		c.promiseLease(h, before, "commits")
	}
	c.promiseBudget(h.name)
}

func (c *cluster) promiseLease(h *host, n turn.Node, what string) {
	switch {
	case !c.lease.Exists || c.lease.Stopped:
		c.breaks("stop: %s %s under the emergency stop", h.name, what)
	case n.Grant == nil || n.Grant.Epoch != c.lease.Holder:
		c.breaks("epoch: %s %s in another leader's turn", h.name, what)
	case n.Paused != nil && (n.Managed == nil || *n.Managed):
		c.breaks("paused: %s %s while paused", h.name, what)
	}
}

// promiseReboot: once a turn, drained, wanted, and with a commit.
func (c *cluster) promiseReboot(h *host, n turn.Node) {
	c.promiseLease(h, n, "reboots")
	h.reboots[n.Turn]++
	switch {
	case h.reboots[n.Turn] > 1:
		c.breaks("once: %s reboots again in turn %s", h.name, n.Turn)
	case n.State != v1alpha1.StateRebooting || !n.HasReport(v1alpha1.ReportCommitted):
		c.breaks("commit: %s reboots in %s without a commit", h.name, n.State)
	case h.pending == "":
		c.breaks("cancel: %s reboots and wants nothing", h.name)
	case n.Grant.Drains && (h.pods > 0 || !n.Unschedulable):
		c.breaks("drain: %s reboots with %d pods, unschedulable %t", h.name, h.pods, n.Unschedulable)
	}
}

// promiseEvict: only in a turn, on a cordoned node, and not under a stop that
// is older than one look.
func (c *cluster) promiseEvict(h *host) {
	n := c.fact(h.name)
	if !n.InTurn() || !n.Unschedulable {
		c.breaks("evict: %s evicts in %s, unschedulable %t", h.name, n.State, n.Unschedulable)
	}
}

// atRest says which node is not where a cluster that nobody disturbs any more
// should have brought it, or "".
func (c *cluster) atRest() string {
	for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
		h, n := c.hosts[name], c.fact(name)
		switch {
		case n.State != v1alpha1.StateIdle:
			return fmt.Sprintf("%s is in %s, held %q", name, n.State, n.Held)
		case n.Mark || n.Unschedulable != h.adminCordon:
			return fmt.Sprintf("%s: mark %t, unschedulable %t, cordoned by an admin %t", name, n.Mark, n.Unschedulable, h.adminCordon)
		case n.Wants != v1alpha1.WantsNothing:
			return fmt.Sprintf("%s still wants %s, held %q", name, n.Wants, n.Held)
		case (n.Turn != "" || n.Grant != nil) && !c.edited:
			return name + " keeps a turn"
		}
	}
	return ""
}
