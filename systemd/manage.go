package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// jobBound is how long a reload or restart may take. systemd's own timeouts for the start and the stop of a unit end it
	// before, unless they are switched off.
	jobBound = 15 * time.Minute
	// reloadBound is how long systemd may take to read all unit files again, and to run its generators for that.
	reloadBound = 2 * time.Minute
	// restartSettle is how long a service is watched after its restart. systemd calls a service started when its process
	// exists, and the process may fail a moment later.
	restartSettle = 2 * time.Second
	// maxJobEnds bounds what is kept about jobs of a unit during a reload or restart. A unit that systemd starts again and
	// again has many.
	maxJobEnds = 64
)

// JobError says that a unit cannot be reloaded or restarted, or that this failed, and why. Other errors of [Units.Reload] and
// [Units.Restart] come from the bus, from ctx, or from a host that shuts down: the outcome is not known, and the call can be
// repeated.
type JobError struct {
	Text string // at most 256 bytes; with the unit's name and where to read more
}

func (e *JobError) Error() string { return e.Text }

func jobError(unit, format string, args ...any) *JobError {
	return &JobError{v1alpha1.OneLine(unit+fmt.Sprintf(format, args...), maxText)}
}

// DaemonReload has systemd read its unit files again, and returns when it has, in at most 2 minutes. It asks until by, and
// returns [ErrTooLate] after that. An invalid file is not an error of DaemonReload: the unit reports it when it is used.
func (u Units) DaemonReload(ctx context.Context, by time.Time) error {
	manager := u.manager()
	manager.limit, manager.by = reloadBound, by
	if err := manager.call(ctx, managerIface+".Reload", nil); err != nil {
		return fmt.Errorf("having systemd read its unit files again: %w", err)
	}
	return nil
}

// Reload has a unit read its configuration again, in at most 15 minutes. It asks for the job until by, and returns
// [ErrTooLate] after that. A unit that does not run has nothing to reload, also if systemd is about to start it again after a
// failure: Reload returns its state as left, and does nothing. A unit that does not exist, or that cannot be reloaded, is a
// [JobError].
func (u Units) Reload(ctx context.Context, unit string, by time.Time) (left string, err error) {
	return u.manage(ctx, unit, by, chooseReload)
}

// Restart stops and starts a unit that runs, in at most 15 minutes, and watches it for 2 more seconds. A unit that fails soon
// after its start is a [JobError], as is one that does not exist. Restart asks for the job until by, and returns
// [ErrTooLate] after that.
//
// Restart does not start a unit that does not run, but returns its state as left. A user has disabled or stopped the unit,
// and it reads its files when it is started. There are exceptions, which it starts if their conditions hold:
//   - a unit that has failed: it was meant to run, and the change may be the fix;
//   - an enabled unit whose conditions did not hold at its last start: the change may be what it waits for;
//   - a service of Type=oneshot that is not disabled: it is inactive whenever it has nothing to do.
func (u Units) Restart(ctx context.Context, unit string, by time.Time) (left string, err error) {
	return u.manage(ctx, unit, by, chooseRestart)
}

func chooseReload(name string, p *unit) (method, left string, err error) {
	switch {
	case p.stopped() || p.ActiveState == "deactivating" || p.startsAgain():
		return "", p.ActiveState, nil
	case !p.CanReload:
		return "", "", jobError(name, " cannot be reloaded: it has no ExecReload= and is not of a type that reloads; a rule has to restart it")
	}
	return "ReloadUnit", "", nil
}

func chooseRestart(_ string, p *unit) (method, left string, err error) {
	enabled := p.UnitFileState == "enabled" || p.UnitFileState == "enabled-runtime"
	skipped := enabled && p.ConditionTimestampMonotonic != 0 && !p.ConditionResult
	oneshot := p.service.Type == "oneshot" && p.UnitFileState != "disabled"
	switch {
	case p.ActiveState == "deactivating", p.ActiveState == "inactive" && !skipped && !oneshot:
		return "", p.ActiveState, nil
	case p.stopped(), p.ActiveState == "activating":
		// Up to systemd 251, TryRestartUnit does nothing with a unit that starts, or waits for its next start after a failure,
		// and calls that done. The unit may have read its files before they changed, and the change may be the fix.
		return "RestartUnit", "", nil
	}
	// If a user stops the unit before this job is queued, it stays stopped.
	return "TryRestartUnit", "", nil
}

