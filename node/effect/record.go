package effect

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
)

// ApplyPlan is what a turn in applying has to do.
type ApplyPlan struct {
	// Changes are in effect when the steps are done.
	Changes []v1alpha1.Change `json:"changes"`
	// Before lists all changes that were there when the turn began to apply.
	Before []v1alpha1.Change `json:"before,omitempty"`
	// Steps are DaemonReload, Reload and Restart, in order.
	Steps []v1alpha1.Action `json:"steps"`
}

// record says how far a turn's plan is carried out. It is kept in the runtime directory,
// because a plan may restart lockkeeper itself, and a reboot empties that directory. It
// lists only what was done: a host that loses it does the steps once more, with no other
// harm than that of the steps.
type record struct {
	Turn   string `json:"turn"`
	BootID string `json:"bootID"`
	ApplyPlan
	// Done is the number of steps that are done.
	Done int `json:"done"`
	// Others lists watched changes that came while the steps were carried out and that
	// the turn was not for. Streak is that of [step.NextStreak].
	Others []v1alpha1.Change `json:"others,omitempty"`
	Streak int               `json:"streak,omitempty"`
	// Tries is how often the next step was begun. Run is the invocation of its unit before
	// that, and Own that of lockkeeper's own unit.
	Tries int    `json:"tries,omitempty"`
	Run   string `json:"run,omitempty"`
	Own   string `json:"own,omitempty"`
}

const (
	recordFile = "apply.json"
	maxRecord  = 256 << 10 // bytes
)

// is reports whether the record is about a stage of this boot.
func (r *record) is(s Stage, bootID string) bool { return r.Turn == s.Turn && r.BootID == bootID }

func (r *record) finished() bool { return r.Done == len(r.Steps) }

// begin returns the record of a plan. It continues with what this turn did before, by the
// plan that it began with: otherwise a step that restarts lockkeeper and writes the file
// that it is for would be done indefinitely. What has changed again meanwhile makes the
// turn fail. If the steps are others by now, or the file was edited, all steps are done
// again, but none gets more attempts for that.
func (r record) begin(s Stage, bootID string, p ApplyPlan) record {
	next := record{Turn: s.Turn, BootID: bootID, ApplyPlan: p}
	if !r.is(s, bootID) {
		if r.BootID == bootID && r.Turn != s.Turn {
			next.Streak = step.NextStreak(r.Streak, r.Others, p.Changes)
		}
		return next
	}
	next.Tries, next.Streak = r.Tries, r.Streak
	if slices.Equal(r.Steps, p.Steps) && r.Done >= 0 && r.Done <= len(r.Steps) {
		return r
	}
	return next
}

// readRecord reads the record in dir; it is zero if there is none.
func readRecord(dir string) (r record, err error) {
	err = local.ReadJSON(filepath.Join(dir, recordFile), maxRecord, &r)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("reading what was applied before: %w", err)
	}
	return r, nil
}

// write replaces the record in dir.
func (r *record) write(dir string) error {
	if err := local.WriteJSON(filepath.Join(dir, recordFile), 0o600, r); err != nil {
		return fmt.Errorf("recording what was applied: %w", err)
	}
	return nil
}
