package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	serviceIface = "org.freedesktop.systemd1.Service"

	maxUnits = 256 // units of one target that are run; more are somebody's mistake

	pollMin = 50 * time.Millisecond // between two looks at units with jobs, doubling
	pollMax = time.Second

	// stopBound is how long the units of a target may take to stop. systemd's own TimeoutStopSec is 90 s.
	stopBound = 2 * time.Minute

	// busPatience is how long a run waits for a bus that went away.
	busPatience = 30 * time.Second
)

// UnitState is how a unit that a target wants has fared in a run of the target.
type UnitState struct {
	Unit string
	// Running: its job, or the start of the unit, is not over.
	Running bool
	// Skipped: its conditions did not hold, which is no failure.
	Skipped bool
	// Failed is why it failed, in words with systemd's own, such as "exit-code, status 3"; "" if it did not.
	Failed string
}

// Wanted gives the units that a target wants or requires and that can be started: masked units and links to units
// that are gone are left out. They are in the order of their names. A target that is not there wants nothing. The
// error matches ErrAbsent where systemd is not on the bus.
func (u Units) Wanted(ctx context.Context, target string) ([]string, error) {
	p, err := u.properties(ctx, target)
	if err != nil {
		return nil, err
	}
	if p.load != "loaded" || len(p.wants) == 0 {
		return nil, nil
	}
	if len(p.wants) > maxUnits {
		return nil, fmt.Errorf("%s wants %d units, expected at most %d", target, len(p.wants), maxUnits)
	}
	rows, err := u.rows(ctx, p.wants)
	if err != nil {
		return nil, err
	}
	var units []string
	for _, r := range rows {
		if r.Load == "loaded" {
			units = append(units, r.Name)
		}
	}
	slices.Sort(units)
	return slices.Compact(units), nil
}

// RunTarget runs the units that a target wants, once, and stops them and the target again, so that the next run runs
// them all anew, those with RemainAfterExit too. It returns how each has fared; report is told of that before, when
// it has changed.
//
// A unit whose start is under way is taken up: its result counts, whoever asked for it. That is how a run goes on
// after this process was restarted in the middle of it. One that is active from before is stopped first. A target
// becomes active although units that it wants failed, so each unit's own result is read.
//
// RunTarget stops and starts no unit after by: it returns [ErrTooLate] then, and units from an earlier run continue.
//
// When ctx ends RunTarget returns its cause and leaves the units as they are; StopTarget stops them. Other errors are
// those of the bus, with which it has patience for half a minute: the outcome is not known, and another run takes up
// what is there. An error that comes with states is one of stopping: the states count.
func (u Units) RunTarget(ctx context.Context, target string, by time.Time, report func([]UnitState)) ([]UnitState, error) {
	units, err := u.Wanted(ctx, target)
	if err != nil || len(units) == 0 {
		return nil, err
	}
	if err := u.stopActive(ctx, append([]string{target}, units...), by); err != nil {
		return nil, err
	}
	runs := make([]unitRun, len(units))
	for i, unit := range units {
		if runs[i].before, err = u.run(ctx, unit); err != nil {
			return nil, err
		}
		runs[i].unit = unit
	}
	if err := u.order(ctx, by, "StartUnit", target); err != nil {
		return nil, err
	}
	states, err := u.await(ctx, runs, report)
	if err != nil {
		return nil, err
	}
	return states, u.stop(ctx, time.Time{}, append([]string{target}, units...))
}

// await looks at the units until none of them runs.
func (u Units) await(ctx context.Context, runs []unitRun, report func([]UnitState)) ([]UnitState, error) {
	var told []UnitState
	answered := time.Now()
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		states, err := u.fared(ctx, runs)
		switch {
		case err == nil:
			answered = time.Now()
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case time.Since(answered) > busPatience:
			return nil, err
		}
		if err == nil && !slices.Equal(states, told) {
			report(slices.Clone(states))
			told, pause = states, pollMin
		}
		if err == nil && !slices.ContainsFunc(states, func(s UnitState) bool { return s.Running }) {
			return states, nil
		}
		if err := rest(ctx, pause, nil, nil); err != nil {
			return nil, err
		}
	}
}

