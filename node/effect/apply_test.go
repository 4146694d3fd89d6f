package effect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/watched"
	"lockkeeper.dev/lockkeeper/systemd"
)

// fakeHost plays systemd for a host, over several processes of lockkeeper. It records the requests in order, and
// defines which answers are errors and which requests end the process.
type fakeHost struct {
	t    *testing.T
	dir  string
	asks []string
	// errs contains the answers to the next requests of a step; nil means success.
	errs map[string][]error
	left map[string]string
	// kills is how many times the execution of the step ends the process. Afterwards the step's unit has another run,
	// unless vain is set.
	kills map[string]int
	vain  bool

	own int // the run of lockkeeper's own unit
	// names contains the additional names of a unit. If errs["Names UNIT"] contains an error, systemd returns no
	// names.
	names map[string][]string
	runs  map[string]int

	reads   int // how often steps waited for another read
	applied []string
	end     context.CancelFunc // ends the current process
	on      func()             // an additional effect of executing a step; may be nil
}

const ownUnit = "lockkeeper.service"

// watchedFuncs is a fake of the watched files and units. nil functions succeed.
type watchedFuncs struct {
	applied func([]v1alpha1.Change) error
	settled func(context.Context, []v1alpha1.Change) error
}

var nothingWatched watchedFuncs

func (w watchedFuncs) MarkBegun([]v1alpha1.Change) error { return nil }

func (w watchedFuncs) MarkApplied(changes []v1alpha1.Change) error {
	if w.applied == nil {
		return nil
	}
	return w.applied(changes)
}

func (w watchedFuncs) WaitSettled(ctx context.Context, changes []v1alpha1.Change) error {
	if w.settled == nil {
		return nil
	}
	return w.settled(ctx, changes)
}

func (f *fakeHost) apply(boot string, w Watched) *Apply {
	return NewApply(f, w, f.dir, boot, slog.New(slog.DiscardHandler), func() {})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fakeHost) do(ctx context.Context, by time.Time, step string, unit string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if time.Now().After(by) {
		return "", systemd.ErrTooLate
	}
	f.asks = append(f.asks, step)
	if f.kills[step] > 0 {
		f.kills[step]--
		f.own++
		if !f.vain {
			f.runs[unit]++
		}
		f.end()
		<-ctx.Done()
		return "", ctx.Err()
	}
	if errs := f.errs[step]; len(errs) > 0 {
		f.errs[step] = errs[1:]
		return "", errs[0]
	}
	f.runs[unit]++
	if f.on != nil {
		f.on()
	}
	return f.left[step], nil
}

func (f *fakeHost) DaemonReload(ctx context.Context, by time.Time) error {
	_, err := f.do(ctx, by, "DaemonReload", "")
	return err
}

func (f *fakeHost) Reload(ctx context.Context, unit string, by time.Time) (string, error) {
	return f.do(ctx, by, "Reload "+unit, unit)
}

func (f *fakeHost) Restart(ctx context.Context, unit string, by time.Time) (string, error) {
	return f.do(ctx, by, "Restart "+unit, unit)
}

func (f *fakeHost) Own(context.Context) ([]string, string, error) {
	return []string{ownUnit, "keeper.service"}, fmt.Sprint("own", f.own), nil
}

func (f *fakeHost) Invocation(_ context.Context, unit string) (string, error) {
	return fmt.Sprint("run", f.runs[unit]), nil
}

func (f *fakeHost) ActiveState(context.Context, string) (string, bool, error) {
	return "active", true, nil
}

func (f *fakeHost) Names(_ context.Context, unit string) ([]string, error) {
	if errs := f.errs["Names "+unit]; len(errs) > 0 {
		f.errs["Names "+unit] = errs[1:]
		return nil, errs[0]
	}
	return append([]string{unit}, f.names[unit]...), nil
}

func newFakeHost(t *testing.T) *fakeHost {
	return &fakeHost{t: t, dir: t.TempDir(), errs: map[string][]error{}, left: map[string]string{}, kills: map[string]int{}, runs: map[string]int{}}
}

var inApplying = Stage{"t1", v1alpha1.StateApplying}

func actions(steps string) []v1alpha1.Action {
	var all []v1alpha1.Action
	for step := range strings.SplitSeq(steps, ", ") {
		kind, unit, _ := strings.Cut(step, " ")
		all = append(all, v1alpha1.Action{Type: v1alpha1.ActionType(kind), Unit: unit})
	}
	return all
}

