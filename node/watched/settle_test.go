package watched

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// deaf is an inotify that reports nothing.
type deaf struct{ err error }

func (d deaf) Watch(string, string, []string, bool) (bool, error) { return false, d.err }

// grows is an inotify that reports a new directory this many times.
type grows struct{ times atomic.Int32 }

func (g *grows) Watch(string, string, []string, bool) (bool, error) { return g.times.Add(-1) >= 0, nil }

// TestNewDirectorySettles checks that a directory that is new since the last reading has to settle, because earlier
// changes in it were not reported.
func TestNewDirectorySettles(t *testing.T) {
	g := &grows{}
	inBubble(t, g, time.Hour, func(b *bench, w *Watcher, answers *atomic.Int32) {
		g.times.Store(2)
		b.write("etc/dir/new/a", "half")
		w.hint(key)
		later(5100 * time.Millisecond)
		b.expect(w, "")
		later(5 * time.Second)
		b.expect(w, "")
		later(5 * time.Second)
		b.expect(w, "/etc/dir/new/a=…")
	})
}

// inBubble runs a Watcher of /etc/dir in a synctest bubble. The test plays inotify.
func inBubble(t *testing.T, h hints, poll time.Duration, f func(b *bench, w *Watcher, answers *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.options.Settle, b.options.Poll = 0, poll
		b.write("etc/dir/a", "before")
		w := b.new()
		ctx, cancel := context.WithCancel(t.Context())
		var answers atomic.Int32
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.run(ctx, h, func() { answers.Add(1) })
		}()
		defer func() { cancel(); <-done }()
		w.Watch([]string{"/etc/dir"}, nil, nil)
		synctest.Wait()
		if !complete(w) || names(w) != "" {
			t.Fatalf("after the first reading: %q, complete %t", names(w), complete(w))
		}
		answers.Store(0)
		f(b, w, &answers)
	})
}

// later lets time pass.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) expect(w *Watcher, want string) {
	b.t.Helper()
	if got := names(w); got != want {
		b.t.Errorf("changes %q, expected %q", got, want)
	}
}

const key = "/etc/dir"

func TestSettles(t *testing.T) {
	inBubble(t, deaf{}, time.Hour, func(b *bench, w *Watcher, answers *atomic.Int32) {
		b.write("etc/dir/a", "after")
		w.hint(key)
		later(4900 * time.Millisecond)
		b.expect(w, "")
		later(200 * time.Millisecond)
		b.expect(w, "/etc/dir/a=…")
		if answers.Load() != 1 {
			b.t.Errorf("%d reports, expected 1", answers.Load())
		}

		// The report remains until the files have settled: half a minute of writes, and then the old content again.
		for i := range 10 {
			b.write("etc/dir/a", fmt.Sprint(i))
			b.write("etc/dir/b", fmt.Sprint(i))
			w.hint(key)
			later(3 * time.Second)
			b.expect(w, "/etc/dir/a=…")
		}
		b.remove("etc/dir/b")
		b.write("etc/dir/a", "before")
		w.hint(key)
		later(4900 * time.Millisecond)
		b.expect(w, "/etc/dir/a=…")
		later(200 * time.Millisecond)
		b.expect(w, "")
		if answers.Load() != 2 {
			b.t.Errorf("%d reports, expected 2", answers.Load())
		}

		// A change that is undone at once is never reported.
		b.write("etc/dir/a", "for a moment")
		w.hint(key)
		later(3 * time.Second)
		b.write("etc/dir/a", "before")
		w.hint(key)
		later(time.Minute)
		if answers.Load() != 2 {
			b.t.Errorf("%d reports, expected 2", answers.Load())
		}

		// Changes in another root do not delay this one.
		w.Watch([]string{"/etc/dir", "/etc/other"}, nil, nil)
		later(time.Second)
		b.write("etc/dir/a", "once more")
		w.hint(key)
		for range 5 {
			w.hint("/etc/other")
			later(1100 * time.Millisecond)
		}
		b.expect(w, "/etc/dir/a=…")
	})
}