// job is a reload or restart of a unit.
type job struct {
	Units
	unit   string // as it was asked for
	method string
	before unit

	mu   sync.Mutex
	ends map[dbus.ObjectPath]string // results of the unit's jobs, by the path of the job
}

// manage has a unit reloaded or restarted by the method that choose returns, and waits for the end of it. It uses a
// connection of its own: the subscriptions of systemd and the bus end with that.
func (u Units) manage(ctx context.Context, name string, by time.Time, choose func(name string, p *unit) (method, left string, err error)) (left string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, jobBound, jobError(name, " took longer than %v: journalctl -u %s", jobBound, name))
	defer cancel()
	bus := u.manager().bus.separate()
	defer bus.Close()
	j := job{Units: Units{Bus: bus}, unit: name, ends: map[dbus.ObjectPath]string{}}
	left, err = j.run(ctx, by, choose)
	if err != nil {
		return "", managing(name, err)
	}
	return left, nil
}

func (j *job) run(ctx context.Context, by time.Time, choose func(name string, p *unit) (method, left string, err error)) (left string, err error) {
	if j.before, err = j.Units.unit(ctx, j.unit); err != nil {
		return "", err
	}
	if err := j.before.usable(j.unit); err != nil {
		return "", err
	}
	if j.method, left, err = choose(j.unit, &j.before); err != nil || left != "" {
		return left, err
	}
	signals, err := j.manager().subscribe(ctx, nil, jobRemoved, j.ended)
	if err != nil {
		return "", err
	}
	if err := j.subscribe(ctx); err != nil {
		return "", err
	}
	var path dbus.ObjectPath
	err = j.order(ctx, by, j.method, j.before.Id, &path)
	if e, ok := errors.AsType[*CallError](err); ok && !e.Refused() && ctx.Err() == nil {
		path, err = "", nil // the answer was lost: there may or may not be a job
	}
	if err != nil {
		return "", err
	}
	result, now, err := j.wait(ctx, path, signals.hint)
	if err != nil {
		return "", err
	}
	return j.judge(ctx, result, now)
}

// managing returns the error for one of a job: a JobError if the unit itself is the cause, or systemd refuses because of it.
func managing(name string, err error) error {
	if e, ok := errors.AsType[*JobError](err); ok {
		return e
	}
	e, ok := errors.AsType[*CallError](err)
	// These refusals have other causes: the host shuts down, or a limit of the bus is reached.
	passes := answeredWith(err, managerName+".TransactionIsDestructive", managerName+".ShuttingDown", dbusName+".Error.LimitsExceeded")
	if ok && e.Name != "" && e.Refused() && !errors.Is(e, ErrAbsent) && !passes {
		return jobError(name, ": systemd refuses: %s", e.Message)
	}
	return fmt.Errorf("managing %s: %w", name, err)
}

// usable returns an error if a unit can be neither reloaded nor restarted.
func (p *unit) usable(name string) error {
	switch p.LoadState {
	case "loaded":
		return nil
	case "masked":
		return jobError(name, " is masked")
	case "not-found":
		return jobError(name, " is not there: no such unit on this host")
	}
	return jobError(name, " cannot be loaded (%s): %s", p.LoadState, p.LoadError.Text)
}

// ended keeps the result of a job that a signal of systemd carries, and reports whether the job is one of the unit.
func (j *job) ended(body []any) bool {
	if !jobOf(j.before.Id)(body) {
		return false
	}
	path, isPath := body[1].(dbus.ObjectPath)
	result, isText := body[3].(string)
	j.mu.Lock()
	defer j.mu.Unlock()
	if isPath && isText && len(j.ends) < maxJobEnds {
		j.ends[path] = result
	}
	return true
}

