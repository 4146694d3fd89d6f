package step

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// checkAfter is how long a host waits for a turn before it checks whether an instance
	// leads, and how long after that it checks again.
	checkAfter = 10 * time.Minute
	// checkHeldAfter is the same for a node with a reason in its label held: a leader wrote
	// that, and a long queue must not cause requests.
	checkHeldAfter = time.Hour
	// doubtFor is when a host checks again before it reports that no instance leads:
	// between two coordinators there is a moment without one.
	doubtFor = 15 * time.Second
	// recheckFirst is when a host that has reported NoLeader checks again. The time doubles
	// up to recheckLast, because a fleet may be without a coordinator for weeks on purpose.
	recheckFirst = 2 * time.Minute
	recheckLast  = 15 * time.Minute
	// leaseSlack is added to a Lease's duration before it counts as expired, because the
	// difference between the clocks is known to a few seconds only.
	leaseSlack = 30 * time.Second
)

// LeaderCheck is what a host that waits for a turn remembers of its checks whether an
// instance leads. The zero value is a host that has not waited yet.
type LeaderCheck struct {
	state v1alpha1.State
	held  v1alpha1.Reason
	wants v1alpha1.Wants

	last   time.Time     // the last check, or the last change of what is above
	again  time.Duration // after which to check again
	doubt  bool          // the last check found no leader, for the first time
	reason v1alpha1.Reason
	detail string
}

// Due reports whether the host has to read the Lease now: it has wanted something for a
// long time, and nothing on its Node has changed. patience replaces how long that is; 0 is
// ten minutes, or an hour if the node is held. A host whose coordinator is gone has to
// report that itself.
func (c *LeaderCheck) Due(o *Observation, patience time.Duration, now time.Time) bool {
	n := &o.Node
	waits := n.UID != "" && !n.InTurn() && o.Sources.Complete && o.Sources.Wants.Something()
	if !waits || c.state != n.State || c.held != n.Held || c.wants != o.Sources.Wants || c.last.IsZero() {
		*c = LeaderCheck{state: n.State, held: n.Held, wants: o.Sources.Wants, last: now}
		return false
	}
	switch {
	case patience != 0:
	case n.Held == "":
		patience = checkAfter
	default:
		patience = checkHeldAfter
	}
	if c.again != 0 {
		patience = min(patience, c.again)
	}
	return now.Sub(c.last) >= patience
}

// Checked takes in what a check found: why no instance leads, or "".
func (c *LeaderCheck) Checked(reason v1alpha1.Reason, detail string, now time.Time) {
	c.last = now
	switch {
	case reason == "":
		c.doubt, c.again, c.reason, c.detail = false, 0, "", ""
	case c.reason == "" && !c.doubt:
		c.doubt, c.again = true, doubtFor
	case c.reason == "":
		c.doubt, c.again, c.reason, c.detail = false, recheckFirst, reason, detail
	default:
		c.again, c.reason, c.detail = min(2*c.again, recheckLast), reason, detail
	}
}

// NoLeader returns the values for [Observation].
func (c *LeaderCheck) NoLeader() (v1alpha1.Reason, string) { return c.reason, c.detail }

// Unheld returns NoCoordinator and why no instance holds the Lease at now, by the API
// server's clock, or "". name is the Lease's, for people.
func (l *Lease) Unheld(name string, now time.Time) (v1alpha1.Reason, string) {
	switch {
	case !l.Exists:
		return v1alpha1.ReasonNoCoordinator, "there is no Lease " + name + "; to create it: lockkeeper init"
	case l.Holder == "" || l.Renewed.IsZero():
		return v1alpha1.ReasonNoCoordinator, "no instance holds the Lease " + name
	case now.Sub(l.Renewed) > l.Duration+leaseSlack:
		return v1alpha1.ReasonNoCoordinator, fmt.Sprintf("no instance has renewed the Lease %s since %s", name, l.Renewed.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return "", ""
}
