package watched

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// root is a path or unit that a rule names or has named.
type root struct {
	name    string
	named   bool
	unnamed time.Time // when the last rule that named it went away; zero: a rule names it
	covered bool      // the baseline has its files
	// private is true for a unit, and for a path that is reached through a link. No other
	// root has its files, even if another root's path contains them: that root only reads
	// the link.
	private bool

	// published are the changes that the previous process published. They are used if
	// the baseline does not cover the root.
	published []v1alpha1.Change
	// reported are the last states that were reported as one change each.
	reported []state
	// seen are the files that the report uses: the last read that had settled. latest is
	// the last read if it has not settled. Each is nil if there is no such read.
	seen, latest map[string]entry

	problem error // why the root cannot be read
	blind   error // why inotify does not report its changes

	// firstChange and lastChange are the times of the first and the last change that the
	// report does not contain yet. They are zero if there is none.
	firstChange, lastChange time.Time
}

// state is the state of all files of a root. The digests are needed because the version does not
// identify the single files.
type state struct {
	version string
	digests map[string]string // by path
}

// maxReported is how many states are kept. A turn may apply a state older than the last one.
const maxReported = 3

func (r *root) source() v1alpha1.Source {
	if path.IsAbs(r.name) {
		return v1alpha1.SourceFile
	}
	return v1alpha1.SourceUnit
}

// watched reports whether the Watcher reads the root.
func (r *root) watched() bool { return r.named && r.problem != errExcess }

// compared reports whether the report includes the root.
func (r *root) compared() bool { return r.named && r.seen != nil }

// changed records a change. It reports whether no other change was waiting to settle.
func (r *root) changed(now time.Time) (first bool) {
	first = r.firstChange.IsZero()
	if first {
		r.firstChange = now
	}
	r.lastChange = now
	return first
}

// due returns when to read the root: when nothing has changed for the time quiet, or when the
// first change is settleFactor times as old. It returns zero if there is no change.
func (r *root) due(quiet time.Duration) time.Time {
	if r.firstChange.IsZero() {
		return time.Time{}
	}
	due, bound := r.lastChange.Add(quiet), r.firstChange.Add(settleFactor*quiet)
	if due.Before(bound) {
		return due
	}
	return bound
}

// readSince records that the report contains a read that began at the given time. A later
// change has to settle from the beginning.
func (r *root) readSince(began time.Time) {
	if r.lastChange.Before(began) {
		r.firstChange, r.lastChange = time.Time{}, time.Time{}
	} else {
		r.firstChange = r.lastChange
	}
}

func equal(a, b map[string]entry) bool {
	return maps.EqualFunc(a, b, func(a, b entry) bool { return a.digest == b.digest })
}

// key returns the key of the root's file in the baseline. It is the path or, in a private root,
// the root's name and the path.
func (r *root) key(path string) string {
	if r.private {
		return r.name + "/" + path
	}
	return path
}

// pathOf returns the path in a key.
func pathOf(key string) string {
	if _, path, private := strings.Cut(key, "//"); private {
		return "/" + path
	}
	return key
}

// rootOf returns the root that a key belongs to: of the matching roots that contain it, the one
// with the longest name, or nil.
func (w *Watcher) rootOf(key string, match func(*root) bool) *root {
	if name, _, private := strings.Cut(key, "//"); private {
		if r := w.roots[name]; r != nil && match(r) {
			return r
		}
		return nil
	}
	return w.nearest(key, func(r *root) bool { return !r.private && match(r) })
}

// nearest returns the matching root with the longest name that contains a path, or nil.
func (w *Watcher) nearest(name string, match func(*root) bool) *root {
	for {
		if r := w.roots[name]; r != nil && match(r) {
			return r
		}
		parent := path.Dir(name)
		if parent == name || parent == "." {
			return nil
		}
		name = parent
	}
}

// own returns the current state of a root's files, except those that belong to a root with a
// longer name.
func (w *Watcher) own(r *root) state {
	s := state{v1alpha1.VersionAbsent, map[string]string{}}
	for name, e := range r.seen {
		if w.rootOf(name, (*root).compared) == r {
			s.digests[name] = e.digest
		}
	}
	if len(s.digests) > 0 {
		// Only the host can compute this sum, because the digests are made with its key.
		sum := sha256.New()
		for _, name := range slices.Sorted(maps.Keys(s.digests)) {
			fmt.Fprintf(sum, "%q %s\n", name, s.digests[name])
		}
		s.version = version(w.key.id + "-" + hex.EncodeToString(sum.Sum(nil)))
	}
	return s
}

// maxChanges is how many files of one path are reported as a change each. If more of them
// differ, the path is reported as one change.
const maxChanges = 50

// maxChangeBytes bounds the size of all changes together, because the host's record on the Node
// is limited to 16 KiB and contains more than the changes. If the changes are larger, the paths
// with the most changes are reported as one change each.
const maxChangeBytes = 12 << 10

// changes compares the files that were read with the baseline.
func (w *Watcher) changes() []v1alpha1.Change {
	lists := map[*root][]v1alpha1.Change{}
	add := func(r *root, name string) {
		if longest := w.nearest(name, (*root).compared); !r.private && longest.private {
			return // the private root reports the file that the link leads to
		}
		lists[r] = append(lists[r], v1alpha1.Change{Source: r.source(), Name: pathOf(name), Version: version(r.seen[name].digest)})
	}
	for name, inEffect := range w.digests {
		if r := w.rootOf(name, (*root).compared); r != nil && !same(r.seen[name].digest, inEffect) {
			add(r, name)
		}
	}
	for _, r := range w.roots {
		if !r.compared() {
			continue
		}
		for name := range r.seen {
			if w.digests[name] == "" && w.rootOf(name, (*root).compared) == r {
				add(r, name)
			}
		}
	}
	size := 0
	for r, list := range lists {
		if r.source() == v1alpha1.SourceUnit || len(list) > maxChanges {
			lists[r] = w.asOne(r)
		}
		size += weigh(lists[r])
	}
	var all []v1alpha1.Change
	for _, r := range slices.SortedFunc(maps.Keys(lists), func(a, b *root) int {
		return cmp.Or(cmp.Compare(len(lists[b]), len(lists[a])), cmp.Compare(a.name, b.name))
	}) {
		list := lists[r]
		if size > maxChangeBytes && len(list) > 1 {
			size -= weigh(list)
			list = w.asOne(r)
			size += weigh(list)
		}
		all = append(all, list...)
	}
	slices.SortFunc(all, v1alpha1.CompareChanges)
	return all
}

// asOne returns all changes in a root as one change, and remembers the root's state.
func (w *Watcher) asOne(r *root) []v1alpha1.Change {
	now := w.own(r)
	r.reported = slices.DeleteFunc(r.reported, func(s state) bool { return s.version == now.version })
	r.reported = append(r.reported, now)
	r.reported = r.reported[max(0, len(r.reported)-maxReported):]
	return []v1alpha1.Change{{Source: r.source(), Name: r.name, Version: now.version}}
}

func weigh(list []v1alpha1.Change) (bytes int) {
	for _, c := range list {
		bytes += len(v1alpha1.FormatRecord(c)) + 1
	}
	return bytes
}
