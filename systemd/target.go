package systemd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxUnits = 256 // units of one target; a target with more is a mistake

	pollMin = 50 * time.Millisecond // first pause between two reads of units with jobs, doubling
	pollMax = time.Second

	// stopBound is how long the units of a target may take to stop. systemd's own default is 90 s for each.
	stopBound = 2 * time.Minute

	// busPatience is how long a run waits for a bus that went away.
	busPatience = 30 * time.Second
)

// UnitState is the progress or the result of a unit in a run of a target.
type UnitState struct {
	// Unit is the unit's name.
	Unit string
	// Running: its job, or its start, is not over.
	Running bool
	// Skipped: its conditions did not hold, ExecCondition= among them, which is not a failure.
	Skipped bool
	// Failed is why it failed, in systemd's terms, such as "exit-code, status 3"; "" if it did not fail.
	Failed string
}

// Wanted returns the units that a target wants or requires and that can be started, sorted by name. It leaves out masked
// units, and links to units that no longer exist. A target that does not exist wants nothing.
func (u Units) Wanted(ctx context.Context, target string) ([]string, error) {
	p, err := u.unit(ctx, target)
	if err != nil {
		return nil, err
	}
	wanted := slices.Concat(p.Wants, p.Requires)
	switch {
	case p.LoadState != "loaded" || len(wanted) == 0:
		return nil, nil
	case len(wanted) > maxUnits:
		return nil, fmt.Errorf("%s wants %d units, expected at most %d", target, len(wanted), maxUnits)
	}
	rows, err := u.list(ctx, wanted)
	if err != nil {
		return nil, err
	}
	var units []string
	for _, r := range rows {
		if r.LoadState == "loaded" {
			units = append(units, r.Name)
		}
	}
	slices.Sort(units)
	return slices.Compact(units), nil
}

// RunTarget runs the units that a target wants, once, and then stops them and the target, so that the next run starts all of
// them again, those with RemainAfterExit too. It returns the result of each unit. It calls report with the states whenever
// they have changed.
//
// If a unit is starting already, RunTarget waits for that start, and its result counts. So a run continues after this process
// was restarted in the middle of it. A unit that is active already is stopped first. A target becomes active even if units
// that it wants failed, so RunTarget reads each unit's own result.
//
// RunTarget asks for no stop or start after by. It returns [ErrTooLate] then, and units from an earlier run continue.
//
// When ctx ends, RunTarget returns its cause and leaves the units as they are; StopTarget stops them. Other errors are those
// of the bus, after half a minute without an answer: the outcome is not known, and another run continues from what it finds.
// If an error comes with states, stopping the units failed: the states count.
func (u Units) RunTarget(ctx context.Context, target string, by time.Time, report func([]UnitState)) ([]UnitState, error) {
	units, err := u.Wanted(ctx, target)
	if err != nil || len(units) == 0 {
		return nil, err
	}
	if err := u.stopActive(ctx, append([]string{target}, units...), by); err != nil {
		return nil, err
	}
	runs := make([]unitRun, len(units))
	for i, name := range units {
		before, err := u.unit(ctx, name)
		if err != nil {
			return nil, err
		}
		runs[i] = unitRun{name, before}
	}
	if err := u.order(ctx, by, "StartUnit", target); err != nil {
		return nil, err
	}
	var states []UnitState
	err = u.poll(ctx, nil, func() (done bool, err error) {
		last := states
		if states, err = u.states(ctx, runs); err != nil {
			states = last
			return false, err
		}
		if !slices.Equal(states, last) {
			report(slices.Clone(states))
		}
		return !slices.ContainsFunc(states, func(s UnitState) bool { return s.Running }), nil
	})
	if err != nil {
		return nil, err
	}
	return states, u.stop(ctx, time.Time{}, append([]string{target}, units...))
}

// poll calls read until it reports that it is done, with pauses that grow to 1 s and end with a hint. A bus that goes away
// for less than half a minute is waited for.
func (u Units) poll(ctx context.Context, hint <-chan struct{}, read func() (done bool, err error)) error {
	answered := time.Now()
	for wait := pollMin; ; wait = min(2*wait, pollMax) {
		done, err := read()
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			answered = time.Now()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(answered) > busPatience:
			return err
		}
		if err := pause(ctx, wait, nil, hint); err != nil {
			return err
		}
	}
}

