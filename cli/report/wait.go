package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// ErrTimeout is the cause with which a context ends that bounds [Source.Wait].
var ErrTimeout = errors.New("the time is over")

// errReached ends the watch of a Wait.
var errReached = errors.New("reached")

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

// Wait waits until the fleet, or one node if node is not "", is as g wants it. It
// reads once, so that a caller who may not read learns of it, and then follows three
// watches; while they fail it goes on waiting, because what was seen before may be
// out of date. say receives a line whenever what it waits for has changed. The error
// is the cause of ctx if that ends, and otherwise about reading or a node that is
// not there.
func (s *Source) Wait(ctx context.Context, g Goal, node string, say func(line string)) error {
	w := waiter{goal: g, node: node, say: say}
	r, err := s.Read(ctx)
	if err == nil {
		err = w.show(r, nil)
	}
	if err == nil {
		err = s.Follow(ctx, w.show)
	}
	switch {
	case errors.Is(err, errReached):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// waiter is one Wait.
type waiter struct {
	goal Goal
	node string
	say  func(line string)
	last string
	away bool
}

// show takes a Report as [Source.Follow] hands it over. It returns errReached when
// the wait is over.
func (w *waiter) show(r Report, away error) error {
	stamp := r.Time.UTC().Format("15:04:05Z") + "  "
	if w.away != (away != nil) {
		if w.away = away != nil; w.away {
			w.say(stamp + "the API server is away: " + cell(away.Error()))
		} else {
			w.say(stamp + "the API server answers again")
		}
	}
	if w.away {
		return nil
	}
	var n *Node
	text := r.Summary
	if w.node != "" {
		if n = r.Find(w.node); n == nil {
			return fmt.Errorf("there is no node %q", w.node)
		}
		l := lineOf(n)
		text = strings.TrimSpace(fmt.Sprintf("%s  %s  wants=%s held=%s  %s", n.Name, l.state, l.wants, l.held, l.why))
	}
	if text != w.last {
		w.last = text
		if n == nil {
			text += r.End.sentence(r.Time)
		}
		w.say(stamp + visible(text))
	}
	if w.goal.reached(&r, n) {
		return errReached
	}
	return nil
}
