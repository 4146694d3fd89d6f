package watched

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// baselineName is the file in the state directory.
const baselineName = "baseline.json"

// baselineVersion is that of the file's form.
const baselineVersion = 1

// maxBaseline bounds what is read of the file, in bytes: some hundred full
// rules.
const maxBaseline = 256 << 20

// baselineFile is what is in effect in one boot: of each watched path and unit
// the digests of its files, by their paths.
type baselineFile struct {
	Version int                          `json:"version"`
	BootID  string                       `json:"bootID"`
	Files   map[string]map[string]string `json:"files"`
	Units   map[string]map[string]string `json:"units"`
	// Unnamed is since when no rule names a path, or a unit, any more, by "File
	// PATH" and "Unit NAME".
	Unnamed map[string]time.Time `json:"unnamed,omitempty"`
}

// parseBaseline reads the file's text. It returns an error if a digest was made with
// another key than keyID's: nothing can be compared with such a digest.
func parseBaseline(text []byte, keyID string) (*baselineFile, error) {
	var b baselineFile
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("not the JSON expected: %w", err)
	}
	if b.Version != baselineVersion {
		return nil, fmt.Errorf("version %d, expected %d", b.Version, baselineVersion)
	}
	if err := v1alpha1.ValidateID(b.BootID); err != nil {
		return nil, fmt.Errorf("bootID: %w", err)
	}
	for _, rules := range []map[string]map[string]string{b.Files, b.Units} {
		for name, files := range rules {
			if files == nil {
				return nil, fmt.Errorf("%q: nothing, expected its files", name)
			}
			for path, sum := range files {
				if !validSum(sum) {
					return nil, fmt.Errorf("%q: %q is no digest", path, sum)
				}
				if sum != unknown && !strings.HasPrefix(sum, keyID+"-") {
					return nil, fmt.Errorf("%q: its digest %.8s… was made with another key than the one in %s, which has the ID %s", path, sum, keyName, keyID)
				}
			}
		}
	}
	return &b, nil
}

// validSum reports whether sum is a full digest, a digest as short as a change's
// version, or unknown.
func validSum(sum string) bool {
	return sum == unknown || (len(sum) == short || len(sum) == full) && v1alpha1.DigestKey(sum[:short]) != "" && strings.Trim(sum[short:], "0123456789abcdef") == ""
}

// load reads what is in effect, if it is of this boot. What cannot be read is
// taken anew.
func (w *Watcher) load() {
	w.loadKey()
	path := filepath.Join(w.StateDir, baselineName)
	b, err := readBaseline(path, w.key.id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		w.unsaved = true
		w.Log.Warn("cannot read which files and units were in effect; lockkeeper takes what is there now as in effect, except changes that it published in this boot, and does not see other changes made until now", "file", path, "err", err)
		return
	case b.BootID != w.BootID:
		w.unsaved = true
		w.Log.Info("a new boot: the watched files and units are in effect as they are now")
		return
	}
	for source, rules := range map[v1alpha1.Source]map[string]map[string]string{v1alpha1.SourceFile: b.Files, v1alpha1.SourceUnit: b.Units} {
		for name, base := range rules {
			r := &rule{source: source, name: name, base: base, gone: true, idle: true}
			r.since = b.Unnamed[r.key()]
			w.rules = append(w.rules, r)
		}
	}
}

func readBaseline(path, keyID string) (*baselineFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBaseline))
	if err != nil {
		return nil, err
	}
	return parseBaseline(text, keyID)
}

// save writes what is in effect, if that has changed. What cannot be written
// is kept, and written at the next poll.
func (w *Watcher) save() error {
	w.saving.Lock()
	defer w.saving.Unlock()
	w.mu.Lock()
	if !w.unsaved && (!w.newKey || len(w.rules) == 0) {
		w.mu.Unlock()
		return nil
	}
	w.unsaved = false
	b := baselineFile{Version: baselineVersion, BootID: w.BootID, Files: map[string]map[string]string{}, Units: map[string]map[string]string{}, Unnamed: map[string]time.Time{}}
	for _, r := range w.rules {
		if r.base != nil && !r.since.IsZero() {
			b.Unnamed[r.key()] = r.since.UTC()
		}
		switch {
		case r.base == nil:
		case r.source == v1alpha1.SourceUnit:
			b.Units[r.name] = r.base
		default:
			b.Files[r.name] = r.base
		}
	}
	text, err := json.MarshalIndent(b, "", "\t")
	newKey := w.newKey
	w.mu.Unlock()
	path := filepath.Join(w.StateDir, baselineName)
	if err == nil && newKey {
		// Write the key first: a baseline is useless without it.
		err = w.key.write(w.StateDir)
	}
	keyWritten := err == nil
	if err == nil {
		err = replace(path, text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newKey = w.newKey && !keyWritten
	if err != nil {
		w.unsaved = true
		err = fmt.Errorf("writing which files and units are in effect, to %s: %w", path, err)
		if w.unwritten == nil {
			w.Log.Warn("cannot keep which files and units are in effect; a restart of lockkeeper may forget changes", "err", err)
		}
	} else if w.unwritten != nil {
		w.Log.Info("which files and units are in effect is kept again", "file", path)
	}
	w.unwritten = err
	return err
}

// replace writes a file anew, whole or not at all, also if the power fails.
func replace(path string, text []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := path + ".new" // always the same: none is left over
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // what it holds of a full disk is of no use
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
