package watched

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// rule is one path or unit that is watched.
type rule struct {
	source v1alpha1.Source // File or Unit
	name   string          // the path, the unit
	gone   bool            // nobody names it any more, or has yet
	named  time.Time       // when it was, for the first time in this process
	since  time.Time       // when the last one that named it went; zero: it is named, or was when the last process ended
	idle   bool            // it is not looked at any more
	excess bool            // it is one more than may be watched

	// published are the changes that the last process published for the rule. They
	// stay changes if it is unknown what is in effect.
	published []v1alpha1.Change
	// base is what is in effect: by path, each file's digest, the beginning of the
	// digest, or unknown. nil: it has not been seen yet.
	base map[string]string
	// seen is what stands: what is there, once it had settled. nil: it has not
	// been read since this process began.
	seen map[string]entry
	// read is what was read last.
	read map[string]entry
	// together are the last contents that were told of as one change.
	together []together

	problem  error
	blind    error // why the kernel does not tell of its changes
	settling settling
	waiting  string // blind: what was there at the last look, and had not settled
}

// absent is the version of what is not there.
const absent = v1alpha1.VersionAbsent

// The lengths of a digest with its key's ID: in full, and as a change's version.
const (
	full  = v1alpha1.KeyIDLength + 1 + 2*sha256.Size
	short = v1alpha1.KeyIDLength + 1 + v1alpha1.DigestLength
)

// unknown is in base if what is in effect of a file is unknown: the file differs
// from it, whatever its content.
const unknown = "unknown"

func (r *rule) key() string { return string(r.source) + " " + r.name }

// covers reports whether a change may have come by the rule.
func (r *rule) covers(c v1alpha1.Change) bool {
	return r.source == c.Source && (r.name == c.Name || r.source == v1alpha1.SourceFile && within(c.Name, r.name))
}

// within reports whether name is path, or below it.
func within(name, path string) bool {
	rest, ok := strings.CutPrefix(name, path)
	return ok && (rest == "" || rest[0] == '/' || path == "/")
}

// same reports whether a file's digest is the one that is in effect; "" is a
// file that is not there.
func same(sum, base string) bool {
	return sum == base || len(base) == short && strings.HasPrefix(sum, base)
}

// version is what a digest leads to.
func version(sum string) string {
	if sum == "" {
		return absent
	}
	return sum[:min(short, len(sum))]
}

// whole returns the version of many files together: a digest of their digests, which
// only the host can compute, because they are made with its key.
func whole(files map[string]entry, of func(name string) bool) string {
	sum, id := sha256.New(), ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if of(name) {
			fmt.Fprintf(sum, "%q %s\n", name, files[name].sum)
			id, _, _ = strings.Cut(files[name].sum, "-")
		}
	}
	if id == "" {
		return absent
	}
	return version(id + "-" + hex.EncodeToString(sum.Sum(nil)))
}

func all(string) bool { return true }

func equal(a, b map[string]entry) bool {
	return maps.EqualFunc(a, b, func(a, b entry) bool { return a.sum == b.sum })
}

// differing are the files, of those asked for, that are not what is in effect.
func (r *rule) differing(of func(name string) bool) []string {
	var names []string
	if r.base == nil || r.seen == nil {
		return nil
	}
	for name, e := range r.seen {
		if base, ok := r.base[name]; (!ok || !same(e.sum, base)) && of(name) {
			names = append(names, name)
		}
	}
	for name := range r.base {
		if _, ok := r.seen[name]; !ok && of(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MaxChanges is how many files of one path are told of one by one: if more
// differ, the path itself is the change.
const MaxChanges = 50

// maxChangeBytes bounds what all changes together take up on the Node: its
// record holds 16 KiB, and has other things in it. Beyond it, the paths with
// the most changes become one each.
const maxChangeBytes = 12 << 10

// changes are what the rules say, noted in those that say it as one.
func changes(rules []*rule) []v1alpha1.Change {
	type said struct {
		rule *rule
		list []v1alpha1.Change
	}
	var lists []said
	size := 0
	for _, r := range rules {
		if r.gone {
			continue
		}
		own := owner(rules, r)
		names := r.differing(own)
		if len(names) == 0 {
			continue
		}
		var list []v1alpha1.Change
		if r.source == v1alpha1.SourceUnit || len(names) > MaxChanges {
			list = one(r, own)
		} else {
			for _, name := range names {
				list = append(list, v1alpha1.Change{Source: r.source, Name: name, Version: version(r.seen[name].sum)})
			}
		}
		lists = append(lists, said{r, list})
		size += weigh(list)
	}
	slices.SortStableFunc(lists, func(a, b said) int { return cmp.Compare(len(b.list), len(a.list)) })
	var together []v1alpha1.Change
	for _, l := range lists {
		if size > maxChangeBytes && len(l.list) > 1 {
			size -= weigh(l.list)
			l.list = one(l.rule, owner(rules, l.rule))
			size += weigh(l.list)
		}
		together = append(together, l.list...)
	}
	slices.SortFunc(together, func(a, b v1alpha1.Change) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Name, b.Name))
	})
	return together
}

// together is what stood when a whole rule was told of as one change: the
// version alone does not say which of its files were what.
type together struct {
	version string
	files   map[string]entry
}

// maxTogether is how many of them are kept: a turn may be for one that is not the
// last any more.
const maxTogether = 3

// one is all that differs under a rule as one change.
func one(r *rule, own func(string) bool) []v1alpha1.Change {
	version := whole(r.seen, own)
	r.together = slices.DeleteFunc(r.together, func(t together) bool { return t.version == version })
	r.together = append(r.together, together{version, r.seen})
	r.together = r.together[max(0, len(r.together)-maxTogether):]
	return []v1alpha1.Change{{Source: r.source, Name: r.name, Version: version}}
}

func weigh(list []v1alpha1.Change) (bytes int) {
	for _, c := range list {
		bytes += len(v1alpha1.FormatRecord(c)) + 1
	}
	return bytes
}

// owner tells which files are a rule's own: those below the path of another,
// longer one are that one's.
func owner(rules []*rule, r *rule) func(name string) bool {
	if r.source != v1alpha1.SourceFile {
		return all
	}
	var inner []string
	for _, o := range rules {
		if o != r && !o.gone && o.source == v1alpha1.SourceFile && o.base != nil && o.seen != nil && within(o.name, r.name) {
			inner = append(inner, o.name)
		}
	}
	if len(inner) == 0 {
		return all
	}
	return func(name string) bool {
		return !slices.ContainsFunc(inner, func(path string) bool { return within(name, path) })
	}
}
