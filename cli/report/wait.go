package report

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
)

// Goal is what `lockkeeper wait` waits for.
type Goal string

const (
	// GoalUpToDate: no node wants anything or is in a turn, as its host last reported.
	GoalUpToDate Goal = "up-to-date"
	// GoalIdle: no node is in a turn.
	GoalIdle Goal = "idle"
	// GoalHeld: the rollout is held, halted or stopped. For one node: it is held.
	GoalHeld Goal = "held"
)

// ErrReached ends the watch of a Wait.
var ErrReached = errors.New("reached")

// ParseGoal reads a Goal as people write it.
func ParseGoal(text string) (Goal, error) {
	switch g := Goal(text); g {
	case GoalUpToDate, GoalIdle, GoalHeld:
		return g, nil
	}
	return "", fmt.Errorf("%q, expected up-to-date, idle or held", text)
}

// reached reports whether the fleet, or the node if n is not nil, is as g wants it.
// A stop or a halt only matters to GoalHeld.
func (g Goal) reached(r *Report, n *Node) bool {
	switch {
	case g == GoalIdle && n != nil:
		return !n.State.InTurn()
	case g == GoalIdle:
		return r.Figures.InTurn == 0
	case g == GoalHeld && n != nil:
		return n.Status == Held
	case g == GoalHeld:
		return r.Status != UpToDate && r.Status != Rolling
	case n != nil:
		return n.Status == UpToDate && (n.Managed || n.optedOut)
	}
	return r.nodesStatus() == UpToDate
}

// Waiter prints what a wait waits for, and ends it.
type Waiter struct {
	Goal Goal
	Node string // "" for the fleet
	Say  func(line string)
	last string

	reach reach
	since time.Time // since when no instance coordinates; zero if one does
}

// Show takes a Report as [Source.Follow] hands it over. It returns ErrReached when
// the wait is over.
func (w *Waiter) Show(r Report, away error) error {
	if text := w.reach.changed(away); text != "" {
		w.Say(r.stamp() + text)
	}
	if away != nil {
		return nil
	}
	var n *Node
	text := r.Summary
	if w.Node != "" {
		if n = r.Find(w.Node); n == nil {
			return NotFound(w.Node)
		}
		l := lineOf(n)
		text = l.text(n.Name)
	}
	if text != w.last {
		w.last = text
		if n == nil {
			text += r.End.sentence(r.Time)
		}
		w.Say(r.stamp() + page.Visible(text))
	}
	if changes := w.changesCoordinator(&r); w.Goal.reached(&r, n) && !(w.Goal == GoalHeld && changes) {
		return ErrReached
	}
	return nil
}

// changesCoordinator reports whether no instance coordinates, and has not for less than [UnreleasedAfter]. The Lease
// names no one for a moment in each change of coordinators, which the reboot of the coordinator's own host
// makes part of most rollouts. Nothing is held by that.
func (w *Waiter) changesCoordinator(r *Report) bool {
	switch c := &r.Coordinator; {
	case r.Stop != nil, c.Live, c.Error != "":
		w.since = time.Time{}
		return false
	case w.since.IsZero():
		w.since = r.Time
	}
	return r.Time.Sub(w.since) < UnreleasedAfter
}

// UnreleasedAfter is how long a [LeaveWait] sees that no instance releases nodes before it ends, and a
// [Waiter] that none coordinates before that holds the nodes. It is longer than a change of coordinators takes.
const UnreleasedAfter = time.Minute

// LeaveWait prints what nodes that leave wait for, and ends the wait.
type LeaveWait struct {
	// Nodes are those that have not left. Show removes a node that has.
	Nodes []string
	Say   func(line string)
	// Finish removes what the coordinator leaves on the Node of a node that it has released. It
	// returns whether nothing was left.
	Finish func(node string) (left bool, err error)

	reach reach
	last  map[string]string // the last line of each node
	since time.Time         // since when no instance releases nodes; zero if one does
}

// UnreleasedError says that no instance releases the nodes that leave.
type UnreleasedError struct{ Why string }

// Error says why.
func (e *UnreleasedError) Error() string {
	return fmt.Sprintf("no instance has released nodes for %s: %s", page.Span(UnreleasedAfter), e.Why)
}

// Show takes a Report as [Source.Follow] hands it over. It returns ErrReached when all nodes have
// left, an [UnreleasedError], or the error of Finish.
func (w *LeaveWait) Show(r Report, away error) error {
	if text := w.reach.changed(away); text != "" {
		w.Say(r.stamp() + text)
	}
	if away != nil {
		return nil
	}
	if w.last == nil {
		w.last = map[string]string{}
	}
	for _, name := range slices.Clone(w.Nodes) {
		n, text, left := r.Find(name), "", false
		switch {
		case n == nil:
			text, left = name+"  its Node was deleted", true
		case n.Released():
			var err error
			if left, err = w.Finish(name); err != nil {
				return err
			}
			text = name + "  released; removing what is left"
			if left {
				text = name + "  has left"
			}
		default:
			l := lineOf(n)
			text = l.text(name)
		}
		if left {
			w.Nodes = slices.DeleteFunc(w.Nodes, func(pending string) bool { return pending == name })
		}
		if text != w.last[name] {
			w.last[name] = text
			w.Say(r.stamp() + page.Visible(text))
		}
	}
	if len(w.Nodes) == 0 {
		return ErrReached
	}
	return w.unreleased(&r)
}

// unreleased returns an error once no instance has released nodes for [UnreleasedAfter].
func (w *LeaveWait) unreleased(r *Report) error {
	why := r.NoRelease()
	switch {
	case why == "":
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = r.Time
		w.Say(fmt.Sprintf("%sno instance releases nodes: %s; waiting %s for one", r.stamp(), why, page.Span(UnreleasedAfter)))
	case r.Time.Sub(w.since) >= UnreleasedAfter:
		return &UnreleasedError{why}
	}
	return nil
}

// Released reports whether the node has neither a state nor our mark: if it is not managed, the
// coordinator has released it, or has never adopted it.
func (n *Node) Released() bool { return n.State == v1alpha1.StateAbsent && !n.Marked }

// NoRelease returns why no instance releases nodes now, or "" if one does, or if the caller may
// not read the Lease.
func (r *Report) NoRelease() string {
	c := &r.Coordinator
	switch {
	case c.Error != "":
		return ""
	case r.Stop != nil && r.Stop.NoLease:
		return "Lease " + c.Lease + " does not exist"
	case r.Stop != nil:
		return "the emergency stop is set: " + page.Cell(r.Stop.Text)
	case !c.Live:
		return "no instance holds Lease " + c.Lease
	}
	return ""
}
