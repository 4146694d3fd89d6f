package step

import (
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// maxStreak is how many turns in a row may each be for files that changed during the turn
// before. A user who edits one file after another causes a few. A unit that writes another
// file whenever it is restarted would cause them indefinitely.
const maxStreak = 2

// NextStreak returns the streak of a turn that applies changes: how many turns before it,
// in a row, were for files that had changed during the turn before them. streak and others
// are those of the last turn, with others as [ChangedAgain] returned them.
func NextStreak(streak int, others, changes []v1alpha1.Change) int {
	if slices.ContainsFunc(changes, func(c v1alpha1.Change) bool { return named(others, c) }) {
		return streak + 1
	}
	return 0
}

// ChangedAgain returns why a turn fails although its units are restarted, or "": a file or
// unit that the turn was for has changed again, or another one has changed meanwhile and
// the streak is too long. granted are the turn's changes, before all that were there when it
// began, and present those that were read after the last step. others are other files and
// units that changed meanwhile. They belong to the next turn.
func ChangedAgain(granted, before, present []v1alpha1.Change, streak int) (text string, others []v1alpha1.Change) {
	for _, c := range present {
		switch {
		case !c.Watched() || slices.ContainsFunc(before, c.Same):
		case named(granted, c):
			return c.String() + " changed again while it was applied; does a unit of the plan write it?", nil
		default:
			others = append(others, c)
		}
	}
	if len(others) > 0 && streak >= maxStreak {
		return fmt.Sprintf("%s changed while the plan was carried out, as in the %d turns before; does a unit of the plan write it?", others[0], streak), nil
	}
	return "", others
}

// named reports whether one of the changes is of the same thing as c, in any version.
func named(changes []v1alpha1.Change, c v1alpha1.Change) bool {
	return slices.ContainsFunc(changes, func(o v1alpha1.Change) bool { return o.Source == c.Source && o.Name == c.Name })
}
