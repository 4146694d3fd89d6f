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

// baselineVersion is the version of the file's format.
const baselineVersion = 2

// maxBaseline is the maximum size of the file, in bytes. It is enough for the digests of about
// two million files. A test lowers it.
var maxBaseline int64 = 256 << 20

// short is the length of a shortened digest, with its key's ID, as the version of a change has
// it.
const short = v1alpha1.KeyIDLength + 1 + v1alpha1.DigestLength

// unknown is the digest in the baseline of a file whose content in effect is unknown. Every
// content differs from it.
const unknown = "unknown"

// baselineFile describes what is in effect in one boot.
type baselineFile struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"`
	// Digests has the digest of each file in effect, by its path. For a unit's file, the
	// unit's name and a slash precede the path. For a file that is reached through links,
	// the name of the root and a slash precede it. A digest may be shortened to a version,
	// or unknown.
	Digests map[string]string `json:"digests"`
	// Roots are the paths and units that Digests covers. A file in one of them that is not
	// in Digests was absent in what is in effect. The time is when the last rule that named
	// the root went away. It is zero while a rule names the root.
	Roots map[string]time.Time `json:"roots"`
}

// parseBaseline decodes the file's text. It returns an error if a digest was made with a key
// other than keyID's, because such a digest cannot be compared.
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
	if b.Digests == nil || b.Roots == nil {
		return nil, errors.New("expected digests and roots")
	}
	for path, digest := range b.Digests {
		if name, file, private := strings.Cut(path, "//"); private && filepath.IsAbs(name) && !within("/"+file, name) {
			return nil, fmt.Errorf("%q: the file is not below %s", path, name)
		}
		if digest != unknown && !strings.HasPrefix(digest, keyID+"-") {
			return nil, fmt.Errorf("%q: its digest %.8s… was not made with the key in %s, which has the ID %s", path, digest, keyName, keyID)
		}
	}
	return &b, nil
}

// load reads the baseline from the file and uses it if it is of this boot.
func (w *Watcher) load() {
	w.loadKey()
	path := filepath.Join(w.StateDir, baselineName)
	b, err := readBaseline(path, w.key.id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		w.unsaved = true
		w.Log.Warn("cannot read which files and units were in effect; lockkeeper treats their current content as in effect, except for changes that it published in this boot; it misses other changes that were made before now", "file", path, "err", err)
	case b.BootID != w.BootID:
		w.unsaved = true
		w.Log.Info("a new boot: the watched files and units are in effect as they are now")
	default:
		w.digests, w.roots = b.Digests, b.rootsByName()
	}
}

// rootsByName returns the roots. No rule names one of them yet.
func (b *baselineFile) rootsByName() map[string]*root {
	roots := map[string]*root{}
	for name, unnamed := range b.Roots {
		roots[name] = &root{name: name, private: !filepath.IsAbs(name), covered: true, unnamed: unnamed}
	}
	for key := range b.Digests {
		name, _, private := strings.Cut(key, "//")
		if r := roots[name]; private && r != nil {
			r.private = true
		}
	}
	return roots
}

func readBaseline(path, keyID string) (*baselineFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBaseline+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > maxBaseline {
		return nil, errTooLong
	}
	return parseBaseline(text, keyID)
}

var errTooLong = fmt.Errorf("expected at most %d MiB: the policies name paths with too many files", maxBaseline>>20)

// save writes the baseline if it has changed since the last write. If the write fails, the
// Watcher tries again after the next read.
func (w *Watcher) save() error {
	w.saving.Lock()
	defer w.saving.Unlock()
	w.mu.Lock()
	if !w.unsaved && (w.key.saved || len(w.roots) == 0) {
		w.mu.Unlock()
		return nil
	}
	w.unsaved = false
	b := baselineFile{Version: baselineVersion, BootID: w.BootID, Digests: w.digests, Roots: map[string]time.Time{}}
	for name, r := range w.roots {
		if r.covered {
			b.Roots[name] = r.unnamed.UTC()
		}
	}
	text, err := json.MarshalIndent(b, "", "\t")
	w.mu.Unlock()
	path := filepath.Join(w.StateDir, baselineName)
	if err == nil && int64(len(text)) > maxBaseline {
		err = errTooLong
	}
	if err == nil {
		err = w.key.save(w.StateDir) // first, because a baseline is useless without its key
	}
	if err == nil {
		err = replace(path, text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.unsaved = true
		err = fmt.Errorf("writing which files and units are in effect, to %s: %w", path, err)
		if w.saveErr == nil {
			w.Log.Warn("cannot write which files and units are in effect; a restart of lockkeeper may lose changes", "err", err)
		}
	} else if w.saveErr != nil {
		w.Log.Info("lockkeeper can write again which files and units are in effect", "file", path)
	}
	w.saveErr = err
	return err
}

// replace writes a file as a whole or not at all, even if the power fails.
func replace(path string, text []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := path + ".new" // always the same name, so that failed writes leave at most one file
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
		_ = os.Remove(next)
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