func fileChange(name, version string) v1alpha1.Change {
	return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: version}
}

// process is one life of lockkeeper in applying: it resumes, or executes the steps, until they have ended or the
// process is ended. It returns its last report.
func (f *fakeHost) process(boot string, e ApplyPlan) step.Work {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	f.end = cancel
	a := f.apply(boot, watchedFuncs{applied: func(changes []v1alpha1.Change) error {
		for _, c := range changes {
			f.applied = append(f.applied, c.String())
		}
		return errors.New("no space left on the device") // is logged, but is not a failure of the units
	}})
	if !a.Resume(ctx, inApplying) {
		a.Start(ctx, inApplying, e, soon())
		a.Start(ctx, inApplying, e, soon()) // starts no second run
		a.Wait()
		for ctx.Err() == nil && a.Work(inApplying) == (step.Work{}) { // the next step waits for another read
			f.reads++
			a.Start(ctx, inApplying, e, soon())
			a.Wait()
		}
		a.Start(ctx, inApplying, e, soon()) // starts no further run
	}
	a.Wait()
	return a.Work(inApplying)
}

func (f *fakeHost) expect(what string, got, want step.Work, asks, applied string) {
	f.t.Helper()
	if got != want || strings.Join(f.asks, ", ") != asks || strings.Join(f.applied, ", ") != applied {
		f.t.Errorf("%s: %+v, requests %q, applied %q\nexpected %+v, %q, %q", what, got, f.asks, f.applied, want, asks, applied)
	}
	f.asks, f.applied = nil, nil
}

var done = step.Work{Done: true}

// dead reports whether the report is from a process that did not finish.
func dead(w step.Work) bool { return w.Running && !w.Done && w.Failed == "" }

func TestApply(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Reload a.service, Restart b.service, Restart c.service")}
	const all = "DaemonReload, Reload a.service, Restart b.service, Restart c.service"
	f := newFakeHost(t)
	f.left["Restart b.service"] = "inactive"
	f.expect("well", f.process("b1", e), done, all, "File /etc/a@1")
	// The process ended before it could report done: nothing starts again.
	f.expect("the next process", f.process("b1", e), done, "", "File /etc/a@1")
	f.expect("in another boot", f.process("b2", e), done, all, "File /etc/a@1")

	f = newFakeHost(t)
	f.errs["Restart b.service"] = []error{fmt.Errorf("managing: %w", &systemd.JobError{Text: "restart of b.service failed (exit-code, status 3): journalctl -u b.service"})}
	want := step.Work{Failed: "managing: restart of b.service failed (exit-code, status 3): journalctl -u b.service"}
	f.expect("a unit fails", f.process("b1", e), want, "DaemonReload, Reload a.service, Restart b.service", "")

	f = newFakeHost(t)
	f.expect("a drain alone", f.process("b1", ApplyPlan{Changes: e.Changes}), done, "", "File /etc/a@1")
}

// TestApplyRefusesUnits checks that a plan that names a forbidden unit, by any of the unit's names on this host, does
// nothing and fails.
func TestApplyRefusesUnits(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Restart b.service, Restart maintenance.target")}
	f := newFakeHost(t)
	f.names = map[string][]string{"maintenance.target": {"reboot.target", "runlevel6.target"}}
	const text = "Restart maintenance.target is refused: on this host the unit is reboot.target, which shuts down or reboots the host without a drain"
	f.expect("an alias", f.process("b1", e), step.Work{Failed: text}, "", "")
	f.expect("the next process", f.process("b1", e), step.Work{Failed: text}, "", "")

	// The DaemonReload of the plan loads the alias.
	f = newFakeHost(t)
	f.on = func() { f.names = map[string][]string{"maintenance.target": {"reboot.target"}} }
	f.expect("an alias that comes", f.process("b1", e), step.Work{Failed: text}, "DaemonReload, Restart b.service", "")

	// The policy is older than the list of forbidden units.
	f = newFakeHost(t)
	want := step.Work{Failed: "Restart rescue@x.service is refused: on this host the unit is rescue@x.service, which takes the host to a rescue, update, installation or initrd state"}
	f.expect("no alias", f.process("b1", ApplyPlan{Steps: actions("Restart rescue@x.service")}), want, "", "")
	f.expect("reload of the bus", f.process("b2", ApplyPlan{Steps: actions("Reload dbus.service")}), done, "Reload dbus.service", "")

	// If systemd cannot return the names, nothing is touched until it can.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.names = map[string][]string{"maintenance.target": {"reboot.target"}}
		f.errs["Names b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 3)
		began := time.Now()
		f.expect("no answer", f.process("b1", e), step.Work{Failed: text}, "", "")
		if took := time.Since(began); took != 3*retryPause {
			t.Errorf("the plan took %v", took)
		}
	})
}

