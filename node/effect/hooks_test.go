package effect

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// unitsOf plays systemd: each run of the target takes a minute and ends with the next element of ends.
type unitsOf struct {
	wanted map[string][]string
	begun  []string // the targets that an earlier process has begun
	err    error

	mu      sync.Mutex
	took    time.Duration
	stop    error   // why the target does not stop after the run; nil: it stops
	ends    []error // nil: success
	runs    int
	stopped int
	asked   int // for begun targets
	silent  int // how often err answers that
}

func (u *unitsOf) Wanted(_ context.Context, target string) ([]string, error) {
	return u.wanted[target], u.err
}

func (u *unitsOf) RunTarget(ctx context.Context, target string, by time.Time, report func([]systemd.UnitState)) ([]systemd.UnitState, error) {
	if time.Now().After(by) {
		return nil, systemd.ErrTooLate
	}
	u.mu.Lock()
	var end error
	if u.runs++; len(u.ends) > 0 {
		end, u.ends = u.ends[0], u.ends[1:]
	}
	u.mu.Unlock()
	report([]systemd.UnitState{{Unit: "a.service", Running: true}, {Unit: "b.service"}})
	select {
	case <-time.After(u.took):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if errors.Is(end, systemd.ErrAbsent) {
		return nil, end
	}
	s := systemd.UnitState{Unit: "a.service"}
	if end != nil {
		s.Failed = end.Error()
	}
	return []systemd.UnitState{s, {Unit: "b.service"}}, u.stop
}

// Begun fails a few times first if err is set.
func (u *unitsOf) Begun(_ context.Context, targets []string) (begun []string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.asked++; u.err != nil && u.asked <= u.silent {
		return nil, u.err
	}
	for _, target := range u.begun {
		if slices.Contains(targets, target) {
			begun = append(begun, target)
		}
	}
	return begun, nil
}

// StopTarget stops nothing if its context has ended, as a call on the bus does.
func (u *unitsOf) StopTarget(ctx context.Context, _ string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u.mu.Lock()
	u.stopped++
	u.mu.Unlock()
	return nil
}

// readAge is the maximum age of a read, as in package node.
const readAge = 10 * time.Second

// soon returns the deadline for requests to systemd.
func soon() time.Time { return time.Now().Add(readAge) }

func newHooks(u *unitsOf) *Hooks {
	k := NewHooks(u, slog.New(slog.DiscardHandler), func() {})
	k.earlier = u.begun != nil
	return k
}

var (
	beforeDrain    = Stage{"t1", v1alpha1.StateBeforeDrain}
	beforeUncordon = Stage{"t1", v1alpha1.StateBeforeUncordon}
	tenMinutes     = HookLimit{Timeout: 10 * time.Minute, Abort: true}
)

// slowUnits plays a systemd that the first read asks while there are no hook units, and which answers it late.
type slowUnits struct {
	HookSystemd
	mu     sync.Mutex
	wanted []string
	late   bool
}

func (u *slowUnits) Wanted(context.Context, string) ([]string, error) {
	u.mu.Lock()
	answer, late := u.wanted, u.late
	u.late = false
	u.mu.Unlock()
	if late {
		time.Sleep(time.Second)
	}
	return answer, nil
}

// TestHookStagesOfTheLastRead checks that a read that began before another one does not replace its result.
func TestHookStagesOfTheLastRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &slowUnits{late: true}
		k := NewHookStages(u, func() {})
		var first sync.WaitGroup
		first.Go(func() { _ = k.Read(t.Context()) })
		synctest.Wait()
		u.mu.Lock()
		u.wanted = []string{"a.service"} // an admin has enabled a hook unit for the stages that come
		u.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = k.Read(ctx)
		if err := k.Read(t.Context()); err != nil {
			t.Error(err)
		}
		first.Wait()
		if stages, _ := k.Stages(); len(stages) != 3 {
			t.Errorf("stages %v, expected all that have hooks", stages)
		}
	})
}