// TestNeverSettles checks that a path that never settles is reported once a minute.
func TestNeverSettles(t *testing.T) {
	inBubble(t, deaf{}, time.Hour, func(b *bench, w *Watcher, answers *atomic.Int32) {
		for second := range 200 {
			b.write("etc/dir/a", fmt.Sprint(second))
			w.hint(key)
			later(time.Second)
			// The n-th answer comes a minute after the first unreported change.
			if n, most := int(answers.Load()), (second+2)/60; n > most {
				b.t.Fatalf("%d answers after %d s", n, second+1)
			}
		}
		if answers.Load() < 3 {
			b.t.Errorf("%d answers in 200 s", answers.Load())
		}
		later(time.Minute)
		last := answers.Load()
		later(10 * time.Minute)
		if answers.Load() != last || names(w) != "/etc/dir/a=…" {
			b.t.Errorf("%d answers without a change, %q", answers.Load()-last, names(w))
		}
	})
}

// hangs is an inotify that does not answer for one root, as on a network file system without its server.
type hangs struct{ answer chan struct{} } // nil: it answers

func (h *hangs) Watch(name, _ string, _ []string, _ bool) (bool, error) {
	if h.answer != nil && name == key {
		<-h.answer
	}
	return false, nil
}

// TestReadHangs checks that a read that hangs blocks neither a commit nor the end of the process for longer than its context
// lasts, and that it is a problem.
func TestReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h := newBench(t), &hangs{}
		b.options.Settle = 0
		b.write("etc/dir/a", "before")
		b.write("etc/other", "before")
		w := b.new()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.run(ctx, h, func() {})
		}()
		w.Watch([]string{key}, nil, nil)
		synctest.Wait()
		expect := func(want ...string) {
			t.Helper()
			var got []string
			for _, p := range w.Report().Problems {
				got = append(got, p.Error())
			}
			if r := w.Report(); r.Unread || !slices.Equal(got, want) {
				t.Fatalf("unread %t, problems %q, expected %q", r.Unread, got, want)
			}
		}
		expect()

		h.answer = make(chan struct{})
		refresh := func(want string) {
			t.Helper()
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			if err := w.Refresh(ctx); err == nil || err.Error() != "reading the watched files: "+want {
				t.Errorf("error %v, expected %q", err, want)
			}
		}
		refresh("context deadline exceeded")
		expect()
		later(time.Minute)
		expect("File /etc/dir: its read has not ended within 1m0s; does the server of its file system answer?")
		refresh("File /etc/dir: its read has not ended within 1m0s; does the server of its file system answer?")
		w.Watch([]string{key, "/etc/other"}, nil, nil)
		expect("File /etc/dir: its read has not ended within 1m0s; does the server of its file system answer?",
			"File /etc/other: not read yet, because the read of /etc/dir hangs")
		close(h.answer)
		later(time.Second)
		expect()
		b.write("etc/dir/a", "after")
		must(t, w.Refresh(t.Context()))
		b.expect(w, "/etc/dir/a=…")

		h.answer = make(chan struct{})
		w.hint(key)
		later(time.Minute)
		cancel()
		<-done
		close(h.answer)
	})
}

// TestRefreshDoesNotWait checks that a commit does not wait until the files have settled.
func TestRefreshDoesNotWait(t *testing.T) {
	for name, h := range map[string]hints{"inotify": deaf{}, "no inotify": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, h, time.Hour, func(b *bench, w *Watcher, answers *atomic.Int32) {
				b.write("etc/dir/a", "after")
				w.hint(key)
				must(b.t, w.Refresh(b.t.Context()))
				b.expect(w, "/etc/dir/a=…")
				b.write("etc/dir/a", "before") // without a hint
				must(b.t, w.Refresh(b.t.Context()))
				b.expect(w, "")
				later(30 * time.Minute)
				if answers.Load() != 2 {
					b.t.Errorf("%d answers, expected 2", answers.Load())
				}
			})
		})
	}
}

// meddler is a systemd that hints at a change during each reading.
type meddler struct {
	w       *Watcher
	meddles atomic.Bool
}

func (m *meddler) UnitFiles(context.Context, string) (fragments, dropIns []string, err error) {
	if m.meddles.Load() {
		m.w.hint("a.service")
	}
	return []string{"/etc/a.service"}, nil, nil
}

