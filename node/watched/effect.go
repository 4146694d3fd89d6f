package watched

import (
	"cmp"
	"maps"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// maxUnnamed is how many roots the baseline keeps although no rule names them. They are kept so
// that a pending change stays a change when its policy is deleted and created again. Together
// they have at most maxFiles files.
const maxUnnamed = 100

// covered reports whether the baseline has the files of a root.
func covered(r *root) bool { return r.covered }

// cover adds a root and the files that were found in it to the baseline. The files are in effect
// as they are now, except those that another root covers: a pending change in such a file
// remains a change.
func (w *Watcher) cover(r *root, found map[string]entry) {
	known := func(name string) bool { return w.rootOf(name, covered) != nil }
	for name, e := range found {
		if !known(name) {
			w.digests[name] = e.digest
		}
	}
	// A change that this boot has published remains a change, but its previous content is
	// unknown.
	pending := 0
	for _, c := range r.published {
		if c.Source != r.source() || !within(c.Name, r.name) {
			continue
		}
		pending++
		exists := false
		for name := range found {
			if r.source() == v1alpha1.SourceFile && !within(pathOf(name), c.Name) {
				continue
			}
			if exists = true; !known(name) {
				w.digests[name] = unknown
			}
		}
		if key := r.key(c.Name); !exists && !known(key) {
			w.digests[key] = unknown
		}
	}
	if o := w.rootOf(r.name, (*root).compared); r.private && o != nil && !same(o.seen[r.name].digest, w.digests[r.name]) {
		w.digests[r.key(r.name)] = unknown // the link itself is a pending change of another root
	}
	r.covered, r.published, w.unsaved = true, nil, true
	w.Log.Info("a path or unit is watched for the first time: its files are in effect as they are now, except pending changes",
		"source", r.source(), "name", r.name, "files", len(found), "published_changes", pending)
}

// same reports whether a digest is the one in effect. "" is the digest of a file that does not
// exist.
func same(digest, inEffect string) bool {
	return digest == inEffect || digest != "" && len(inEffect) == short && version(digest) == inEffect
}

// version returns the version that the host publishes for a digest.
func version(digest string) string {
	if digest == "" {
		return v1alpha1.VersionAbsent
	}
	return digest[:min(short, len(digest))]
}

// markBegun makes it unknown what is in effect for one change.
func (w *Watcher) markBegun(c v1alpha1.Change) {
	r := w.nearest(c.Name, func(r *root) bool { return r.compared() && r.source() == c.Source })
	if r == nil {
		return
	}
	key := r.key(c.Name)
	asOne := r.source() == v1alpha1.SourceUnit || w.digests[key] == "" && r.seen[key].digest == "" ||
		slices.ContainsFunc(r.reported, func(s state) bool { return s.version == c.Version })
	if r.name == c.Name && asOne {
		w.setInEffect(r, w.allUnknown(r))
		return
	}
	w.digests[key], w.unsaved = unknown, true
}

// markApplied makes one change part of the baseline.
func (w *Watcher) markApplied(c v1alpha1.Change) {
	r := w.nearest(c.Name, func(r *root) bool { return r.covered && r.source() == c.Source })
	if r == nil || c.Version != v1alpha1.VersionAbsent && v1alpha1.DigestKey(c.Version) == "" {
		return
	}
	if !r.compared() {
		if r.source() == v1alpha1.SourceUnit {
			return // no rule names the unit any more, and its state at the time is unknown
		}
		if o := w.rootOf(c.Name, (*root).compared); !r.private && o != nil {
			r = o
		}
	}
	key := r.key(c.Name)
	now := r.seen[key].digest
	if o := w.rootOf(c.Name, (*root).compared); r.private && o != nil && (version(now) == c.Version || w.own(r).version == c.Version) {
		// The file is reached through a link in another root. The link is in effect too.
		if delete(w.digests, c.Name); o.seen[c.Name].digest != "" {
			w.digests[c.Name] = o.seen[c.Name].digest
		}
	}
	if r.name == c.Name && r.compared() {
		states := append(slices.Clone(r.reported), w.own(r))
		if i := slices.IndexFunc(states, func(s state) bool { return s.version == c.Version }); i >= 0 {
			w.setInEffect(r, states[i].digests)
			return
		}
		itself := version(now) == c.Version
		if c.Version == v1alpha1.VersionAbsent {
			itself = w.digests[key] != ""
		}
		files := w.allUnknown(r)
		below := len(files)
		if files[key] != "" {
			below--
		}
		if r.source() == v1alpha1.SourceUnit || below > 0 && !itself {
			w.setInEffect(r, files)
			return
		}
	}
	w.unsaved = true
	switch {
	case c.Version == v1alpha1.VersionAbsent:
		delete(w.digests, key)
	case version(now) == c.Version:
		w.digests[key] = now
	default: // the file has changed again; that change is for the next turn
		w.digests[key] = c.Version
	}
}

// allUnknown returns the baseline for a root that was applied as a whole, in a state that this
// process has not seen. All files of the root remain changes, including those that were changed
// back to what was in effect before.
func (w *Watcher) allUnknown(r *root) map[string]string {
	files := map[string]string{}
	for name := range w.digests {
		if w.rootOf(name, (*root).compared) == r {
			files[name] = unknown
		}
	}
	for name := range w.own(r).digests {
		files[name] = unknown
	}
	if len(files) == 0 {
		files[r.key(r.name)] = unknown // the root existed when it was applied, and does not exist now
	}
	return files
}

// setInEffect replaces the baseline of a root's own files.
func (w *Watcher) setInEffect(r *root, digests map[string]string) {
	own := func(name string) bool { return w.rootOf(name, (*root).compared) == r }
	maps.DeleteFunc(w.digests, func(name, _ string) bool { return own(name) })
	for name, digest := range digests {
		if own(name) {
			w.digests[name] = digest
		}
	}
	w.unsaved = true
}

// dropUnnamed removes the unnamed roots beyond the limits, and the digests that only they cover.
// It does nothing until every named root has been read, because a new root may use the digests
// of an unnamed one.
func (w *Watcher) dropUnnamed() {
	var unnamed []*root
	for _, r := range w.roots {
		if r.named && !r.covered && r.problem == nil {
			return
		}
		if !r.named && r.covered {
			unnamed = append(unnamed, r)
		}
	}
	maps.DeleteFunc(w.roots, func(_ string, r *root) bool { return !r.named && !r.covered })
	if len(unnamed) == 0 {
		return
	}
	files := map[*root]int{}
	for name := range w.digests {
		files[w.rootOf(name, covered)]++
	}
	// The roots that a rule named most recently come first.
	slices.SortFunc(unnamed, func(a, b *root) int {
		return cmp.Or(b.unnamed.Compare(a.unnamed), cmp.Compare(a.name, b.name))
	})
	keep, total := 0, 0
	for keep < min(len(unnamed), maxUnnamed) {
		if total += files[unnamed[keep]]; total > maxFiles {
			break
		}
		keep++
	}
	if keep == len(unnamed) {
		return
	}
	for _, r := range unnamed[keep:] {
		delete(w.roots, r.name)
		w.Log.Info("too many paths and units have been watched in this boot; lockkeeper no longer remembers what is in effect for one that no rule names", "source", r.source(), "name", r.name)
	}
	maps.DeleteFunc(w.digests, func(name, _ string) bool { return w.rootOf(name, covered) == nil })
	w.unsaved = true
}