// TestApplyWaitsForTheBus checks that the plan waits for a bus that is down, and that the host reads again before each
// request that is more than 10 s later.
func TestApplyWaitsForTheBus(t *testing.T) {
	e := ApplyPlan{Steps: actions("Restart b.service")}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.errs["Restart b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 3)
		began := time.Now()
		f.expect("the bus comes back", f.process("b1", e), done, "Restart b.service, Restart b.service, Restart b.service, Restart b.service", "")
		if took := time.Since(began); took != 3*retryPause {
			t.Errorf("the plan took %v", took)
		}
		f = newFakeHost(t)
		f.errs["Restart b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 1000)
		began = time.Now()
		w := f.process("b1", e)
		took := time.Since(began)
		if w != done || f.reads < int((took-readAge)/readAge) || took < 1000*retryPause/2 {
			t.Errorf("%+v after %v and %d reads", w, took, f.reads)
		}
	})
	// The host begins again at once if the run ends while its reads are valid.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.errs["Restart b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 1000)
		a, by := f.apply("b1", nothingWatched), time.Now().Add(retryPause/2)
		a.Start(t.Context(), inApplying, e, by)
		a.Wait()
		if w := a.Work(inApplying); w != (step.Work{}) || time.Now().Before(by) {
			t.Errorf("%+v, %v before its reads are too old", w, time.Until(by))
		}
	})
}

// TestApplyReadsBeforeEachStep checks that after a long step the next step waits for another read, and so does each
// step of a process that resumes the plan of its predecessor, so that a stop, a pause or another leader in between
// counts.
func TestApplyReadsBeforeEachStep(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Reload a.service, Restart b.service, Restart c.service")}
	const all = "DaemonReload, Reload a.service, Restart b.service, Restart c.service"
	synctest.Test(t, func(t *testing.T) {
		for took, reads := range map[time.Duration]int{3 * time.Second: 0, 4 * time.Second: 1, readAge: 3, time.Minute: 3} {
			f := newFakeHost(t)
			f.on = func() { time.Sleep(took + time.Nanosecond) }
			f.expect(took.String(), f.process("b1", e), done, all, "File /etc/a@1")
			if f.reads != reads {
				t.Errorf("steps of %v: %d reads between them, expected %d", took, f.reads, reads)
			}
		}
		f := newFakeHost(t)
		a := f.apply("b1", nothingWatched)
		a.Start(t.Context(), inApplying, e, time.Now().Add(-time.Nanosecond))
		a.Wait()
		f.expect("past the deadline of the first step", a.Work(inApplying), step.Work{}, "", "")
	})
}

// TestApplyRestartsItself checks that the plan is finished, without a repeated step, whatever ends lockkeeper in
// between.
func TestApplyRestartsItself(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Restart keeper.service, Restart b.service")}
	f := newFakeHost(t)
	f.kills["Restart keeper.service"] = 1
	if w := f.process("b1", e); !dead(w) {
		t.Errorf("the process survived its own restart: %+v", w)
	}
	f.expect("itself last", done, done, "DaemonReload, Restart b.service, Restart keeper.service", "")
	f.expect("after that", f.process("b1", e), done, "", "File /etc/a@1")

	// A restart of this unit also ends lockkeeper.
	f = newFakeHost(t)
	f.kills["Restart b.service"] = 1
	f.process("b1", e)
	f.kills["Restart keeper.service"] = 1
	f.process("b1", e)
	f.expect("taken along", f.process("b1", e), done, "DaemonReload, Restart b.service, Restart keeper.service", "File /etc/a@1")

	// The process is killed, so it is unknown whether the current step was done: the step is repeated.
	f = newFakeHost(t)
	f.vain = true
	f.kills["Restart b.service"] = 2
	f.process("b1", e)
	f.process("b1", e)
	f.kills["Restart keeper.service"] = 1
	f.process("b1", e)
	f.expect("killed twice", f.process("b1", e), done, "DaemonReload, Restart b.service, Restart b.service, Restart b.service, Restart keeper.service", "File /etc/a@1")

	// The repetition is limited.
	f = newFakeHost(t)
	f.vain = true
	f.kills["Restart b.service"] = 100
	for range maxTries {
		f.process("b1", e)
	}
	want := step.Work{Failed: "Restart b.service: lockkeeper ended 3 times during this step: journalctl -u lockkeeper"}
	f.expect("killed each time", f.process("b1", e), want, "DaemonReload, Restart b.service, Restart b.service, Restart b.service", "")
}

