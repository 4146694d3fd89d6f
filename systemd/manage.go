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
)

const (
	// jobBound is how long one reload or restart may take. systemd's own time-outs for the start and the stop of a unit
	// come first unless somebody has switched them off.
	jobBound = 15 * time.Minute
	// reloadBound is how long systemd may take to read all unit files anew; generators run in that.
	reloadBound = 2 * time.Minute
	// restartSettle is how long a service is looked at after its restart: one that is called started as soon as its
	// process is there may find its mistake a moment later.
	restartSettle = 2 * time.Second
)

// JobError says that a unit could not be reloaded or restarted, and why, in words that begin with systemd's own. Other
// errors of [Units.Reload] and [Units.Restart] are those of the bus, of ctx, or of a host that shuts down: the outcome is
// not known, and asking again does no harm.
type JobError struct {
	Unit string
	Text string // at most 256 bytes, the unit's name and where to look included
}

func (e *JobError) Error() string { return e.Text }

// ErrTooLate means that a call did not ask systemd for something, because it could not do so by the given time. The
// caller has checked shortly before the call that it may ask, and has to check that again.
var ErrTooLate = errors.New("systemd was not asked in time")

// DaemonReload has systemd read its unit files again and returns when it has, in at most 2 minutes. It asks until by, and
// returns [ErrTooLate] after that. An invalid file is not an error of DaemonReload: the unit reports it when it is used.
func (u Units) DaemonReload(ctx context.Context, by time.Time) error {
	if _, err := u.bus().callWithin(ctx, reloadBound, by, manager, managerIface+".Reload"); err != nil {
		return fmt.Errorf("having systemd read its unit files anew: %w", err)
	}
	return nil
}

// Reload has a unit read its configuration again, in at most 15 minutes. It asks for the job until by, and returns
// [ErrTooLate] after that. A unit that does not run has nothing to reload: it is left alone, and left says how it is. One
// that does not exist, or that cannot be reloaded, is a [JobError].
func (u Units) Reload(ctx context.Context, unit string, by time.Time) (left string, err error) {
	return u.manage(ctx, unit, by, func(m *managed) (method, left string, err error) {
		switch m.active {
		case "inactive", "failed", "deactivating":
			return "", m.active, nil
		}
		if !m.canReload {
			return "", "", &JobError{unit, printable(unit+" cannot be reloaded: it has no ExecReload= and is not of a type that reloads; a rule has to restart it", maxText)}
		}
		return "ReloadUnit", "", nil
	})
}

// Restart stops and starts a unit that runs, in at most 15 minutes, and watches it for 2 seconds more: one that ends with
// a failure soon after its start is a [JobError], as is one that does not exist. It asks for the job until by, and returns
// [ErrTooLate] after that.
//
// What does not run is not brought to life: somebody has disabled or stopped it, and it reads its files when it is
// started. It is left alone, and left says how it is. Started are all the same:
//   - a unit that has failed, since it was meant to run and the change may be its cure;
//   - an enabled unit whose conditions did not hold when it was last to start, since the change may be what they wait for;
//   - a service of Type=oneshot that is not disabled: it is inactive whenever it has nothing to do.
func (u Units) Restart(ctx context.Context, unit string, by time.Time) (left string, err error) {
	return u.manage(ctx, unit, by, func(m *managed) (method, left string, err error) {
		enabled := m.fileState == "enabled" || m.fileState == "enabled-runtime"
		switch {
		case m.active == "deactivating", m.active == "inactive" && !(enabled && m.looked != 0 && !m.conditions || m.kind == "oneshot" && m.fileState != "disabled"):
			return "", m.active, nil
		case m.active == "inactive" || m.active == "failed":
			return "RestartUnit", "", nil
		}
		// Whoever stops it before this job is queued wins.
		return "TryRestartUnit", "", nil
	})
}