// TestChangesWhileRead checks that a path that changes during a reading has not settled.
func TestChangesWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		systemd := &meddler{}
		b.options.Settle, b.options.Units = 0, systemd
		w := b.new()
		systemd.w = w
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.run(ctx, deaf{}, func() {})
		}()
		defer func() { cancel(); <-done }()
		w.Watch(nil, []string{"a.service"}, nil)
		synctest.Wait()
		b.write("etc/a.service", "half")
		w.hint("a.service")
		systemd.meddles.Store(true)
		later(5100 * time.Millisecond)
		b.expect(w, "")
		systemd.meddles.Store(false)
		b.write("etc/a.service", "whole")
		later(5 * time.Second)
		b.expect(w, "a.service=…")

		// A reading for a commit may have missed the change, so the path is read again once it has settled.
		later(time.Minute)
		systemd.meddles.Store(true)
		must(t, w.Refresh(t.Context()))
		systemd.meddles.Store(false)
		before := w.Report().Changes
		b.write("etc/a.service", "missed")
		later(5100 * time.Millisecond)
		if now := w.Report().Changes; slices.Equal(now, before) {
			t.Errorf("a change during the reading is not read again: %v", now)
		}
	})
}

// TestWithoutInotify checks that polls find changes if the kernel has no watches left, and that two equal readings
// prove that the files have settled.
func TestWithoutInotify(t *testing.T) {
	full := fmt.Errorf("watching: %w", syscall.ENOSPC)
	for name, h := range map[string]hints{"no watch left": deaf{full}, "no instance": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, h, 30*time.Second, func(b *bench, w *Watcher, answers *atomic.Int32) {
				b.write("etc/dir/a", "after")
				later(4900 * time.Millisecond)
				b.expect(w, "")
				later(34 * time.Second)
				b.expect(w, "/etc/dir/a=…")
				// After the poll it is read every five seconds, and differs each time.
				for i := range 27 {
					b.write("etc/dir/b", fmt.Sprint(i))
					later(2 * time.Second)
					b.expect(w, "/etc/dir/a=…")
				}
				later(45 * time.Second)
				b.expect(w, "/etc/dir/a=… /etc/dir/b=…")
				if h != nil && !b.log.has("fs.inotify.max_user_watches") {
					b.t.Error("the log does not name the limit")
				}
			})
		})
	}
}

// TestMissed checks that the next poll finds a change that inotify did not report, for example a mount over the
// directory.
func TestMissed(t *testing.T) {
	inBubble(t, deaf{}, 30*time.Second, func(b *bench, w *Watcher, answers *atomic.Int32) {
		must(b.t, os.Chmod(b.at("etc/dir/a"), 0o600))
		later(33*time.Second + 5*time.Second)
		b.expect(w, "/etc/dir/a=…")
	})
}

// TestWaitSettled checks that WaitSettled, after an apply, waits until nothing changes any more and reads the files
// then.
func TestWaitSettled(t *testing.T) {
	inBubble(t, deaf{}, time.Hour, func(b *bench, w *Watcher, _ *atomic.Int32) {
		rest := func(changes ...v1alpha1.Change) (took time.Duration) {
			b.t.Helper()
			began := time.Now()
			must(b.t, w.WaitSettled(b.t.Context(), changes))
			return time.Since(began)
		}
		change := file("/etc/dir/a", "")
		if took := rest(change); took != defaultSettle {
			b.t.Errorf("WaitSettled took %v without a change", took)
		}
		b.expect(w, "")
		if took := rest(v1alpha1.Change{Source: v1alpha1.SourceOSUpdate}, file("/etc/other", "")); took != 0 {
			b.t.Errorf("WaitSettled took %v without a watched path", took)
		}

		// A restarted unit writes the file 4 s later, and once more.
		go func() {
			for _, text := range []string{"half", "whole"} {
				time.Sleep(4 * time.Second)
				b.write("etc/dir/a", text)
				w.hint(key)
			}
		}()
		if took := rest(change); took != 8*time.Second+defaultSettle {
			b.t.Errorf("WaitSettled took %v", took)
		}
		b.expect(w, "/etc/dir/a=…")
		changes, _, _ := read(w)
		must(b.t, w.MarkApplied(changes))

		// The wait for a path that never settles is limited, and the state at that time is reported.
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				b.write("etc/dir/a", fmt.Sprint(i))
				w.hint(key)
				time.Sleep(time.Second)
			}
		}()
		if took := rest(change); took < 50*time.Second || took > settleFactor*defaultSettle {
			b.t.Errorf("WaitSettled took %v", took)
		}
		b.expect(w, "/etc/dir/a=…")
		cancel()
		if err := w.WaitSettled(ctx, changes); err == nil {
			b.t.Error("no error after the cancel")
		}
		later(time.Minute)
	})
}