// TestApplyStopped checks that a process that is told to stop during a step begins no other step, and that the next process
// carries out the rest of the plan.
func TestApplyStopped(t *testing.T) {
	f := newFakeHost(t)
	e := ApplyPlan{Steps: actions("Restart b.service, Restart c.service")}
	f.on = func() { f.on = nil; f.end() }
	if w := f.process("b1", e); !dead(w) {
		t.Errorf("a process that was told to stop reports %+v", w)
	}
	f.expect("told to stop", step.Work{}, step.Work{}, "Restart b.service", "")
	f.expect("after that", f.process("b1", e), done, "Restart c.service", "")
}

// TestApplyCalledOff has a user edit the turn's records and the coordinator repair them, so the run that was canceled
// starts again. It follows a run that waited for another read, and repeats no finished step.
func TestApplyCalledOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		a := f.apply("b1", nothingWatched)
		e := ApplyPlan{Steps: actions("Restart b.service, Restart c.service, Restart d.service")}
		f.on = func() { time.Sleep(readAge + time.Second); f.on = nil }
		a.Start(t.Context(), inApplying, e, soon())
		a.Wait()
		f.expect("the second step waits", a.Work(inApplying), step.Work{}, "Restart b.service", "")
		f.kills["Restart d.service"], f.vain = 1, true
		f.end = func() { a.Leave(Stage{"t2", v1alpha1.StateApplying}) }
		a.Start(t.Context(), inApplying, e, soon())
		a.Wait()
		a.Leave(inApplying)
		f.expect("the third step is canceled", a.Work(inApplying), step.Work{}, "Restart c.service, Restart d.service", "")
		a.Start(t.Context(), inApplying, e, soon())
		a.Wait()
		f.expect("the run starts again", a.Work(inApplying), done, "Restart d.service", "")
	})
}

// TestApplyChangesUnderWay changes the file while lockkeeper restarts itself for it, as if the other unit wrote it. The
// plan that has started is finished, and its changes are in effect; the newer content stays a change without an action.
// Other steps, from newer rules, start a new plan.
func TestApplyChangesUnderWay(t *testing.T) {
	steps := actions("Restart b.service, Restart lockkeeper.service")
	older, newer := []v1alpha1.Change{fileChange("/etc/a", "1")}, []v1alpha1.Change{fileChange("/etc/a", "2")}
	f := newFakeHost(t)
	f.kills["Restart lockkeeper.service"] = 2
	f.process("b1", ApplyPlan{Changes: older, Steps: steps})
	f.expect("newer", f.process("b1", ApplyPlan{Changes: newer, Steps: steps}), done, "Restart b.service, Restart lockkeeper.service", "File /etc/a@1")

	f = newFakeHost(t)
	f.kills["Restart lockkeeper.service"] = 1
	f.process("b1", ApplyPlan{Changes: older, Steps: steps})
	f.expect("other steps", f.process("b1", ApplyPlan{Changes: newer, Steps: actions("Reload b.service")}), done, "Restart b.service, Restart lockkeeper.service, Reload b.service", "File /etc/a@2")
}

// applies runs a turn for the granted changes. before lists all changes before the turn, and after those after it. It
// returns the change that came again.
func (f *fakeHost) applies(turnID string, granted, before, after []v1alpha1.Change) string {
	f.t.Helper()
	var all []string
	a := f.apply("b1", watchedFuncs{
		applied: func([]v1alpha1.Change) error { all = append(all, "applied"); return nil },
		settled: func(context.Context, []v1alpha1.Change) error { all = append(all, "settled"); return nil }})
	s := Stage{turnID, v1alpha1.StateApplying}
	a.Start(f.t.Context(), s, ApplyPlan{Changes: granted, Before: before, Steps: actions("Restart b.service")}, soon())
	a.Wait()
	if w := a.Work(s); w != done || strings.Join(all, ", ") != "applied, settled" {
		f.t.Errorf("%s: %+v, %v", turnID, w, all)
	}
	first := a.ChangedAgain(s, after)
	if again := a.ChangedAgain(s, after); again != first {
		f.t.Errorf("%s: first %q, then %q", turnID, first, again)
	}
	return first
}

