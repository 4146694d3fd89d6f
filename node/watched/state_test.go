package watched

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// refreshed refreshes and returns the changes by name.
func refreshed(t *testing.T, w *Watcher) string {
	t.Helper()
	must(t, w.Refresh(t.Context()))
	return names(w)
}

func expectChanges(t *testing.T, w *Watcher, want string) {
	t.Helper()
	if got := refreshed(t, w); got != want {
		t.Errorf("changes %q, expected %q", got, want)
	}
}

var both = []string{"/etc/dir", "/etc/one"}

// watching creates a Watcher of both paths that does not run, as after a restart.
func (b *bench) watching() *Watcher {
	w := b.new()
	w.Watch(both, nil, nil)
	return w
}

func (b *bench) baseline() string { return filepath.Join(b.state, baselineName) }

// TestRestart checks that a change while lockkeeper was stopped is reported, and that a change before this boot is not.
func TestRestart(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "a")
	b.write("etc/dir/b", "b")
	b.write("etc/one", "1")
	if w := b.watching(); complete(w) {
		t.Error("complete before anything was read")
	}
	expectChanges(t, b.watching(), "")
	b.write("etc/dir/a", "aa")
	b.write("etc/dir/c", "c")
	b.remove("etc/one")
	w := b.watching()
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/c=… /etc/one=absent")
	expectChanges(t, b.watching(), "/etc/dir/a=… /etc/dir/c=… /etc/one=absent")
	info, err := os.Stat(b.baseline())
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the baseline: %v", info.Mode())
	}

	b.options.BootID = "another-boot"
	w = b.watching()
	expectChanges(t, w, "")
	if !b.log.has("a new boot") {
		t.Error("the log does not report that everything counts as in effect")
	}
	b.write("etc/one", "2")
	expectChanges(t, b.watching(), "/etc/one=…")
}

