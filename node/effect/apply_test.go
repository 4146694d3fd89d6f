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

// fakeHost plays systemd's part for a host, over several processes of
// lockkeeper: what was asked of it, in order; which answers are errors; and after
// which the process that asked is no more.
type fakeHost struct {
	t    *testing.T
	dir  string
	asks []string
	// errs are the answers to the next asks of a step, nil for well.
	errs map[string][]error
	left map[string]string
	// kills: carrying out the step ends the process, that many times; then the
	// step's unit has another run, unless it is in vain.
	kills map[string]int
	vain  bool

	own int // the run of lockkeeper's own unit
	// names are the names that a unit has otherss the one that is asked for; with an
	// error in errs["Names UNIT"] systemd gives none.
	names map[string][]string
	runs  map[string]int

	reads   int // how often steps waited for another read
	applied []string
	end     context.CancelFunc // of the present process
	on      func()             // what carrying out a step does otherss; nil: nothing
}

const ownUnit = "lockkeeper.service"

// watchedFuncs plays the part of the watched files and units; nil functions succeed.
type watchedFuncs struct {
	applied func([]v1alpha1.Change) error
	settled func(context.Context, []v1alpha1.Change) error
}

var nothingWatched watchedFuncs

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

// process is one life of lockkeeper in applying: it resumes, or carries out the
// steps, until they have come to an end or it is ended. It returns its last word.
func (f *fakeHost) process(boot string, e ApplyPlan) step.Work {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	f.end = cancel
	a := f.apply(boot, watchedFuncs{applied: func(changes []v1alpha1.Change) error {
		for _, c := range changes {
			f.applied = append(f.applied, c.String())
		}
		return errors.New("no space left on the device") // is logged, and is not a failure of the units
	}})
	if !a.Resume(ctx, inApplying) {
		a.Start(ctx, inApplying, e, soon())
		a.Start(ctx, inApplying, e, soon()) // no second one others it
		a.Wait()
		for ctx.Err() == nil && a.Work(inApplying) == (step.Work{}) { // its next step waits for another read
			f.reads++
			a.Start(ctx, inApplying, e, soon())
			a.Wait()
		}
		a.Start(ctx, inApplying, e, soon()) // nor after it
	}
	a.Wait()
	return a.Work(inApplying)
}

func (f *fakeHost) expect(what string, got, want step.Work, asks, applied string) {
	f.t.Helper()
	if got != want || strings.Join(f.asks, ", ") != asks || strings.Join(f.applied, ", ") != applied {
		f.t.Errorf("%s: %+v, asked for %q, applied %q\nexpected %+v, %q, %q", what, got, f.asks, f.applied, want, asks, applied)
	}
	f.asks, f.applied = nil, nil
}

var done = step.Work{Done: true}

// dead reports whether it is the word of a process that did not come to an end.
func dead(w step.Work) bool { return w.Running && !w.Done && w.Failed == "" }

func TestApply(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Reload a.service, Restart b.service, Restart c.service")}
	const all = "DaemonReload, Reload a.service, Restart b.service, Restart c.service"
	f := newFakeHost(t)
	f.left["Restart b.service"] = "inactive"
	f.expect("well", f.process("b1", e), done, all, "File /etc/a@1")
	// It was ended before it could say done: nothing is begun anew.
	f.expect("the next process", f.process("b1", e), done, "", "File /etc/a@1")
	f.expect("in another boot", f.process("b2", e), done, all, "File /etc/a@1")

	f = newFakeHost(t)
	f.errs["Restart b.service"] = []error{fmt.Errorf("managing: %w", &systemd.JobError{Unit: "b.service", Text: "restart of b.service failed (exit-code, status 3): journalctl -u b.service"})}
	want := step.Work{Failed: "managing: restart of b.service failed (exit-code, status 3): journalctl -u b.service"}
	f.expect("a unit fails", f.process("b1", e), want, "DaemonReload, Reload a.service, Restart b.service", "")

	f = newFakeHost(t)
	f.expect("a drain alone", f.process("b1", ApplyPlan{Changes: e.Changes}), done, "", "File /etc/a@1")
}