// TestApplyOutlived checks that a change that comes again during its turn is a failure, and that new changes of each
// turn cause only a few turns.
func TestApplyOutlived(t *testing.T) {
	list := func(changes ...v1alpha1.Change) []v1alpha1.Change { return changes }
	a1, a2, os := fileChange("/etc/a", "1"), fileChange("/etc/a", "2"), v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}
	other, unit := fileChange("/etc/x", "1"), v1alpha1.Change{Source: v1alpha1.SourceUnit, Name: "b.service", Version: "1"}
	f := newFakeHost(t)
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, expected %q", what, got, want)
		}
	}
	const again = " changed again while it was applied; does a unit of the plan write it?"
	expect("gone", f.applies("t1", list(a1), list(a1), nil), "")
	expect("written again", f.applies("t2", list(a1), list(a1), list(a2)), "File /etc/a@2"+again)
	expect("a unit", f.applies("t3", list(unit), list(unit), list(v1alpha1.Change{Source: v1alpha1.SourceUnit, Name: "b.service", Version: "2"})), "Unit b.service@2"+again)
	expect("an update came", f.applies("t4", list(a1), list(a1), list(os)), "")
	expect("another was there before", f.applies("t5", list(a1), list(a1, other), list(other)), "")

	// One file changes after another.
	for _, start := range []string{"u", "v"} {
		f := newFakeHost(t)
		names := list(fileChange("/etc/0", "1"), fileChange("/etc/1", "1"), fileChange("/etc/2", "1"), fileChange("/etc/3", "1"))
		turn := func(i int) string {
			return f.applies(fmt.Sprint(start, i), names[i:i+1], names[i:i+1], names[i+1:i+2])
		}
		expect("the first", turn(0), "")
		expect("the second", turn(1), "")
		if start == "v" {
			// A turn for another change interrupts the chain.
			expect("in between", f.applies("between", list(a1), list(a1, names[2]), list(names[2])), "")
			expect("the first again", turn(2), "")
			continue
		}
		expect("the third", turn(2), "File /etc/3@1 changed while the plan was carried out, as in the 2 turns before; does a unit of the plan write it?")
	}
}

// TestApplyWritesItsFile uses a unit that, when it is restarted, writes the file that it is restarted for. The turn
// must fail, and the new content must be a change for the next turn.
func TestApplyWritesItsFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "etc/a")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("as it was"), 0o644))
	w := watched.New(watched.Options{Root: dir, StateDir: filepath.Join(dir, "state"), BootID: "b1", Settle: 10 * time.Millisecond})
	w.Watch([]string{"/etc/a"}, nil, nil)
	must(t, w.Refresh(t.Context()))
	f := newFakeHost(t)
	a := f.apply("b1", w)
	written := 0
	turnEnds := func(id string) (there []v1alpha1.Change, outlived string) {
		t.Helper()
		must(t, w.Refresh(t.Context()))
		pending := w.Report().Changes
		s := Stage{id, v1alpha1.StateApplying}
		a.Start(t.Context(), s, ApplyPlan{Changes: pending, Before: pending, Steps: actions("Restart a.service")}, soon())
		a.Wait()
		if a.Work(s) != done || len(pending) != 1 {
			t.Fatalf("%s, for %v: %+v", id, pending, a.Work(s))
		}
		there = w.Report().Changes
		return there, a.ChangedAgain(s, there)
	}
	must(t, os.WriteFile(path, []byte("an edit"), 0o644))
	f.on = func() { written++; must(t, os.WriteFile(path, fmt.Append(nil, "written ", written), 0o644)) }
	for _, id := range []string{"t1", "t2"} { // the second turn follows a retry
		if there, outlived := turnEnds(id); len(there) != 1 || !strings.HasPrefix(outlived, there[0].String()+" changed again") {
			t.Errorf("%s: %q, changes %v", id, outlived, there)
		}
	}
	f.on = nil
	if there, outlived := turnEnds("t3"); len(there) != 0 || outlived != "" || written != 2 {
		t.Errorf("the unit no longer writes: %q, changes %v", outlived, there)
	}
}