// TestCorruptBaseline checks that an unreadable baseline is replaced, with a warning that names the file.
func TestCorruptBaseline(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut off": "{\"version\": 1,\n", "null": "null", "another version": `{"version":1,"bootID":"` + boot + `","digests":{},"roots":{}}`,
		"no boot": `{"version":2,"digests":{},"roots":{}}`, "not a digest": `{"version":2,"bootID":"` + boot + `","digests":{"/etc/one":"xyz"},"roots":{}}`,
		"no digests": `{"version":2,"bootID":"` + boot + `","roots":{"/etc/one":"0001-01-01T00:00:00Z"}}`, "no roots": `{"version":2,"bootID":"` + boot + `","digests":{}}`,
		"of no root": `{"version":2,"bootID":"` + boot + `","digests":{"/a//one":"unknown"},"roots":{"/a":"0001-01-01T00:00:00Z"}}`,
		"not a time": `{"version":2,"bootID":"` + boot + `","digests":{},"roots":{"/etc/one":"yesterday"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.write("etc/one", "1")
			must(t, os.Mkdir(b.state, 0o755))
			must(t, os.WriteFile(b.baseline(), []byte(text), 0o600))
			expectChanges(t, b.watching(), "")
			if !b.log.has("level=WARN") || !b.log.has(b.baseline()) {
				t.Errorf("no warning names the file: %s", b.log.text.String())
			}
			b.write("etc/one", "2")
			expectChanges(t, b.watching(), "/etc/one=…") // the baseline was written again
		})
	}
	b := newBench(t)
	must(t, os.MkdirAll(b.baseline(), 0o755)) // a directory at the path cannot be replaced either
	w := b.watching()
	expectChanges(t, w, "")
	if _, problems, complete := read(w); !complete || !b.log.has("cannot write which files and units are in effect") {
		t.Errorf("%v, complete %t: %s", problems, complete, b.log.text.String())
	}
}

// TestBaselineTooLong checks that a baseline that is too long to be read is not written, and that a baseline that is
// too long is not read. Both are logged.
func TestBaselineTooLong(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	w := b.watching()
	expectChanges(t, w, "")
	defer func(was int64) { maxBaseline = was }(maxBaseline)
	maxBaseline = 400
	b.write("etc/one", "2")
	b.write("etc/dir/"+strings.Repeat("x", 200), "")
	expectChanges(t, w, "/etc/dir/"+strings.Repeat("x", 200)+"=… /etc/one=…")
	if err := w.MarkApplied(w.Report().Changes); err == nil || !strings.Contains(err.Error(), "too many files") {
		t.Errorf("the baseline is too long to be read, but the error is %v", err)
	}
	expectChanges(t, b.watching(), "/etc/dir/"+strings.Repeat("x", 200)+"=… /etc/one=…") // from the remaining file
	maxBaseline = 100
	expectChanges(t, b.watching(), "")
	if !b.log.has("cannot read which files and units were in effect") {
		t.Error("the log does not report the unread baseline")
	}
}

// TestAppliedWithoutRule checks that a change that was applied after its rule was removed is in effect when the rule
// comes back.
func TestAppliedWithoutRule(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "1")
	b.write("etc/one", "1")
	w := b.watching()
	refreshed(t, w)
	b.write("etc/dir/a", "2")
	b.remove("etc/one")
	expectChanges(t, w, "/etc/dir/a=… /etc/one=absent")
	turn := w.Report().Changes
	w.Watch(nil, nil, nil)
	expectChanges(t, w, "")
	must(t, w.MarkApplied(turn))
	w.Watch(both, nil, nil)
	expectChanges(t, w, "")
}

// TestBegun checks that what a turn has begun to apply remains a change if it is changed back, that nothing else
// becomes a change, and that it is in effect once it is applied.
func TestBegun(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "1")
	b.write("etc/dir/b", "1")
	b.write("etc/v1/x", "x")
	b.write("etc/v2/x", "x")
	must(t, os.Symlink("v1", b.at("etc/link")))
	many := func(text string) {
		for i := range maxChanges + 1 {
			b.write(fmt.Sprintf("etc/many/%d", i), text)
		}
	}
	many("1")
	b.write("etc/many/same", "1")
	watch := func() *Watcher {
		w := b.new()
		w.Watch([]string{"/etc/dir", "/etc/link", "/etc/many"}, nil, nil)
		return w
	}
	w := watch()
	expectChanges(t, w, "")
	edit := func() {
		b.write("etc/dir/a", "2")
		b.write("etc/dir/new", "2")
		must(t, os.Remove(b.at("etc/link")))
		must(t, os.Symlink("v2", b.at("etc/link")))
		many("2")
	}
	edit()
	const edited = "/etc/dir/a=… /etc/dir/new=… /etc/link=… /etc/many=…"
	expectChanges(t, w, edited)
	first := w.Report().Changes
	must(t, w.MarkBegun(append(first, file("/etc/dir/a", first[0].Version), file("/elsewhere", "absent"))))
	expectChanges(t, w, edited)

	b.write("etc/dir/a", "1")
	b.remove("etc/dir/new")
	must(t, os.Remove(b.at("etc/link")))
	must(t, os.Symlink("v1", b.at("etc/link")))
	many("1")
	const back = "/etc/dir/a=… /etc/dir/new=absent /etc/link=… /etc/many=…"
	expectChanges(t, w, back)
	w = watch()
	expectChanges(t, w, back)
	must(t, w.MarkApplied(w.Report().Changes))
	expectChanges(t, w, "")
	expectChanges(t, watch(), "")

	edit()
	expectChanges(t, w, edited)
	again := w.Report().Changes
	must(t, w.MarkBegun(again))
	must(t, w.MarkApplied(again))
	expectChanges(t, w, "")
}

// TestFullDisk checks that a full disk loses nothing while the process lives, and that it is logged.
func TestFullDisk(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	must(t, os.Mkdir(b.state, 0o755))
	next := b.baseline() + ".new"
	full := func() { must(t, os.Symlink("/dev/full", next)) }
	full()
	w := b.watching()
	expectChanges(t, w, "")
	if _, problems, complete := read(w); !complete || !b.log.has("no space left") {
		t.Errorf("%v, complete %t: %s", problems, complete, b.log.text.String())
	}
	b.write("etc/one", "2")
	full()
	expectChanges(t, w, "/etc/one=…")
	changes, _, _ := read(w)
	full()
	if err := w.MarkApplied(changes); err == nil {
		t.Error("no error although the applied change was not written")
	}
	full()
	expectChanges(t, w, "")
	expectChanges(t, w, "") // the disk has space again
	if !b.log.has("can write again") {
		t.Error("the log does not report that the baseline can be written again")
	}
	expectChanges(t, b.watching(), "")
}

// TestApplied checks that what a turn has applied is in effect, and that a later change is another change.
func TestApplied(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "a")
	b.write("etc/dir/b", "b")
	b.write("etc/one", "1")
	w := b.watching()
	refreshed(t, w)
	b.write("etc/dir/a", "aa")
	b.remove("etc/dir/b")
	b.write("etc/one", "2")
	refreshed(t, w)
	turn, _, _ := read(w)
	b.write("etc/dir/a", "aaa")
	b.write("etc/dir/c", "c")
	refreshed(t, w)
	must(t, w.MarkApplied(append(turn, v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/etc/dir/c", Version: v1alpha1.VersionAbsent})))
	if got := names(w); got != "/etc/dir/a=… /etc/dir/c=…" {
		t.Errorf("after what was applied: %q", got)
	}
	expectChanges(t, b.watching(), "/etc/dir/a=… /etc/dir/c=…")
	b.write("etc/dir/a", "aa") // the applied content, of which only the version is known
	expectChanges(t, w, "/etc/dir/c=…")
	expectChanges(t, b.watching(), "/etc/dir/c=…")
	b.write("etc/dir/a", "a") // the content before that
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/c=…")

	turn, _, _ = read(w)
	must(t, w.MarkApplied(turn))
	if got := names(w); got != "" {
		t.Errorf("everything is applied, but %q is left", got)
	}
	before, err := os.Stat(b.baseline())
	must(t, err)
	must(t, w.MarkApplied([]v1alpha1.Change{file("/etc/unknown", w.key.id+"-0123456789ab"), file("/etc/one", "nonsense"), {Source: v1alpha1.SourceRequest}}))
	after, err := os.Stat(b.baseline())
	must(t, err)
	if names(w) != "" || !os.SameFile(before, after) {
		t.Errorf("%q after invalid changes; the baseline was written: %t", names(w), !os.SameFile(before, after))
	}
}

// TestAppliedInUnseenState checks a unit, or a directory that is reported as one change, that was applied in a state
// that only the last process has seen, and that has changed again since. It must stay a change as a whole, even if all
// its files are the same as before the turn.
func TestAppliedInUnseenState(t *testing.T) {
	b := newBench(t)
	b.options.Units = &unitFiles{}
	const unit = "etc/systemd/system/a.service"
	write := func(text string) {
		b.write(unit, text)
		for i := range maxChanges + 1 {
			b.write(fmt.Sprintf("etc/many/%02d", i), text)
		}
	}
	start := func() *Watcher {
		w := b.new()
		w.Watch([]string{"/etc/many"}, []string{"a.service"}, nil)
		return w
	}
	write("0")
	refreshed(t, start())
	for _, next := range []string{"0", "2", ""} {
		write("1")
		w := start()
		expectChanges(t, w, "/etc/many=… a.service=…")
		turn := w.Report().Changes
		if write(next); next == "" {
			b.remove("etc/many")
			b.remove(unit)
		}
		w = start()
		refreshed(t, w)
		must(t, w.MarkApplied(turn))
		want := "/etc/many=… a.service=…"
		if next == "" {
			want = "/etc/many=absent a.service=absent"
		}
		expectChanges(t, start(), want)
		must(t, w.MarkApplied(w.Report().Changes))
		expectChanges(t, start(), "")
		write("0")
		refreshed(t, w)
		must(t, w.MarkApplied(w.Report().Changes))
	}
	// All files of the directory were gone when it was applied.
	b.remove("etc/many")
	w := start()
	expectChanges(t, w, "/etc/many=absent")
	turn := w.Report().Changes
	write("0")
	w = start()
	expectChanges(t, w, "")
	must(t, w.MarkApplied(turn))
	expectChanges(t, w, "/etc/many=…")
}

// TestOtherRules checks that paths without a rule are not reported, and that a path with another rule keeps its pending
// changes.
func TestOtherRules(t *testing.T) {
	b := newBench(t)
	b.write("etc/dir/a", "a")
	b.write("etc/dir/sub/b", "b")
	w := b.new()
	w.Watch([]string{"/etc/dir"}, nil, nil)
	refreshed(t, w)
	b.write("etc/dir/a", "aa")
	b.write("etc/dir/sub/b", "bb")
	b.write("etc/dir/sub/c", "c")
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/sub/b=… /etc/dir/sub/c=…")
	pending, _, _ := read(w)

	w.Watch([]string{"/etc/dir", "/etc/dir/sub"}, nil, nil)
	if names(w) != "/etc/dir/a=… /etc/dir/sub/b=… /etc/dir/sub/c=…" || complete(w) {
		t.Errorf("before the new rule was read: %q, complete %t", names(w), complete(w))
	}
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/sub/b=… /etc/dir/sub/c=…")
	w.Watch([]string{"/etc/dir/sub"}, nil, nil) // the outer rule is removed
	expectChanges(t, w, "/etc/dir/sub/b=… /etc/dir/sub/c=…")
	must(t, w.MarkApplied(pending[1:2]))
	w.Watch([]string{"/etc", "/etc/dir/sub/c"}, nil, nil) // rules above and below replace it
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/sub/c=…")
	left := []v1alpha1.Change{pending[0], pending[2]}
	if changes, _, _ := read(w); !slices.Equal(changes, left) {
		t.Errorf("%v, expected %v", changes, left)
	}
	expectChanges(t, func() *Watcher { w := b.new(); w.Watch([]string{"/etc"}, nil, nil); return w }(), "/etc/dir/a=… /etc/dir/sub/c=…")

	// Policies that are deleted and applied again immediately lose nothing.
	w.Watch(nil, nil, nil)
	if names(w) != "" {
		t.Errorf("%q without a rule", names(w))
	}
	w.Watch([]string{"/etc"}, nil, nil)
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/sub/c=…")
}

// TestRuleComesBack checks a rule that is removed and comes back later, also in another process. It reports what has
// changed in between and what was pending, but not what was applied through another rule.
func TestRuleComesBack(t *testing.T) {
	b := newBench(t)
	b.options.Units = &unitFiles{}
	for _, name := range []string{"etc/dir/a", "etc/dir/sub/b", "etc/dir/sub/c", "etc/one", "etc/systemd/system/a.service"} {
		b.write(name, "1")
	}
	w := b.new()
	named := func(w *Watcher, unit string, paths ...string) *Watcher {
		w.Watch(paths, strings.Fields(unit), nil)
		return w
	}
	refreshed(t, named(w, "a.service", "/etc/dir", "/etc/dir/sub", "/etc/one"))
	b.write("etc/one", "2")
	b.write("etc/dir/sub/b", "2")
	expectChanges(t, w, "/etc/dir/sub/b=… /etc/one=…")
	expectChanges(t, named(w, "", "/etc/dir"), "/etc/dir/sub/b=…")
	b.write("etc/systemd/system/a.service", "2")
	b.write("etc/dir/a", "2")
	expectChanges(t, w, "/etc/dir/a=… /etc/dir/sub/b=…")
	changes, _, _ := read(w)
	must(t, w.MarkApplied(changes))
	b.write("etc/dir/sub/c", "2")
	for name, w := range map[string]*Watcher{"this process": w, "the next process": b.new()} {
		if got := refreshed(t, named(w, "", "/etc/dir")); got != "/etc/dir/sub/c=…" {
			t.Errorf("%s: changes %q", name, got)
		}
		if got := refreshed(t, named(w, "a.service", "/etc/dir", "/etc/dir/sub", "/etc/one")); got != "/etc/dir/sub/c=… /etc/one=… a.service=…" {
			t.Errorf("%s: changes %q when rules name all again", name, got)
		}
	}
}

// TestUnnamedIsBounded checks that the state of the last hundred roots that a rule named in this boot is kept for any
// time.
func TestUnnamedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var paths []string
		for i := range 3 + maxUnnamed {
			paths = append(paths, fmt.Sprintf("/etc/%03d", i))
			b.write(paths[i], "1")
		}
		w := b.new()
		for _, path := range append(slices.Clone(paths), "") { // the rules are removed one after another
			time.Sleep(time.Hour)
			w.Watch([]string{"/etc/always", path}[:1+min(len(path), 1)], nil, nil)
			refreshed(t, w)
		}
		if w.digests["/etc/002"] != "" || len(w.digests) != maxUnnamed {
			t.Errorf("%d digests are kept, expected the digests of %d roots", len(w.digests), maxUnnamed)
		}
		time.Sleep(90 * 24 * time.Hour)
		for _, path := range paths {
			b.write(path, "2")
		}
		w.Watch(paths[:5], nil, nil)
		expectChanges(t, w, "/etc/003=… /etc/004=…")
		w = b.new() // the same in the next process
		w.Watch(append(slices.Clone(paths[:5]), paths[len(paths)-1]), nil, nil)
		expectChanges(t, w, "/etc/003=… /etc/004=… /etc/102=…")
	})
}

// TestUnnamedFilesAreBounded checks that all roots without a rule together have at most as many files as one root may
// have.
func TestUnnamedFilesAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	w := newBench(t).new()
	for i, name := range []string{"/old", "/large", "/new"} {
		w.roots[name] = &root{name: name, covered: true, unnamed: now.Add(time.Duration(i) * time.Second)}
		w.digests[name+"/a"] = fuzzKey + "-0123456789ab"
	}
	for i := range maxFiles - 1 {
		w.digests[fmt.Sprintf("/large/%d", i)] = fuzzKey + "-0123456789ab"
	}
	w.dropUnnamed()
	if len(w.roots) != 1 || w.roots["/new"] == nil || len(w.digests) != 1 {
		t.Errorf("%d roots with %d files are kept, expected /new with one", len(w.roots), len(w.digests))
	}
}

// TestUnnamedIsKeptUntilAllIsRead checks that nothing is dropped before every root with a rule has been read, because a
// root may need the state of others. What is dropped for one root stays if another one covers the same files.
func TestUnnamedIsKeptUntilAllIsRead(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	w := newBench(t).new()
	for i := range 2 + maxUnnamed {
		name := fmt.Sprintf("/%03d", i)
		w.roots[name] = &root{name: name, covered: true, unnamed: now.Add(time.Duration(i) * time.Second)}
		w.digests[name+"/a"] = fuzzKey + "-0123456789ab"
	}
	w.roots["/001/a"] = &root{name: "/001/a", covered: true, named: true}
	w.roots["/new"] = &root{name: "/new", named: true}
	w.roots["/never-read"] = &root{name: "/never-read"}
	w.dropUnnamed()
	if len(w.roots) != 5+maxUnnamed {
		t.Errorf("%d roots are kept before /new was read", len(w.roots))
	}
	w.roots["/new"].covered = true
	w.dropUnnamed()
	if len(w.roots) != 2+maxUnnamed || w.roots["/000"] != nil || w.roots["/001"] != nil || w.roots["/002"] == nil {
		t.Errorf("%d roots are kept", len(w.roots))
	}
	if w.digests["/000/a"] != "" || w.digests["/001/a"] == "" || w.digests["/002/a"] == "" {
		t.Errorf("%d digests are kept", len(w.digests))
	}
}

// TestTakesOver checks that a path that is named for the first time takes over the pending changes of a path that is no
// longer named, even if it cannot be read for a long time.
func TestTakesOver(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.write("etc/app/a", "1")
			w := b.new()
			w.Watch([]string{"/etc"}, nil, nil)
			refreshed(t, w)
			b.write("etc/app/a", "2")
			w.Watch(nil, nil, nil)
			refreshed(t, w)
			time.Sleep(90 * 24 * time.Hour)
			if restarted {
				w = b.new()
			}
			b.rename("etc/app", "etc/old")
			must(t, os.Symlink("app", b.at("etc/app")))
			w.Watch([]string{"/etc/app/a"}, nil, nil)
			expectProblem(t, w, "/etc/app/a", "too many levels", "")
			time.Sleep(24 * time.Hour)
			b.remove("etc/app")
			b.rename("etc/old", "etc/app")
			if got := refreshed(t, w); got != "/etc/app/a=…" {
				t.Errorf("restarted %t: changes %q", restarted, got)
			}
		})
	}
}

// TestNothingNamedYet checks that before the first Watch nothing is dropped and nothing is known.
func TestNothingNamedYet(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "1")
	refreshed(t, b.watching())
	b.write("etc/one", "2")
	w, stop := b.run()
	if err := w.Refresh(t.Context()); err == nil || complete(w) {
		t.Errorf("no error before the first Watch: %v", err)
	}
	stop()
	expectChanges(t, b.watching(), "/etc/one=…")
}

// fuzzKey is the ID of a key.
const fuzzKey = "01234567"

func FuzzBaseline(f *testing.F) {
	for _, text := range []string{
		"", "null", "{}", "[]", `{"version":2,"bootID":"a"}`, `{"version":2,"bootID":"a","digests":{"/a":null},"roots":{}}`,
		`{"version":2,"bootID":"a","digests":{"/a/b":"` + fuzzKey + `-0123456789ab","/a/c":"unknown","a.service//x":"unknown"},"roots":{"/a":"0001-01-01T00:00:00Z","a.service":"2026-11-21T12:00:00Z"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := parseBaseline(text, fuzzKey)
		if err != nil {
			return
		}
		if b.Version != 2 || b.BootID == "" {
			t.Errorf("%q is accepted as a baseline", text)
		}
		w := &Watcher{Options: Options{Log: slog.New(slog.DiscardHandler)}, key: &hostKey{}, digests: b.Digests, roots: b.rootsByName()}
		covered := 0
		for _, r := range w.roots {
			r.named, r.seen = true, map[string]entry{}
		}
		for name := range b.Digests {
			if w.rootOf(name, (*root).compared) != nil {
				covered++
			}
		}
		if changes := w.changes(); (covered > 0) != (len(changes) > 0) {
			t.Errorf("none of %d files in effect exists, but the changes are %v", covered, changes)
		}
		for _, c := range w.changes() {
			w.markApplied(c)
		}
		if changes := w.changes(); len(changes) > 0 {
			t.Errorf("all changes are applied, but there are %v", changes)
		}
		w.dropUnnamed()
	})
}