func (j *job) result(path dbus.ObjectPath) (result string, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	result, known = j.ends[path]
	return result, known
}

// wait waits until the job is over, and reads the unit then. result is "" if systemd's signal did not arrive: the bus was
// away, for example because the bus itself is restarted. If this process ends, systemd continues the job.
func (j *job) wait(ctx context.Context, at dbus.ObjectPath, hint <-chan struct{}) (result string, now unit, err error) {
	id, _ := strconv.ParseUint(path.Base(string(at)), 10, 32)
	err = j.poll(ctx, hint, func() (bool, error) {
		var known bool
		result, known = j.result(at) // first: the unit is then read as it is after the job
		if now, err = j.Units.unit(ctx, j.before.Id); err != nil {
			return false, err
		}
		over := at != "" && uint64(now.Job.ID) != id || at == "" && !now.changing()
		if over && !known {
			// systemd signals a job's end before it answers that the unit has no job. A signal that did not arrive by now
			// was lost.
			result, known = j.result(at)
		}
		return known || over, nil
	})
	return result, now, err
}

func (j *job) reloads() bool { return j.method == "ReloadUnit" }

// judge returns the outcome of a job that has ended with result; now is the unit at the end.
func (j *job) judge(ctx context.Context, result string, now unit) (left string, err error) {
	switch result {
	case "done":
	case "skipped":
		return "inactive", nil // it was stopped meanwhile
	case "":
		if j.reloads() || now.invocation() == j.before.invocation() && now.ActiveState != "failed" {
			return "", fmt.Errorf("lockkeeper does not know how %s of %s ended: the connection to the bus was interrupted", j.method, j.unit)
		}
	case "failed":
		return "", j.failed(&now, now.failure(j.reloads()))
	case "canceled":
		return "", j.failed(&now, "canceled: another job replaced it")
	case "dependency":
		return "", j.failed(&now, "dependency: a unit that it requires failed")
	default: // "timeout" is one
		return "", j.failed(&now, v1alpha1.OneLine(result, maxText))
	}
	if j.reloads() {
		if r := now.service.ReloadResult; r != "" && r != "success" {
			return "", j.failed(&now, now.failure(true))
		}
		return "", nil
	}
	if j.method == "TryRestartUnit" && now.ActiveState == "inactive" && now.invocation() == j.before.invocation() {
		return "inactive", nil // it was stopped before the job was queued
	}
	if now.ActiveState == "failed" && now.unmet(&j.before) {
		return "failed", nil // it was not started, and its last run had failed before
	}
	return "", j.settle(ctx, now)
}

// settle watches a service that was restarted for a moment.
func (j *job) settle(ctx context.Context, now unit) (err error) {
	restarts := now.service.NRestarts
	for until := time.Now().Add(restartSettle); ; {
		switch {
		case now.ActiveState == "failed", now.startsAgain():
			return j.failed(&now, now.failure(false))
		case now.service.NRestarts > restarts:
			return j.failed(&now, "it ends soon after its start, and systemd starts it again")
		}
		runs := now.ActiveState == "active" && now.SubState != "exited" || now.changing()
		if !strings.HasSuffix(now.Id, ".service") || !runs || time.Now().After(until) {
			return nil
		}
		if err := pause(ctx, restartSettle/4, nil, nil); err != nil {
			return err
		}
		if now, err = j.Units.unit(ctx, j.before.Id); err != nil {
			return err
		}
	}
}

// failed returns the error of a job: what failed, why, the unit's last status text, and where to read more.
func (j *job) failed(now *unit, why string) error {
	verb := "restart"
	if j.reloads() {
		verb = "reload"
	}
	text, where := fmt.Sprintf("%s of %s failed (%s)", verb, j.unit, why), ": journalctl -u "+j.unit
	if room := maxText - len(text) - len(where) - len(`: ""`); now.service.StatusText != "" && room > 8 {
		text += `: "` + v1alpha1.OneLine(now.service.StatusText, room) + `"`
	}
	return &JobError{v1alpha1.OneLine(text+where, maxText)}
}