// TestApplyChangedBack checks that a file that is changed back after a unit was restarted for it is still a change, whether the
// plan failed at a later unit or was cut off: the unit runs with the content that the file no longer has.
func TestApplyChangedBack(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		for _, there := range []bool{true, false} { // before the edit
			dir := t.TempDir()
			path := filepath.Join(dir, "etc/a")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			back := func() {
				if !there {
					_ = os.Remove(path)
					return
				}
				must(t, os.WriteFile(path, []byte("as it was"), 0o644))
			}
			back()
			watch := func() *watched.Watcher {
				w := watched.New(watched.Options{Root: dir, StateDir: filepath.Join(dir, "state"), BootID: "b1", Settle: 10 * time.Millisecond})
				w.Watch([]string{"/etc/a"}, nil, nil)
				must(t, w.Refresh(t.Context()))
				return w
			}
			w := watch()
			must(t, os.WriteFile(path, []byte("an edit"), 0o644))
			must(t, w.Refresh(t.Context()))
			edit := w.Report().Changes

			f := newFakeHost(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f.end = cancel
			if cutOff {
				f.kills["Restart c.service"] = 1
			} else {
				f.errs["Restart c.service"] = []error{&systemd.JobError{Text: "failed"}}
			}
			a := f.apply("b1", w)
			a.Start(ctx, inApplying, ApplyPlan{Changes: edit, Before: edit, Steps: actions("Restart b.service, Restart c.service")}, soon())
			a.Wait()
			back()
			w = watch() // another process
			pending := w.Report().Changes
			if len(pending) != 1 || pending[0].Name != "/etc/a" || pending[0].Same(edit[0]) {
				t.Errorf("cut off: %t, there before: %t: b.service runs with the edit, and the changes are %v", cutOff, there, pending)
				continue
			}

			next := Stage{"t2", v1alpha1.StateApplying}
			a = f.apply("b1", w)
			a.Start(t.Context(), next, ApplyPlan{Changes: pending, Before: pending, Steps: actions("Restart b.service, Restart c.service")}, soon())
			a.Wait()
			if left := w.Report().Changes; a.Work(next) != done || len(left) != 0 {
				t.Errorf("cut off: %t, there before: %t: %+v, and the changes are %v", cutOff, there, a.Work(next), left)
			}
		}
	}
}

// TestApplyUnread checks that neither done nor a new change is reported until the applied paths can be read, also if
// they become unreadable after the apply.
func TestApplyUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		var read atomic.Bool
		a := f.apply("b1", watchedFuncs{settled: func(context.Context, []v1alpha1.Change) error {
			if read.Load() {
				return nil
			}
			return errors.New("input/output error")
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a.Start(ctx, inApplying, ApplyPlan{Steps: actions("Restart b.service")}, soon())
		time.Sleep(time.Hour)
		synctest.Wait()
		if w, want := a.Work(inApplying), (step.Work{Running: true, Detail: Settling + ", which cannot be read: input/output error"}); w != want {
			t.Errorf("%+v, expected %+v", w, want)
		}
		read.Store(true)
		time.Sleep(retryPause)
		synctest.Wait()
		if w := a.Work(inApplying); w != done {
			t.Errorf("readable again: %+v", w)
		}
	})
}

// TestApplyFailedRests checks that a failed turn waits until the files have settled before it reports changes.
func TestApplyFailedRests(t *testing.T) {
	f := newFakeHost(t)
	f.errs["Restart b.service"] = []error{&systemd.JobError{Text: "failed"}}
	rested := false
	a := f.apply("b1", watchedFuncs{settled: func(context.Context, []v1alpha1.Change) error { rested = true; return nil }})
	a.Start(t.Context(), inApplying, ApplyPlan{Steps: actions("Restart b.service")}, soon())
	a.Wait()
	if w := a.Work(inApplying); w != (step.Work{Failed: "failed"}) || !rested || a.ChangedAgain(inApplying, []v1alpha1.Change{fileChange("/etc/a", "1")}) != "" {
		t.Errorf("%+v, rested %t", w, rested)
	}
}