func TestHooksAreSeen(t *testing.T) {
	u := &unitsOf{wanted: map[string][]string{
		"lockkeeper-before-uncordon.target": {"a.service"}, "lockkeeper-before-drain.target": {"b.service"}, "lockkeeper-draining.target": {"c.service"},
	}}
	k := NewHookStages(u, func() {})
	expect := func(want string, known bool) {
		t.Helper()
		stages, ok := k.Stages()
		if got := strings.Trim(strings.Join(strings.Fields(slogText(stages)), " "), "[]"); got != want || ok != known {
			t.Errorf("seen %q (%t), expected %q (%t)", got, ok, want, known)
		}
	}
	expect("", false)
	u.err = errors.New("no bus")
	if err := k.Read(t.Context()); err == nil {
		t.Error("Read succeeds without a bus")
	}
	expect("", false)
	u.err = nil
	must(t, k.Read(t.Context()))
	expect("before-drain before-uncordon", true)
	u.err = errors.New("no bus")
	_ = k.Read(t.Context())
	expect("before-drain before-uncordon", true) // the result stays
	u.err = systemd.ErrAbsent                    // the bus was restarted, and systemd is not back on it
	if err := k.Read(t.Context()); err == nil {
		t.Error("Read succeeds without systemd")
	}
	expect("before-drain before-uncordon", true)
	u.err = nil
	u.wanted = nil
	must(t, k.Read(t.Context()))
	expect("", true)
}

func slogText(v any) string { return slog.AnyValue(v).String() }

func TestHooksRun(t *testing.T) {
	bad := errors.New("exit-code, status 3")
	const text = "a.service failed (exit-code, status 3): journalctl -u a.service"
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		u := &unitsOf{took: time.Minute, ends: []error{nil, bad, systemd.ErrAbsent, nil}}
		k := newHooks(u)
		expect := func(s Stage, want step.Work) {
			t.Helper()
			synctest.Wait()
			if got := k.Work(s, ""); got != want {
				t.Errorf("%+v, expected %+v", got, want)
			}
		}
		expect(beforeDrain, step.Work{})
		k.Start(ctx, beforeDrain, "", tenMinutes, soon())
		expect(beforeDrain, step.Work{Running: true, Detail: "hook units: a.service"})
		k.Start(ctx, beforeDrain, "", tenMinutes, soon()) // starts no second run
		expect(beforeUncordon, step.Work{})               // the report of another stage
		time.Sleep(time.Minute)
		expect(beforeDrain, step.Work{Done: true})
		k.Leave(t.Context(), beforeDrain.State) // the result is kept
		expect(beforeDrain, step.Work{Done: true})

		k.Start(ctx, beforeUncordon, "", tenMinutes, soon())
		time.Sleep(time.Minute)
		expect(beforeUncordon, step.Work{Failed: text})
		expect(beforeDrain, step.Work{})
		time.Sleep(59 * time.Second)
		expect(beforeUncordon, step.Work{Failed: text})
		time.Sleep(time.Second)
		expect(beforeUncordon, step.Work{Failed: text, Due: true})
		// The bus fails during the run: the run is repeated.
		k.Start(ctx, beforeUncordon, "", tenMinutes, soon())
		time.Sleep(time.Minute)
		expect(beforeUncordon, step.Work{Running: true, Detail: "hook units, which systemd cannot run: no such service on the bus"})
		time.Sleep(retryPause)
		// The last request was based on a read a minute ago, so the next one needs another read.
		expect(beforeUncordon, step.Work{Running: true, Late: true, Detail: "hook units, which systemd cannot run: no such service on the bus"})
		time.Sleep(time.Hour / 12)
		if u.runs != 3 {
			t.Errorf("%d runs before another read, expected 3", u.runs)
		}
		k.Start(ctx, beforeUncordon, "", tenMinutes, soon())
		expect(beforeUncordon, step.Work{Running: true, Detail: "hook units: a.service"})
		time.Sleep(time.Minute)
		expect(beforeUncordon, step.Work{Done: true})
		if u.runs != 4 || u.stopped != 0 {
			t.Errorf("%d runs, %d stopped; expected 4 and 0", u.runs, u.stopped)
		}
		cancel()
		k.Wait()
	})
}

func TestHooksRestLongerEachTime(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: time.Minute, 2: 2 * time.Minute, 4: 8 * time.Minute, 5: 10 * time.Minute, 1000: 10 * time.Minute} {
		if got := backoff(failures); got != want {
			t.Errorf("pause after %d failures: %v, expected %v", failures, got, want)
		}
	}
}

// TestHooksRetry checks that an admin's retry lets failed units run at once, once.
func TestHooksRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("timeout")
		k := newHooks(&unitsOf{ends: []error{bad, bad}})
		k.Start(t.Context(), beforeUncordon, "", tenMinutes, soon())
		k.Wait()
		if k.Work(beforeUncordon, "").Due || k.Work(beforeUncordon, "t0").Due || !k.Work(beforeUncordon, "t1").Due {
			t.Errorf("wrong report with or without a retry of this turn: %+v", k.Work(beforeUncordon, "t1"))
		}
		k.Start(t.Context(), beforeUncordon, "t1", tenMinutes, soon())
		k.Wait()
		if w := k.Work(beforeUncordon, "t1"); w.Failed == "" || w.Due {
			t.Errorf("the same retry lets them run indefinitely: %+v", w)
		}
	})
}