// A plan that names a unit that no plan touches, by whatever name the unit has on this
// host, does nothing at all, and fails.
func TestApplyRefusesUnits(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Restart b.service, Restart maintenance.target")}
	f := newFakeHost(t)
	f.names = map[string][]string{"maintenance.target": {"reboot.target", "runlevel6.target"}}
	const text = "Restart maintenance.target is refused: on this host the unit is reboot.target, which shuts down or reboots the host without a drain"
	f.expect("an alias", f.process("b1", e), step.Work{Failed: text}, "", "")
	f.expect("the next process", f.process("b1", e), step.Work{Failed: text}, "", "")

	// The DaemonReload of the plan brings the alias.
	f = newFakeHost(t)
	f.on = func() { f.names = map[string][]string{"maintenance.target": {"reboot.target"}} }
	f.expect("an alias that comes", f.process("b1", e), step.Work{Failed: text}, "DaemonReload, Restart b.service", "")

	// A policy that is older than the list.
	f = newFakeHost(t)
	want := step.Work{Failed: "Restart rescue@x.service is refused: on this host the unit is rescue@x.service, which takes the host to a rescue, update, installation or initrd state"}
	f.expect("no alias", f.process("b1", ApplyPlan{Steps: actions("Restart rescue@x.service")}), want, "", "")
	f.expect("reload of the bus", f.process("b2", ApplyPlan{Steps: actions("Reload dbus.service")}), done, "Reload dbus.service", "")

	// Where systemd cannot say the names, nothing is touched until it can.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.names = map[string][]string{"maintenance.target": {"reboot.target"}}
		f.errs["Names b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 3)
		began := time.Now()
		f.expect("no answer", f.process("b1", e), step.Work{Failed: text}, "", "")
		if took := time.Since(began); took != 3*retryPause {
			t.Errorf("it took %v", took)
		}
	})
}

// A bus that is away is waited for, and each time that systemd is asked after 10 s something was read again before.
func TestApplyWaitsForTheBus(t *testing.T) {
	e := ApplyPlan{Steps: actions("Restart b.service")}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.errs["Restart b.service"] = slices.Repeat([]error{systemd.ErrAbsent}, 3)
		began := time.Now()
		f.expect("it comes back", f.process("b1", e), done, "Restart b.service, Restart b.service, Restart b.service, Restart b.service", "")
		if took := time.Since(began); took != 3*retryPause {
			t.Errorf("it took %v", took)
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
}

// A step that takes long leaves the next one to another read, and so does each step of a process that goes on with what
// the last one has left: a stop, a pause or another leader in between is seen.
func TestApplyReadsBeforeEachStep(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Reload a.service, Restart b.service, Restart c.service")}
	const all = "DaemonReload, Reload a.service, Restart b.service, Restart c.service"
	synctest.Test(t, func(t *testing.T) {
		for took, reads := range map[time.Duration]int{3 * time.Second: 0, 4 * time.Second: 1, readAge: 3, time.Minute: 3} {
			f := newFakeHost(t)
			f.on = func() { time.Sleep(took + time.Nanosecond) }
			f.expect(took.String(), f.process("b1", e), done, all, "File /etc/a@1")
			if f.reads != reads {
				t.Errorf("steps of %v: %d reads between them, want %d", took, f.reads, reads)
			}
		}
		f := newFakeHost(t)
		a := f.apply("b1", nothingWatched)
		a.Start(t.Context(), inApplying, e, time.Now().Add(-time.Nanosecond))
		a.Wait()
		f.expect("too late for the first", a.Work(inApplying), step.Work{}, "", "")
	})
}

// Whatever ends lockkeeper in the middle, the plan comes to its end, and what was
// done is not done again.
func TestApplyRestartsItself(t *testing.T) {
	e := ApplyPlan{Changes: []v1alpha1.Change{fileChange("/etc/a", "1")}, Steps: actions("DaemonReload, Restart keeper.service, Restart b.service")}
	f := newFakeHost(t)
	f.kills["Restart keeper.service"] = 1
	if w := f.process("b1", e); !dead(w) {
		t.Errorf("it survived its own end: %+v", w)
	}
	f.expect("itself last", done, done, "DaemonReload, Restart b.service, Restart keeper.service", "")
	f.expect("after that", f.process("b1", e), done, "", "File /etc/a@1")

	// A unit that takes lockkeeper with it when it is restarted.
	f = newFakeHost(t)
	f.kills["Restart b.service"] = 1
	f.process("b1", e)
	f.kills["Restart keeper.service"] = 1
	f.process("b1", e)
	f.expect("taken along", f.process("b1", e), done, "DaemonReload, Restart b.service, Restart keeper.service", "File /etc/a@1")

	// Killed, and what was under way is not known to have been done: once more.
	f = newFakeHost(t)
	f.vain = true
	f.kills["Restart b.service"] = 2
	f.process("b1", e)
	f.process("b1", e)
	f.kills["Restart keeper.service"] = 1
	f.process("b1", e)
	f.expect("killed twice", f.process("b1", e), done, "DaemonReload, Restart b.service, Restart b.service, Restart b.service, Restart keeper.service", "File /etc/a@1")

	// Not indefinitely.
	f = newFakeHost(t)
	f.vain = true
	f.kills["Restart b.service"] = 100
	for range maxTries {
		f.process("b1", e)
	}
	want := step.Work{Failed: "Restart b.service: lockkeeper ended 3 times during this step: journalctl -u lockkeeper"}
	f.expect("killed each time", f.process("b1", e), want, "DaemonReload, Restart b.service, Restart b.service, Restart b.service", "")
}

// A user edits the turn's records, and the coordinator repairs them: the run that was canceled
// begins again. It comes after one that waited for another read, and no step that is done is
// done again.
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
		f.expect("the third is called off", a.Work(inApplying), step.Work{}, "Restart c.service, Restart d.service", "")
		a.Start(t.Context(), inApplying, e, soon())
		a.Wait()
		f.expect("and begun again", a.Work(inApplying), done, "Restart d.service", "")
	})
}

