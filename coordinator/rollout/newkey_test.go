package rollout_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/watched"
)

// files is a host's /etc/x and its lockkeeper's state, over several processes and boots.
type files struct {
	t           *testing.T
	root, state string
	boot        string
	w           *watched.Watcher
}

func newFiles(t *testing.T) *files {
	dir := t.TempDir()
	f := &files{t: t, root: filepath.Join(dir, "host"), state: filepath.Join(dir, "state"), boot: "b1"}
	if err := os.MkdirAll(filepath.Join(f.root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("what is in effect")
	f.start(nil)
	return f
}

func (f *files) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.root, "etc/x"), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// start begins another process of lockkeeper; published is what its Node shows of this boot.
func (f *files) start(published []v1alpha1.Change) {
	f.t.Helper()
	f.w = watched.New(watched.Options{Root: f.root, StateDir: f.state, BootID: f.boot})
	f.w.Watch([]string{"/etc/x"}, nil, published)
	f.changes()
}

// emptied is start after /var was emptied.
func (f *files) emptied(published []v1alpha1.Change) {
	f.t.Helper()
	if err := os.RemoveAll(f.state); err != nil {
		f.t.Fatal(err)
	}
	f.start(published)
}

// changes are what the host says now.
func (f *files) changes() []v1alpha1.Change {
	f.t.Helper()
	if err := f.w.Refresh(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return f.w.Report().Changes
}

// expectVersion fails unless the changes are of /etc/x alone, under another key than old, and returns them.
func (f *files) expectAnotherKey(old v1alpha1.Change) []v1alpha1.Change {
	f.t.Helper()
	now := f.changes()
	if len(now) != 1 || now[0].Name != "/etc/x" || v1alpha1.DigestKey(now[0].Version) == "" || v1alpha1.DigestKey(now[0].Version) == v1alpha1.DigestKey(old.Version) {
		f.t.Fatalf("%v, expected /etc/x under another key than that of %v", now, old)
	}
	return now
}

// afterFailure is a node in idle whose last turn ended badly for the changes, an hour ago; one more may fail.
func afterFailure(t *testing.T, result v1alpha1.Result, reason v1alpha1.Reason, changes []v1alpha1.Change) rollout.Snapshot {
	s := situation(t, strings.Fields("idle wants=apply nodrain"))
	s.Policies[0].MaxFailed = 1
	s.Nodes[0].Last = &v1alpha1.Last{Turn: "t0", Result: result, Reason: reason, Changes: changes, End: atNoon.Add(-time.Hour)}
	return s
}

// says has the host publish changes, and returns what is decided of it: a reason, "granted", or "" for nothing.
func says(t *testing.T, s rollout.Snapshot, changes []v1alpha1.Change) string {
	t.Helper()
	n := &s.Nodes[0]
	if n.Host.Changes, n.Wants = changes, v1alpha1.WantsApply; len(changes) == 0 {
		n.Wants = v1alpha1.WantsNothing
	}
	v := verdictOf(t, s)
	if v.Move != nil && v.Move.NewTurn {
		return "granted"
	}
	return string(v.Held)
}

// A host that has lost its key publishes other versions of what it has published
// before. That is no change, makes no turn, and ends no failure.
func TestNewKeyClearsNoFailure(t *testing.T) {
	update := v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: "9"}
	with := func(changes []v1alpha1.Change) []v1alpha1.Change { return append(slices.Clone(changes), update) }
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, expected %q", what, got, want)
		}
	}
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonApplyFailed, v1alpha1.ReasonStillWanted, v1alpha1.ReasonUnhealthy} {
		f := newFiles(t)
		if len(f.changes()) != 0 {
			t.Fatalf("at first %v", f.changes())
		}
		f.write("new")
		first := f.changes()
		s := afterFailure(t, v1alpha1.ResultFailed, reason, first)
		both := afterFailure(t, v1alpha1.ResultFailed, reason, with(first))
		expect("the same change", says(t, s, first), "Failed")
		f.start(first)
		expect("after a restart", says(t, s, f.changes()), "Failed")

		f.emptied(first)
		second := f.expectAnotherKey(first[0])
		expect("/var was emptied", says(t, s, second), "Failed")
		expect("/var was emptied, with an update beside it", says(t, both, with(second)), "Failed")
		f.emptied(second)
		expect("once more", says(t, s, f.expectAnotherKey(second[0])), "Failed")

		// A host without a disk has another key in each boot. What it boots with is in effect.
		f.boot = "b2"
		f.emptied(nil)
		expect("another boot", says(t, s, f.changes()), "")
		if d := rollout.Decide(s); d.Failed != 1 {
			t.Errorf("%d nodes count as failed after another boot, expected 1", d.Failed)
		}
		f.write("written in the other boot")
		third := f.expectAnotherKey(first[0])
		expect("the file changes in that boot", says(t, s, third), "Failed")

		// A person, another file, or a content that is another one for certain.
		expect("another change as well", says(t, s, with(third)), "granted")
		s.Nodes[0].Retry = "t0"
		expect("retry", says(t, s, third), "granted")
		if reason != v1alpha1.ReasonStillWanted { // that one holds the file whatever is in it
			s = afterFailure(t, v1alpha1.ResultFailed, reason, third)
			f.write("mended")
			expect("another content under the same key", says(t, s, f.changes()), "granted")
		}
	}
}

// Nor does a new key end the delay of a node that was backed out, or make that young
// again, and it begins no turn where nothing is pending.
func TestNewKeyKeepsTheDelay(t *testing.T) {
	f := newFiles(t)
	f.write("new")
	first := f.changes()
	s := afterFailure(t, v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue, first)
	s.Nodes[0].Last.NotBefore, s.Nodes[0].Last.Attempts = new(atNoon.Add(5*time.Minute)), 3
	f.emptied(first)
	second := f.expectAnotherKey(first[0])
	if got := says(t, s, second); got != "Backoff" {
		t.Errorf("%q, expected Backoff", got)
	}
	s.Now = atNoon.Add(time.Hour)
	n := &s.Nodes[0]
	if got := says(t, s, second); got != "granted" {
		t.Fatalf("an hour later %q", got)
	}
	g := verdictOf(t, s).Move.Grant
	n.State, n.Turn, n.Grant = v1alpha1.StateUncordoning, g.Turn, g
	n.Grant.Turn, n.Turn = "t1", "t1"
	n.Grant.Result, n.Grant.Reason = v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue
	n.Ack = v1alpha1.Ack{Turn: "t1", BootID: n.BootID, State: n.State, Report: v1alpha1.ReportDone}
	if end := verdictOf(t, s).Move; end == nil || end.Last == nil || end.Last.Attempts != 4 {
		t.Errorf("%+v, expected the fourth attempt", end)
	}

	quiet := newFiles(t)
	quiet.emptied(nil)
	s = afterFailure(t, v1alpha1.ResultDone, "", first)
	if got := says(t, s, quiet.changes()); got != "" {
		t.Errorf("a new key and nothing else: %q", got)
	}
}