func TestHooksTimeout(t *testing.T) {
	for _, c := range []struct {
		name    string
		s       Stage
		abort   bool
		failed  string
		stopped int
	}{
		{"abort", beforeDrain, true, "a.service still ran after 10m0s and was stopped: journalctl -u a.service", 1},
		{"wait", beforeDrain, false, "", 0},
		{"before-uncordon waits", beforeUncordon, true, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &unitsOf{took: 15 * time.Minute}
				k := newHooks(u)
				k.Start(t.Context(), c.s, "", HookLimit{Timeout: 10 * time.Minute, Abort: c.abort}, soon())
				time.Sleep(10*time.Minute - time.Second)
				if !k.Work(c.s, "").Running {
					t.Error("ended too early")
				}
				k.Wait()
				if w := k.Work(c.s, ""); w.Failed != c.failed || w.Done != (c.failed == "") || u.stopped != c.stopped {
					t.Errorf("%+v, stopped %d times; expected failed %q, stopped %d times", w, u.stopped, c.failed, c.stopped)
				}
			})
		})
	}
}

// TestHooksTimeoutOverReads checks that the time of the units counts from their start, also if the run waits for another read
// in between.
func TestHooksTimeoutOverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unitsOf{took: 4 * time.Minute, ends: []error{systemd.ErrAbsent}}
		k := newHooks(u)
		began := time.Now()
		k.Start(t.Context(), beforeDrain, "", tenMinutes, soon())
		k.Wait()
		if w := k.Work(beforeDrain, ""); !w.Late {
			t.Fatalf("%+v, expected to wait for another read", w)
		}
		u.took = 15 * time.Minute
		k.Start(t.Context(), beforeDrain, "", tenMinutes, soon())
		k.Wait()
		if w := k.Work(beforeDrain, ""); w.Failed == "" || time.Since(began) != 10*time.Minute || u.stopped != 1 {
			t.Errorf("after %v: %+v, stopped %d times", time.Since(began), w, u.stopped)
		}
	})
}

// TestHooksThatDoNotStop checks that the units do not run again if their target does not stop after their run.
func TestHooksThatDoNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unitsOf{stop: errors.New("not stopped within 2m0s")}
		k := newHooks(u)
		k.Start(t.Context(), beforeDrain, "", tenMinutes, soon())
		k.Wait()
		if w := k.Work(beforeDrain, ""); !w.Done || u.runs != 1 {
			t.Errorf("%+v, %d runs", w, u.runs)
		}
	})
}

// TestHooksAreStopped checks that the units of a stage that has ended are stopped, and that those of the next stage
// wait for that. The units of a process that ends are left to the next process.
func TestHooksAreStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		u := &unitsOf{took: time.Minute}
		k := newHooks(u)
		k.Start(ctx, beforeDrain, "", tenMinutes, soon())
		synctest.Wait()
		k.Leave(t.Context(), beforeDrain.State)
		k.Start(ctx, beforeUncordon, "", tenMinutes, soon()) // too early: the units are still stopping
		if w := k.Work(beforeUncordon, ""); w != (step.Work{}) {
			t.Errorf("runs while other units are being stopped: %+v", w)
		}
		synctest.Wait()
		if u.stopped != 1 || k.Work(beforeDrain, "") != (step.Work{}) {
			t.Errorf("stopped %d times, %+v", u.stopped, k.Work(beforeDrain, ""))
		}
		k.Start(ctx, beforeUncordon, "", tenMinutes, soon())
		synctest.Wait()
		if !k.Work(beforeUncordon, "").Running {
			t.Error("does not run after the stop")
		}
		cancel()
		k.Wait()
		if u.stopped != 1 || u.runs != 2 {
			t.Errorf("%d runs, stopped %d times; expected 2 and 1", u.runs, u.stopped)
		}
	})
}

func TestHookTexts(t *testing.T) {
	long := strings.Repeat("x", 250) + ".service"
	for _, c := range []struct {
		states []systemd.UnitState
		want   string
	}{
		{nil, ""},
		{[]systemd.UnitState{{Unit: "a.service"}, {Unit: "b.service", Skipped: true}}, ""},
		{[]systemd.UnitState{{Unit: "a.mount", Failed: "failed"}}, "a.mount failed: journalctl -u a.mount"},
		{[]systemd.UnitState{{Unit: "a.service", Failed: "timeout"}, {Unit: "b.service", Failed: "was not started"}},
			"a.service failed (timeout): journalctl -u a.service; b.service was not started: journalctl -u b.service"},
		{[]systemd.UnitState{{Unit: "a.service", Failed: "timeout"}, {Unit: long, Failed: "timeout"}}, "a.service failed (timeout): journalctl -u a.service; and 1 more"},
		{[]systemd.UnitState{{Unit: long, Failed: "timeout"}}, (long + " failed (timeout)")[:256]},
	} {
		if got := failures(c.states); got != c.want {
			t.Errorf("got %q, expected %q", got, c.want)
		}
	}
	if got, want := timedOut(nil, time.Minute, time.Minute), "systemd did not report the state of the hook units within 1m0s"; got != want {
		t.Errorf("got %q, expected %q", got, want)
	}
}