// unitRun is one unit in a run of its target.
type unitRun struct {
	name   string
	before unit
}

// states reads the units' states since the run began.
func (u Units) states(ctx context.Context, runs []unitRun) ([]UnitState, error) {
	states := make([]UnitState, len(runs))
	for i, r := range runs {
		now, err := u.unit(ctx, r.name)
		if err != nil {
			return nil, err
		}
		states[i] = r.state(now)
	}
	return states, nil
}

func (r unitRun) state(now unit) UnitState {
	s := UnitState{Unit: r.name}
	ran := now.invocation() != r.before.invocation() || r.before.changing()
	switch {
	case now.changing():
		s.Running = true
	case !ran && now.unmet(&r.before): // first: a unit that failed in an earlier run stays in the state failed
		s.Skipped = true
	case ran && now.service.Result == "exec-condition": // systemd does not call such a unit failed
		s.Skipped = true
	case ran && now.service.Result != "" && now.service.Result != "success", now.ActiveState == "failed":
		s.Failed = now.failure(false)
	case ran:
	default:
		s.Failed = "was not started: a unit that it requires failed, or its start was called off"
	}
	return s
}

// Begun returns which of the targets [Units.RunTarget] has begun, and not ended: those that are active, or have a job under way.
func (u Units) Begun(ctx context.Context, targets []string) (begun []string, err error) {
	rows, err := u.list(ctx, targets)
	for _, r := range rows {
		if r.ActiveState != "inactive" && r.ActiveState != "failed" || r.JobId != 0 {
			begun = append(begun, r.Name)
		}
	}
	return begun, err
}

// StopTarget stops a target and the units that it wants, and returns when they have stopped. It takes at most 2 minutes,
// which is longer than systemd's own default for a unit. The error names the units that still run. It is not an error if a
// unit is not active.
func (u Units) StopTarget(ctx context.Context, target string) error {
	units, err := u.Wanted(ctx, target)
	if err != nil {
		return err
	}
	return u.stop(ctx, time.Time{}, append([]string{target}, units...))
}

// stop stops units, in the order given. It asks for no stop after by, unless that is zero.
func (u Units) stop(ctx context.Context, by time.Time, names []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopBound, errStopBound)
	defer cancel()
	for _, name := range names {
		err := u.order(ctx, by, "StopUnit", name)
		if err != nil && !answeredWith(err, managerName+".NoSuchUnit", managerName+".UnitMasked") {
			return err
		}
	}
	left := names
	err := u.poll(ctx, nil, func() (stopped bool, err error) {
		rows, err := u.list(ctx, names)
		if err != nil {
			return false, err
		}
		left = nil
		for _, r := range rows {
			if r.ActiveState != "inactive" && r.ActiveState != "failed" {
				left = append(left, r.Name)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("stopping %s: %w", strings.Join(left, ", "), err)
	}
	return nil
}

var errStopBound = fmt.Errorf("not stopped within %v", stopBound)

// stopActive stops those of the units that are active. It leaves a unit that is starting alone.
func (u Units) stopActive(ctx context.Context, units []string, by time.Time) error {
	rows, err := u.list(ctx, units)
	if err != nil {
		return err
	}
	var active []string
	for _, r := range rows {
		if r.ActiveState == "active" || r.ActiveState == "deactivating" {
			active = append(active, r.Name)
		}
	}
	if len(active) == 0 {
		return nil
	}
	return u.stop(ctx, by, active)
}

// order has systemd queue a job for a unit by the given time, and returns when it is queued. The job replaces one that
// conflicts with it.
func (u Units) order(ctx context.Context, by time.Time, method, unit string, job ...any) error {
	manager := u.manager()
	manager.by = by
	if err := manager.call(ctx, managerIface+"."+method, []any{unit, "replace"}, job...); err != nil {
		return fmt.Errorf("asking systemd for %s of %s: %w", method, unit, err)
	}
	return nil
}