// unitRun is one unit in a run of its target.
type unitRun struct {
	unit   string
	before runProps
}

// runProps are what tells a unit's run from the one before, and what came of it.
type runProps struct {
	active, sub string
	job         uint32
	invocation  string // of its last run; "" if it never ran
	conditions  bool   // its conditions held when they were last looked at
	looked      uint64 // when that was, in µs of the monotonic clock
	result      string // systemd's word for a service's, "" for other types
	status      int32  // exit status or signal of its main process
	code        int32  // CLD_EXITED and so on
}

func (p runProps) underway() bool {
	return p.job != 0 || p.active == "activating" || p.active == "reloading" || p.active == "deactivating"
}

// fared reads how the units have fared since the run began.
func (u Units) fared(ctx context.Context, runs []unitRun) ([]UnitState, error) {
	states := make([]UnitState, len(runs))
	for i, r := range runs {
		now, err := u.run(ctx, r.unit)
		if err != nil {
			return nil, err
		}
		states[i] = r.state(now)
	}
	return states, nil
}

func (r unitRun) state(now runProps) UnitState {
	s := UnitState{Unit: r.unit}
	ran := now.invocation != r.before.invocation || r.before.underway()
	switch {
	case now.underway():
		s.Running = true
	case ran && now.result != "" && now.result != "success":
		s.Failed = now.why()
	case now.active == "failed":
		s.Failed = now.why()
	case ran:
	case !now.conditions && now.looked != r.before.looked:
		s.Skipped = true
	default:
		s.Failed = "was not started: a unit that it requires failed, or its start was called off"
	}
	return s
}

// why says in systemd's words what went wrong.
func (p runProps) why() string {
	const exited = 1 // CLD_EXITED
	switch {
	case p.result == "" || p.result == "success":
		return "failed"
	case p.result == "exit-code":
		return fmt.Sprintf("exit-code, status %d", p.status)
	case p.code > exited && p.status != 0:
		return fmt.Sprintf("%s, signal %d", p.result, p.status)
	}
	return p.result
}

// run reads the run's properties of a unit.
func (u Units) run(ctx context.Context, unit string) (runProps, error) {
	object, all, err := u.all(ctx, unit, unitIface)
	if err != nil {
		return runProps{}, err
	}
	p, err := readRun(all)
	if err == nil && strings.HasSuffix(unit, ".service") && !p.underway() {
		var service map[string]dbus.Variant
		if service, err = u.props(ctx, object, serviceIface); err == nil {
			err = p.readService(service)
		}
	}
	if err != nil {
		return p, fmt.Errorf("reading unit %q: %w", unit, err)
	}
	return p, nil
}

// readRun reads the run's properties from those of a unit, those of a service left out.
func readRun(all map[string]dbus.Variant) (runProps, error) {
	p := runProps{conditions: true}
	var job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	var id []byte
	err := store(all, map[string]any{
		"ActiveState": &p.active, "SubState": &p.sub, "Job": &job, "InvocationID": &id,
		"ConditionResult": &p.conditions, "ConditionTimestampMonotonic": &p.looked,
	})
	p.job, p.invocation = job.ID, fmt.Sprintf("%x", id)
	return p, err
}

// readService adds what came of a service's run.
func (p *runProps) readService(service map[string]dbus.Variant) error {
	err := store(service, map[string]any{"Result": &p.result, "ExecMainStatus": &p.status, "ExecMainCode": &p.code})
	p.result = printable(p.result, maxText)
	return err
}

// StopTarget stops a target and the units that it wants, and returns when they have stopped. It takes at most 2
// minutes, which is longer than systemd's own bound for a unit that does not say otherwise; the error names what still
// runs. A unit that is not active is no error.
func (u Units) StopTarget(ctx context.Context, target string) error {
	units, err := u.Wanted(ctx, target)
	if err != nil {
		return err
	}
	return u.stop(ctx, time.Time{}, append([]string{target}, units...))
}