// TestHooksStartInTime checks that units that cannot start before their deadline do not start, however long the bus is
// down, and that a stage that ends in the meantime leaves nothing behind.
func TestHooksStartInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unitsOf{took: time.Minute}
		k := newHooks(u)
		k.Start(t.Context(), beforeDrain, "", tenMinutes, time.Now().Add(-time.Nanosecond))
		synctest.Wait()
		if got := k.Work(beforeDrain, ""); !got.Running || !got.Late || u.runs != 0 {
			t.Errorf("%+v, %d runs", got, u.runs)
		}
		k.Leave(t.Context(), beforeDrain.State)
		k.Wait()
		if got := k.Work(beforeDrain, ""); got != (step.Work{}) || u.runs != 0 || u.stopped != 1 {
			t.Errorf("left: %+v, %d runs, %d stopped", got, u.runs, u.stopped)
		}

		// The units of another stage do not run concurrently with those of an earlier process.
		k.Start(t.Context(), beforeDrain, "", tenMinutes, time.Now().Add(-time.Nanosecond))
		k.Wait()
		k.Start(t.Context(), beforeUncordon, "", tenMinutes, soon())
		k.Wait()
		if u.runs != 0 || u.stopped != 2 {
			t.Errorf("another stage: %d runs, %d stopped", u.runs, u.stopped)
		}
		k.Start(t.Context(), beforeUncordon, "", tenMinutes, soon())
		k.Wait()
		if got := k.Work(beforeUncordon, ""); !got.Done || u.runs != 1 {
			t.Errorf("another stage: %+v, %d runs", got, u.runs)
		}
	})
}

// TestHooksOfAnEarlierProcess checks that a process stops what an earlier one has begun, except in the stage that the Node is in, and that a
// turn does not end before that, unless systemd cannot be asked.
func TestHooksOfAnEarlierProcess(t *testing.T) {
	idle, uncordoning := v1alpha1.StateIdle, Stage{"t1", v1alpha1.StateUncordoning}
	for name, c := range map[string]struct {
		silent        int
		do            func(context.Context, *Hooks)
		stopped, runs int
		took          time.Duration
	}{
		"the stage is left": {0, func(ctx context.Context, k *Hooks) { k.Leave(ctx, idle); k.Leave(ctx, idle) }, 1, 0, 0},
		"it may continue":   {0, func(ctx context.Context, k *Hooks) { k.Leave(ctx, beforeDrain.State) }, 0, 0, 0},
		"it continues": {0, func(ctx context.Context, k *Hooks) {
			k.Start(ctx, beforeDrain, "", HookLimit{Timeout: time.Hour}, soon())
		}, 0, 0, 0},
		"another stage": {0, func(ctx context.Context, k *Hooks) {
			k.Start(ctx, beforeUncordon, "", HookLimit{Timeout: time.Hour}, soon())
		}, 1, 0, 0},
		"systemd does not answer":   {3, func(ctx context.Context, k *Hooks) { k.Leave(ctx, idle) }, 1, 0, 3 * retryPause},
		"systemd never answers":     {9999, func(ctx context.Context, k *Hooks) { k.Leave(ctx, idle) }, 0, 0, earlierBound},
		"nobody has looked for any": {0, func(context.Context, *Hooks) {}, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &unitsOf{begun: []string{hookTarget(beforeDrain.State)}, err: errors.New("no bus"), silent: c.silent}
				k, began := newHooks(u), time.Now()
				c.do(t.Context(), k)
				k.Wait()
				if took := time.Since(began); u.stopped != c.stopped || u.runs != c.runs || took != c.took {
					t.Errorf("%d stopped and %d run after %v, expected %d and %d after %v", u.stopped, u.runs, took, c.stopped, c.runs, c.took)
				}
				if w := k.Work(uncordoning, ""); w.Running != (u.asked == 0) {
					t.Errorf("asked %d times, and the turn's end waits: %t", u.asked, w.Running)
				}
			})
		})
	}
}
