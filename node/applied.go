package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
)

// applyRecord is what a turn's apply has come to: kept in the runtime directory,
// which a reboot empties, since a plan may restart lockkeeper itself. It says what
// was done and no more: who loses it does the steps once more, which does no harm
// but that of the steps.
type applyRecord struct {
	Turn   string `json:"turn"`
	BootID string `json:"bootID"`
	errand
	// Done is how many of the steps are done.
	Done int `json:"done"`
	// Beside are watched changes that came while the steps were carried out and
	// that the turn was not for; Chain is how many turns before this one, in a row,
	// were for such changes of the turn before them.
	Beside []v1alpha1.Change `json:"beside,omitempty"`
	Chain  int               `json:"chain,omitempty"`
	// Tries is how often the step after them was begun; Run names the run of its
	// unit before that, and Own that of lockkeeper's own unit.
	Tries int    `json:"tries,omitempty"`
	Run   string `json:"run,omitempty"`
	Own   string `json:"own,omitempty"`
}

const (
	applyFile      = "apply.json"
	maxApplyRecord = 256 << 10 // bytes
)

// is reports whether the record is about a stage of this boot.
func (r *applyRecord) is(s stage, bootID string) bool { return r.Turn == s.turn && r.BootID == bootID }

func (r *applyRecord) finished() bool { return r.Done == len(r.Steps) }

// begin makes the record of an errand, going on with what the last process left of
// it: as it began, since what has changed again meanwhile outlives the turn. A
// step that writes the file that it is for would be done indefinitely otherwise, where
// it ends lockkeeper as well. If the steps are others by now, or the file was
// edited, everything is done anew, but no step has more tries for it.
func (r applyRecord) begin(s stage, bootID string, e errand) applyRecord {
	next := applyRecord{Turn: s.turn, BootID: bootID, errand: e}
	if !r.is(s, bootID) {
		if r.BootID == bootID && r.Turn != s.turn {
			next.Chain = step.NextStreak(r.Chain, r.Beside, e.Changes)
		}
		return next
	}
	next.Tries, next.Chain = r.Tries, r.Chain
	if slices.Equal(r.Steps, e.Steps) && r.Done >= 0 && r.Done <= len(r.Steps) {
		return r
	}
	return next
}

// named reports whether one of the changes is the same as c, to whatever version.
func named(changes []v1alpha1.Change, c v1alpha1.Change) bool {
	return slices.ContainsFunc(changes, func(o v1alpha1.Change) bool { return o.Source == c.Source && o.Name == c.Name })
}

// readApplied reads the record, the zero one if there is none.
func readApplied(dir string) (r applyRecord, err error) {
	f, err := os.Open(filepath.Join(dir, applyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		defer f.Close()
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(f, maxApplyRecord)); err == nil {
			err = json.Unmarshal(data, &r)
		}
	}
	if err != nil {
		return applyRecord{}, fmt.Errorf("reading what was applied before: %w", err)
	}
	return r, nil
}

// write leaves the record, whole or not at all.
func (r *applyRecord) write(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("noting what was applied: %w", err)
		}
	}()
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, applyFile+".")
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		// Not synced: dir is in memory, and a reboot is to empty it.
		err = os.Rename(f.Name(), filepath.Join(dir, applyFile))
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