// The file changes while lockkeeper restarts itself for it, as it would if the
// other unit wrote it. What was begun comes to its end, with what it was begun for
// in effect: the newer content stays a change, and is done nothing for. Other steps,
// by rules that came since, are done anew.
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

// applies is a turn for the changes, of which there are others as well; then these
// are there. It returns what outlived it.
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

// A change that outlives its turn is a failure, and what comes others it makes a few
// turns and not endlessly many.
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

	// One file after the other.
	for _, start := range []string{"u", "v"} {
		f := newFakeHost(t)
		names := list(fileChange("/etc/0", "1"), fileChange("/etc/1", "1"), fileChange("/etc/2", "1"), fileChange("/etc/3", "1"))
		turn := func(i int) string {
			return f.applies(fmt.Sprint(start, i), names[i:i+1], names[i:i+1], names[i+1:i+2])
		}
		expect("the first", turn(0), "")
		expect("the second", turn(1), "")
		if start == "v" {
			// One that is for something else breaks the chain.
			expect("in between", f.applies("between", list(a1), list(a1, names[2]), list(names[2])), "")
			expect("the first again", turn(2), "")
			continue
		}
		expect("the third", turn(2), "File /etc/3@1 changed while the plan was carried out, as in the 2 turns before; does a unit of the plan write it?")
	}
}

// A unit that writes, when it is restarted, the file that it is restarted for: the
// turn fails, and the new content is there for the next one.
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
	for _, id := range []string{"t1", "t2"} { // the second after a retry
		if there, outlived := turnEnds(id); len(there) != 1 || !strings.HasPrefix(outlived, there[0].String()+" changed again") {
			t.Errorf("%s: %q, and %v is there", id, outlived, there)
		}
	}
	f.on = nil
	if there, outlived := turnEnds("t3"); len(there) != 0 || outlived != "" || written != 2 {
		t.Errorf("it writes no more: %q, and %v is there", outlived, there)
	}
}

// Until what was applied can be read, nobody hears that it is done, nor that it has
// changed again; nor if it cannot be read any more, once it is done.
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
		if w, want := a.Work(inApplying), (step.Work{Running: true, Detail: "what the plan was for to be readable: input/output error"}); w != want {
			t.Errorf("%+v, expected %+v", w, want)
		}
		read.Store(true)
		time.Sleep(retryPause)
		synctest.Wait()
		if w := a.Work(inApplying); w != done {
			t.Errorf("it can be read: %+v", w)
		}
	})
}

// A failed unit's turn tells of what there is when it has failed.
func TestApplyFailedRests(t *testing.T) {
	f := newFakeHost(t)
	f.errs["Restart b.service"] = []error{&systemd.JobError{Unit: "b.service", Text: "failed"}}
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
	// Without a record, restarting itself would never end.
	f := newFakeHost(t)
	f.dir = filepath.Join(f.dir, "gone")
	w := f.process("b1", e)
	if !strings.HasPrefix(w.Failed, "lockkeeper does not restart itself") || len(w.Failed) > maxText || strings.Join(f.asks, ", ") != "Restart b.service" {
		t.Errorf("%+v, asked for %q", w, f.asks)
	}
}

// What is left of a stage that is no more is not begun.
func TestApplyStageLeft(t *testing.T) {
	f := newFakeHost(t)
	f.end = func() {}
	a := f.apply("b1", watchedFuncs{applied: func([]v1alpha1.Change) error {
		t.Error("applied")
		return nil
	}})
	f.kills["Restart b.service"] = 1 // it waits for its context
	a.Start(t.Context(), inApplying, ApplyPlan{Steps: actions("Restart b.service, Restart c.service")}, soon())
	a.Leave(inApplying)
	if w := a.Work(inApplying); !w.Running {
		t.Errorf("%+v", w)
	}
	next := Stage{"t1", v1alpha1.StateBeforeUncordon}
	a.Leave(next)
	a.Wait()
	if w := a.Work(next); w != (step.Work{}) || slices.Contains(f.asks, "Restart c.service") {
		t.Errorf("%+v, asked for %q", w, f.asks)
	}
}

// What a turn applies is what the host has published for it. Whatever has come since is for the next turn.
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