// stop stops units, a target before what it wants. It asks for no stop after by, the zero time for none.
func (u Units) stop(ctx context.Context, by time.Time, names []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopBound, errStopBound)
	defer cancel()
	for _, unit := range names {
		if err := u.order(ctx, by, "StopUnit", unit); err != nil && !noSuchUnit(err) {
			return err
		}
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		rows, err := u.rows(ctx, names)
		if err != nil {
			return err
		}
		var left []string
		for _, r := range rows {
			if r.Active != "inactive" && r.Active != "failed" {
				left = append(left, r.Name)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if err := rest(ctx, pause, nil, nil); err != nil {
			return fmt.Errorf("stopping %s: %w", strings.Join(left, ", "), err)
		}
	}
}

var errStopBound = fmt.Errorf("not stopped within %v", stopBound)

// stopActive stops those of the units that are active, whoever started them; one that is being started is left to
// come to its end.
func (u Units) stopActive(ctx context.Context, units []string, by time.Time) error {
	rows, err := u.rows(ctx, units)
	if err != nil {
		return err
	}
	var active []string
	for _, r := range rows {
		if r.Active == "active" || r.Active == "deactivating" {
			active = append(active, r.Name)
		}
	}
	if len(active) == 0 {
		return nil
	}
	return u.stop(ctx, by, active)
}

// order has systemd start or stop a unit, unless it is after by; the job replaces one that contradicts it.
func (u Units) order(ctx context.Context, by time.Time, method, unit string) error {
	if _, err := u.bus().callWithin(ctx, u.bus().limit(), by, manager, managerIface+"."+method, unit, "replace"); err != nil {
		return fmt.Errorf("asking systemd for %s of %s: %w", method, unit, err)
	}
	return nil
}

func noSuchUnit(err error) bool {
	e, ok := errors.AsType[*CallError](err)
	return ok && (e.Name == managerName+".NoSuchUnit" || e.Name == managerName+".UnitMasked")
}

// unitRow is a line of systemd's list of units.
type unitRow struct {
	Name, Description, Load, Active, Sub, Following string
	Path                                            dbus.ObjectPath
	JobID                                           uint32
	JobType                                         string
	JobPath                                         dbus.ObjectPath
}

// rows lists units, loading them if need be.
func (u Units) rows(ctx context.Context, names []string) ([]unitRow, error) {
	body, err := u.bus().call(ctx, manager, managerIface+".ListUnitsByNames", names)
	var rows []unitRow
	if err == nil {
		err = dbus.Store(body, &rows)
	}
	if err != nil {
		return nil, fmt.Errorf("listing units: %w", err)
	}
	return rows, nil
}

// WatchReloads calls f when systemd has read its unit files anew (daemon-reload, systemctl enable), and at least
// every 5 minutes, until ctx ends, whose error it returns. f is first called as soon as the signal is listened for.
// systemd and the bus may go and come back; while the bus is away f is called now and then all the same, and finds
// that out by itself.
func (u Units) WatchReloads(ctx context.Context, f func(context.Context)) error {
	b := u.bus()
	signal := &subscription{service: managerName, path: manager.path, iface: managerIface, member: "Reloading"}
	defer b.subscribe(signal)()
	for {
		before := signal.on
		conn, err := b.listen(ctx, signal)
		if err == nil && conn != before {
			// Without a subscriber systemd sends no signals. That it refuses is no reason to stop: we look anyway.
			_, _ = b.call(ctx, manager, managerIface+".Subscribe")
		}
		f(ctx)
		wait := reloadPoll
		var lost <-chan struct{}
		if err == nil {
			lost = conn.Context().Done()
		} else {
			wait = reloadRetry
		}
		if err := rest(ctx, watchSpacing, nil, nil); err != nil {
			return err
		}
		if err := rest(ctx, wait, lost, signal.hint); err != nil {
			return err
		}
	}
}

const (
	reloadPoll  = 5 * time.Minute  // a look without any signal
	reloadRetry = 10 * time.Second // the same without a bus
)
