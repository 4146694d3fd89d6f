package watched

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const boot = "0f2c4f5e-1111-4222-8333-444455556666"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls until cond returns true.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.After(time.Minute); !cond(); {
		select {
		case <-time.After(time.Millisecond):
		case <-end:
			t.Fatalf("timed out after a minute waiting for %s", what)
		}
	}
}

// journal collects what is logged.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), text)
}

// bench is a host's files with a state directory next to them.
type bench struct {
	t           *testing.T
	root, state string
	log         journal
	options     Options
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	b := &bench{t: t, root: filepath.Join(dir, "host"), state: filepath.Join(dir, "state")}
	must(t, os.MkdirAll(b.root, 0o755))
	b.options = Options{Root: b.root, StateDir: b.state, BootID: boot, Settle: 20 * time.Millisecond, Poll: time.Hour}
	return b
}

func (b *bench) at(name string) string { return filepath.Join(b.root, name) }

func (b *bench) write(name, text string) {
	b.t.Helper()
	must(b.t, os.MkdirAll(filepath.Dir(b.at(name)), 0o755))
	must(b.t, os.WriteFile(b.at(name), []byte(text), 0o644))
}

func (b *bench) rename(from, to string) { b.t.Helper(); must(b.t, os.Rename(b.at(from), b.at(to))) }
func (b *bench) remove(name string)     { b.t.Helper(); must(b.t, os.RemoveAll(b.at(name))) }

// new creates a Watcher that does not run.
func (b *bench) new() *Watcher {
	o := b.options
	o.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	return New(o)
}

// run creates a Watcher and runs it until stop is called or the test ends.
func (b *bench) run() (w *Watcher, stop func()) {
	w = b.new()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func() {})
	}()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	return w, stop
}

// names returns the changes as "/path=version", with the version shortened to its first four digits.
func names(w *Watcher) string {
	changes, _, _ := read(w)
	var s []string
	for _, c := range changes {
		version := c.Version
		if len(version) == short {
			version = "…"
		}
		s = append(s, c.Name+"="+version)
	}
	return strings.Join(s, " ")
}

// read returns the report in parts. complete means that it contains all changes.
func read(w *Watcher) (changes []v1alpha1.Change, problems []Problem, complete bool) {
	r := w.Report()
	return r.Changes, r.Problems, !r.Unread && len(r.Problems) == 0
}

func complete(w *Watcher) bool { _, _, complete := read(w); return complete }

// reports waits until the changes equal want and everything has been read.
func (b *bench) reports(w *Watcher, want string) {
	b.t.Helper()
	until(b.t, fmt.Sprintf("%q", want), func() bool { return names(w) == want && complete(w) })
}

func file(name, version string) v1alpha1.Change {
	return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: version}
}

// TestFiles checks that a path counts as a change while it differs from the state in effect.
func TestFiles(t *testing.T) {
	b := newBench(t)
	b.write("etc/one", "hello")
	b.write("etc/dir/a", "a")
	b.write("etc/dir/sub/b", "b")
	b.write("etc/real", "real")
	must(t, os.Symlink("real", b.at("etc/link")))
	w, _ := b.run()
	if changes, problems, complete := read(w); complete || len(changes)+len(problems) != 0 {
		t.Errorf("before the first Watch: %v, %v, %t", changes, problems, complete)
	}
	w.Watch([]string{"/etc/one", "/etc/dir", "/etc/late", "/etc/link"}, nil, nil)
	b.reports(w, "")

	b.write("etc/one", "other")
	b.reports(w, "/etc/one=…")
	b.write("etc/one", "hello")
	b.reports(w, "")
	must(t, os.Chmod(b.at("etc/one"), 0o600))
	b.reports(w, "/etc/one=…")
	must(t, os.Chmod(b.at("etc/one"), 0o644))
	b.reports(w, "")
	b.write("etc/one.new", "moved over it")
	b.rename("etc/one.new", "etc/one")
	b.reports(w, "/etc/one=…")
	b.remove("etc/one")
	b.reports(w, "/etc/one=absent")
	b.write("etc/one/now/a/directory", "x")
	b.reports(w, "/etc/one=absent /etc/one/now/a/directory=…")
	b.remove("etc/one")
	b.write("etc/one", "hello")
	b.reports(w, "")

	b.write("etc/late", "")
	b.reports(w, "/etc/late=…")
	b.remove("etc/late")
	b.reports(w, "")

	b.write("etc/dir/new/deep/c", "c")
	b.write("etc/dir/a", "aa")
	b.remove("etc/dir/sub")
	b.reports(w, "/etc/dir/a=… /etc/dir/new/deep/c=… /etc/dir/sub/b=absent")
	b.rename("etc/dir", "etc/away")
	b.reports(w, "/etc/dir/a=absent /etc/dir/sub/b=absent")
	b.write("etc/next/a", "a")
	b.write("etc/next/sub/b", "b")
	b.rename("etc/next", "etc/dir")
	b.reports(w, "")
	must(t, os.Symlink("nowhere", b.at("etc/dir/l")))
	b.reports(w, "/etc/dir/l=…")
	b.remove("etc/dir/l")
	b.reports(w, "")
	b.write("etc/away/a", "not watched")

	b.write("etc/real", "what the link leads to")
	b.reports(w, "/etc/link=…")
	b.write("etc/real", "real")
	b.reports(w, "")
	b.write("etc/twin", "real")
	must(t, os.Symlink("twin", b.at("etc/link.new")))
	b.rename("etc/link.new", "etc/link")
	b.reports(w, "/etc/link=…")

	if !b.log.has("watched for the first time") {
		t.Error("the log does not report what counts as in effect")
	}
}