func TestApplyRecord(t *testing.T) {
	e := ApplyPlan{Steps: actions("Restart b.service, Restart lockkeeper.service")}
	const all = "Restart b.service, Restart lockkeeper.service"
	for name, spoil := range map[string]func(path string) error{
		"lost":    os.Remove,
		"garbled": func(path string) error { return os.WriteFile(path, []byte("{\"turn\":"), 0o600) },
		"edited": func(path string) error {
			return os.WriteFile(path, []byte(`{"turn":"t1","bootID":"b1","done":-3,"steps":[{"type":"Restart","unit":"b.service"},{"type":"Restart","unit":"lockkeeper.service"}]}`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost(t)
			f.kills["Restart lockkeeper.service"] = 1
			f.process("b1", e)
			must(t, spoil(filepath.Join(f.dir, recordFile)))
			f.kills["Restart lockkeeper.service"] = 1
			f.process("b1", e)
			f.expect("done once more", f.process("b1", e), done, all+", "+all, "")
			left, err := os.ReadDir(f.dir)
			if must(t, err); len(left) != 1 {
				t.Errorf("left in the runtime directory: %v", left)
			}
		})
	}
	// Another plan in the same turn starts from its first step, and gets no more attempts for that.
	was := record{Turn: "t1", BootID: "b1", ApplyPlan: e, Done: 1, Tries: 2, Streak: 1}
	other := ApplyPlan{Steps: actions("Restart c.service")}
	if next := was.begin(inApplying, "b1", other); next.Done != 0 || next.Tries != 2 || next.Streak != 1 || len(next.Steps) != 1 {
		t.Errorf("another plan: %+v", next)
	}
	if next := was.begin(inApplying, "b1", e); next.Done != 1 {
		t.Errorf("the same plan: %+v", next)
	}
	// Without a record, lockkeeper would restart itself indefinitely.
	f := newFakeHost(t)
	f.dir = filepath.Join(f.dir, "gone")
	w := f.process("b1", e)
	if !strings.HasPrefix(w.Failed, "lockkeeper does not restart itself") || len(w.Failed) > maxText || strings.Join(f.asks, ", ") != "Restart b.service" {
		t.Errorf("%+v, requests %q", w, f.asks)
	}
}

// TestApplyStageLeft checks that the steps of a stage that has ended do not start.
func TestApplyStageLeft(t *testing.T) {
	f := newFakeHost(t)
	f.end = func() {}
	a := f.apply("b1", watchedFuncs{applied: func([]v1alpha1.Change) error {
		t.Error("applied")
		return nil
	}})
	f.kills["Restart b.service"] = 1 // the step waits for its context
	a.Start(t.Context(), inApplying, ApplyPlan{Steps: actions("Restart b.service, Restart c.service")}, soon())
	a.Leave(inApplying)
	if w := a.Work(inApplying); !w.Running {
		t.Errorf("%+v", w)
	}
	next := Stage{"t1", v1alpha1.StateBeforeUncordon}
	a.Leave(next)
	a.Wait()
	if w := a.Work(next); w != (step.Work{}) || slices.Contains(f.asks, "Restart c.service") {
		t.Errorf("%+v, requests %q", w, f.asks)
	}
}

// TestPlanApply checks that a turn applies what the host has published for it. Later changes are for the next turn.
func TestPlanApply(t *testing.T) {
	plan := &v1alpha1.Host{
		Changes: []v1alpha1.Change{fileChange("/etc/a", "1"), fileChange("/etc/b", "1")},
		Steps:   actions("Drain, DaemonReload, Reload b.service, Restart a.service"),
	}
	for _, c := range []struct {
		name    string
		present []v1alpha1.Change
		changes string
	}{
		{"as published", []v1alpha1.Change{fileChange("/etc/b", "1"), fileChange("/etc/a", "1")}, "[File /etc/b@1 File /etc/a@1]"},
		{"newer by now", []v1alpha1.Change{fileChange("/etc/a", "2")}, "[File /etc/a@2]"},
		{"another came", []v1alpha1.Change{fileChange("/etc/a", "1"), fileChange("/etc/r", "1")}, "[File /etc/a@1]"},
	} {
		e := PlanApply(plan, c.present)
		if fmt.Sprint(e.Changes) != c.changes || fmt.Sprint(e.Steps) != "[DaemonReload Reload b.service Restart a.service]" || len(e.Before) != len(c.present) {
			t.Errorf("%s: %+v, expected %s", c.name, e, c.changes)
		}
	}
}
