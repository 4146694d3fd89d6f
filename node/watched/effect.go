package watched

import (
	"maps"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// What is in effect is kept of paths and units that no rule names any more: a
// policy that is deleted and made again, or a rule that leaves and comes back, must
// not make a pending change one that is in effect. The bounds of that, in time, in
// paths and units, and in their files.
const (
	keepUnnamed     = 30 * 24 * time.Hour
	maxUnnamed      = 100
	maxUnnamedFiles = MaxFiles
)

// takeOver is for how long a rule that has left speaks for the files of one that is
// named for the first time: a path that was renamed, a policy that was split. What a
// broader rule knew weeks ago is no word on what is in effect since.
const takeOver = time.Hour

// speaking are the rules that say what is in effect of the files of a rule that is
// named for the first time.
func speaking(rules []*rule, r *rule) []*rule {
	return slices.DeleteFunc(slices.Clone(rules), func(o *rule) bool {
		return !o.since.IsZero() && r.named.Sub(o.since) > takeOver
	})
}

// holder is the rule that knows best what is in effect of a file, or nil: one that
// is named before those that are not, of these the one that was named last, and
// then the one with the longest path.
func holder(rules []*rule, name string) *rule {
	var found *rule
	for _, r := range rules {
		if r.source != v1alpha1.SourceFile || r.base == nil || !within(name, r.name) {
			continue
		}
		switch {
		case found == nil, r.since.IsZero() && !found.since.IsZero():
			found = r
		case r.since.IsZero() != found.since.IsZero():
		case r.since.After(found.since), r.since.Equal(found.since) && len(r.name) > len(found.name):
			found = r
		}
	}
	return found
}

// baseline takes what is there as in effect, for a rule that is new. What
// another rule knows of the same files stands: a change that is pending does not
// vanish because somebody names its file once more.
func baseline(rules []*rule, r *rule, found map[string]entry) map[string]string {
	rules = speaking(rules, r)
	base := known(rules, r)
	mine := func(name string) bool { return r.source == v1alpha1.SourceUnit || holder(rules, name) == nil }
	for name, e := range found {
		if mine(name) {
			base[name] = e.sum
		}
	}
	// What this boot has published is a change. What was in effect before it is no
	// longer known.
	for _, c := range r.published {
		there := false
		for name := range found {
			if r.source == v1alpha1.SourceUnit || within(name, c.Name) {
				there = true
				if mine(name) {
					base[name] = unknown
				}
			}
		}
		if !there && mine(c.Name) {
			base[c.Name] = unknown
		}
	}
	return base
}

// known is what the rules, r among them, know to be in effect of r's files.
func known(rules []*rule, r *rule) map[string]string {
	base := map[string]string{}
	if r.source == v1alpha1.SourceUnit {
		maps.Copy(base, r.base)
		return base
	}
	for _, o := range rules {
		for name, sum := range o.base {
			if o.source == v1alpha1.SourceFile && within(name, r.name) && holder(rules, name) == o {
				base[name] = sum
			}
		}
	}
	return base
}

// naming says that a rule is named, or is not any more, and reports whether that is
// to be written down. Who comes back takes over what others have learned of its
// files meanwhile, and is read anew.
func (r *rule) naming(rules []*rule, named bool, now time.Time) (news bool) {
	if named && r.idle {
		r.idle, r.settling = false, settling{}
	}
	switch {
	case named && !r.since.IsZero():
		if r.base != nil {
			r.base = known(rules, r)
		}
		r.since, news = time.Time{}, true
	case !named && r.since.IsZero():
		r.since, news = now, true
	}
	r.gone = !named
	return news
}

// surplus are the rules that nobody names any more and that need not be kept.
func surplus(rules []*rule, now time.Time) map[*rule]bool {
	var unnamed []*rule
	for _, r := range rules {
		if r.gone && !r.since.IsZero() {
			if r.since.After(now) {
				r.since = now // the clock was set back: nothing is kept for ever
			}
			unnamed = append(unnamed, r)
		}
	}
	slices.SortStableFunc(unnamed, func(a, b *rule) int { return b.since.Compare(a.since) }) // the last first
	drop := map[*rule]bool{}
	files := 0
	for i, r := range unnamed {
		files += len(r.base)
		drop[r] = r.base == nil || i >= maxUnnamed || files > maxUnnamedFiles || now.Sub(r.since) > keepUnnamed
	}
	return drop
}

// applied takes one change as in effect. It reports whether that was news.
func applied(rules []*rule, c v1alpha1.Change) (news bool) {
	for _, r := range rules {
		if r.source != c.Source || r.name != c.Name || r.base == nil {
			continue
		}
		own := owner(rules, r)
		if files, ok := r.at(c.Version, own); ok {
			inEffect(rules, r, files, own)
			return true
		}
		if r.source == v1alpha1.SourceUnit || r.folder() {
			return false // what it was is not known
		}
	}
	for _, r := range rules {
		if r.source != v1alpha1.SourceFile || r.source != c.Source || r.base == nil || !within(c.Name, r.name) {
			continue
		}
		switch {
		case c.Version == absent:
			delete(r.base, c.Name)
		case version(r.seen[c.Name].sum) == c.Version:
			r.base[c.Name] = r.seen[c.Name].sum
		case len(c.Version) == short && validSum(c.Version):
			r.base[c.Name] = c.Version // it is another already, which is the next turn's
		default:
			continue
		}
		news = true
	}
	return news
}

// folder reports whether a rule's path is, and was, a folder and no file: then a
// change of that name is all of it together.
func (r *rule) folder() bool {
	_, was := r.base[r.name]
	_, is := r.seen[r.name]
	return !was && !is && len(r.base)+len(r.seen) > 0
}

// at are the rule's files as they were when they had the version together.
func (r *rule) at(version string, own func(string) bool) (files map[string]entry, ok bool) {
	if r.seen != nil && whole(r.seen, own) == version {
		return r.seen, true
	}
	for _, t := range r.together {
		if t.version == version {
			return t.files, true
		}
	}
	return nil, false
}

// inEffect takes all own files of a rule as in effect, for every rule that they
// are below.
func inEffect(rules []*rule, r *rule, files map[string]entry, own func(string) bool) {
	for _, o := range rules {
		if o.base == nil || o != r && (o.source != v1alpha1.SourceFile || r.source != o.source) {
			continue
		}
		its := func(name string) bool {
			return own(name) && (o == r || within(name, o.name) && within(name, r.name))
		}
		maps.DeleteFunc(o.base, func(name, _ string) bool { return its(name) })
		for name, e := range files {
			if its(name) {
				o.base[name] = e.sum
			}
		}
	}
}
