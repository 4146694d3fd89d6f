package report

import (
	"errors"
	"fmt"
	"strings"

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
	away bool
}

// Show takes a Report as [Source.Follow] hands it over. It returns ErrReached when
// the wait is over.
func (w *Waiter) Show(r Report, away error) error {
	stamp := r.Time.UTC().Format("15:04:05Z") + "  "
	if w.away != (away != nil) {
		if w.away = away != nil; w.away {
			w.Say(stamp + "API server cannot be reached: " + page.Cell(away.Error()))
		} else {
			w.Say(stamp + "API server reachable again")
		}
	}
	if w.away {
		return nil
	}
	var n *Node
	text := r.Summary
	if w.Node != "" {
		if n = r.Find(w.Node); n == nil {
			return NotFound(w.Node)
		}
		l := lineOf(n)
		text = strings.TrimSpace(fmt.Sprintf("%s  %s  wants=%s held=%s  %s", n.Name, l.state, l.wants, l.held, l.why))
	}
	if text != w.last {
		w.last = text
		if n == nil {
			text += r.End.sentence(r.Time)
		}
		w.Say(stamp + page.Visible(text))
	}
	if w.Goal.reached(&r, n) {
		return ErrReached
	}
	return nil
}