// Own says which unit this process belongs to, under all of the unit's names, and which of its runs this is; there are no
// names where it belongs to none, such as one that a person started. The error matches [ErrAbsent] where systemd is not
// on the bus.
func (u Units) Own(ctx context.Context) (names []string, invocation string, err error) {
	body, err := u.bus().call(ctx, manager, managerIface+".GetUnitByPID", uint32(0)) // whoever asks
	if e, ok := errors.AsType[*CallError](err); ok && e.Name == managerName+".NoUnitForPID" {
		return nil, "", nil
	}
	var object dbus.ObjectPath
	if err == nil {
		err = dbus.Store(body, &object)
	}
	var all map[string]dbus.Variant
	if err == nil {
		all, err = u.props(ctx, target{service: managerName, path: object}, unitIface)
	}
	var id []byte
	if err == nil {
		err = store(all, map[string]any{"Names": &names, "InvocationID": &id})
	}
	if err != nil {
		return nil, "", fmt.Errorf("looking for the unit of this process: %w", err)
	}
	return names, fmt.Sprintf("%x", id), nil
}

// Invocation names the run of a unit that is under way, or its last one; "" if it never ran.
func (u Units) Invocation(ctx context.Context, unit string) (string, error) {
	p, err := u.run(ctx, unit)
	return p.invocation, err
}

// manage has a job of a unit carried out, the one that choose picks for it as it is, and waits for its end. The job is asked
// for on a connection of its own, which ends with it, and with it the bus's and systemd's memory of who listens.
func (u Units) manage(ctx context.Context, unit string, by time.Time, choose func(*managed) (method, left string, err error)) (left string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, jobBound, &JobError{unit, printable(fmt.Sprintf("%s took longer than %v: journalctl -u %s", unit, jobBound, unit), maxText)})
	defer cancel()
	bus := u.bus().separate()
	defer bus.Close()
	u = Units{Bus: bus}

	before, err := u.managed(ctx, unit)
	if err != nil {
		return "", managing(unit, err)
	}
	if err := before.usable(unit); err != nil {
		return "", err
	}
	method, left, err := choose(&before)
	if err != nil || left != "" {
		return left, err
	}
	ends, err := u.listenForEnds(ctx, before.id)
	if err != nil {
		return "", managing(unit, err)
	}
	job, err := u.queue(ctx, by, method, before.id)
	if err != nil {
		return "", managing(unit, err)
	}
	result, now, err := u.ended(ctx, before.id, job, ends)
	if err != nil {
		return "", managing(unit, err)
	}
	return u.judge(ctx, run{unit: unit, method: method, before: before}, result, now)
}

// managing makes an error of one that a bus or systemd gave. What systemd says of the unit itself is a JobError.
func managing(unit string, err error) error {
	if e, ok := errors.AsType[*JobError](err); ok {
		return e // the bound
	}
	if e, ok := errors.AsType[*CallError](err); ok && e.Name != "" && e.Refused() && !errors.Is(e, ErrAbsent) && !passing[e.Name] {
		return &JobError{unit, printable(unit+": systemd refuses: "+e.Message, maxText)}
	}
	return fmt.Errorf("managing %s: %w", unit, err)
}

// passing are refusals that say nothing of the unit: the host shuts down, or too much is asked for.
var passing = map[string]bool{managerName + ".TransactionIsDestructive": true, managerName + ".ShuttingDown": true, dbusName + ".Error.LimitsExceeded": true}

// jobEnds are the results of jobs by their paths, as systemd has told them.
type jobEnds struct {
	signal *subscription

	mu    sync.Mutex
	owner string // systemd's unique name: only its word counts
	ends  map[dbus.ObjectPath]string
}

func (j *jobEnds) take(sig *dbus.Signal) {
	var id uint32
	var job dbus.ObjectPath
	var unit, result string
	if dbus.Store(sig.Body, &id, &job, &unit, &result) != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 64 // a unit that is started by itself again and again has many
	if sig.Sender == j.owner && len(j.ends) < most {
		j.ends[job] = result
	}
}

func (j *jobEnds) of(job dbus.ObjectPath) (result string, known bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	result, known = j.ends[job]
	return result, known
}

// listenForEnds hears, on the present connection, of the ends of a unit's jobs.
func (u Units) listenForEnds(ctx context.Context, unit string) (*jobEnds, error) {
	j := &jobEnds{ends: map[dbus.ObjectPath]string{}}
	j.signal = &subscription{service: managerName, path: manager.path, iface: managerIface, member: "JobRemoved", take: j.take}
	u.bus().subscribe(j.signal) // for as long as there is this Bus
	if _, err := u.listenForJobs(ctx, j.signal, []string{unit}); err != nil {
		return j, err
	}
	owner, err := u.bus().owner(ctx, managerName)
	j.mu.Lock()
	j.owner = owner
	j.mu.Unlock()
	return j, err
}

// queue asks for a job until by and gives its path, "" if the answer was lost: the job may or may not be there then.
func (u Units) queue(ctx context.Context, by time.Time, method, unit string) (job dbus.ObjectPath, err error) {
	body, err := u.bus().callWithin(ctx, u.bus().limit(), by, manager, managerIface+"."+method, unit, "replace")
	if err == nil {
		err = dbus.Store(body, &job)
	}
	if e, ok := errors.AsType[*CallError](err); ok && !e.Refused() && ctx.Err() == nil {
		return "", nil
	}
	return job, err
}

// ended waits until the job is over and reads how the unit is then. result is "" if nobody heard systemd's word: the bus
// was away, as when the bus itself is what is restarted. A process that ends leaves the job to systemd.
func (u Units) ended(ctx context.Context, unit string, job dbus.ObjectPath, ends *jobEnds) (result string, now managed, err error) {
	id, _ := strconv.ParseUint(path.Base(string(job)), 10, 32)
	answered := time.Now()
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		result, told := ends.of(job) // before the look, which then is at how it is afterwards
		now, err = u.managed(ctx, unit)
		switch {
		case err == nil:
			answered = time.Now()
		case ctx.Err() != nil:
			return "", now, context.Cause(ctx)
		case time.Since(answered) > busPatience:
			return "", now, err
		}
		gone := job != "" && uint64(now.job) != id || job == "" && !now.underway()
		if gone && !told {
			// systemd tells of a job's end before it answers that the unit has none any more: what was not told by now
			// was lost.
			result, told = ends.of(job)
		}
		if err == nil && (told || gone) {
			return result, now, nil
		}
		if err := rest(ctx, pause, nil, ends.signal.hint); err != nil {
			return "", now, err
		}
	}
}

// run is a job that was asked for.
type run struct {
	unit, method string
	before       managed
}

func (r *run) verb() string {
	if r.method == "ReloadUnit" {
		return "reload"
	}
	return "restart"
}

// judge says what has become of a job; now is how the unit was when the job was over.
func (u Units) judge(ctx context.Context, r run, result string, now managed) (left string, err error) {
	fails := func(why string) error { return &JobError{r.unit, now.words(r.unit, r.verb(), why)} }
	switch result {
	case "done":
	case "skipped":
		return "inactive", nil // it was stopped meanwhile
	case "":
		if r.verb() == "reload" || now.invocation == r.before.invocation && now.active != "failed" {
			return "", fmt.Errorf("the end of the %s of %s was not seen: the bus was away", r.verb(), r.unit)
		}
	case "failed":
		return "", fails(now.why(r.verb()))
	case "timeout":
		return "", fails("timeout")
	case "canceled":
		return "", fails("canceled: somebody else's job took its place")
	case "dependency":
		return "", fails("dependency: a unit that it requires failed")
	default:
		return "", fails(printable(result, maxText))
	}
	if r.verb() == "reload" {
		if now.reloadResult != "" && now.reloadResult != "success" {
			return "", fails(now.why(r.verb()))
		}
		return "", nil
	}
	if r.method == "TryRestartUnit" && now.active == "inactive" && now.invocation == r.before.invocation {
		return "inactive", nil // it was stopped before the job was queued
	}
	begun := now.restarts
	for until := time.Now().Add(restartSettle); ; {
		switch {
		case now.active == "failed", now.sub == "auto-restart":
			return "", fails(now.why(r.verb()))
		case now.restarts > begun:
			return "", fails("it ends soon after its start, and systemd starts it again")
		}
		if !strings.HasSuffix(now.id, ".service") || now.active != "active" && !now.underway() || now.sub == "exited" || time.Now().After(until) {
			return "", nil
		}
		if err := rest(ctx, restartSettle/4, nil, nil); err != nil {
			return "", err
		}
		if now, err = u.managed(ctx, r.before.id); err != nil {
			return "", managing(r.unit, err)
		}
	}
}
