package memhost

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// startTimeout is systemd's default TimeoutStartSec, which oneshots do not have.
const startTimeout = 90 * time.Second

// state is a unit in the present boot. The mutex of Units guards it.
type state struct {
	name           string
	active, sub    string
	invocation     []byte // of its last run; never modified in place
	result, reload string // of its last run and its last reload
	skipped        bool
	checked        time.Duration // age of the boot when the conditions were checked
	job            *job
	run            *Run        // whose start runs
	timer          *time.Timer // of the operation under way
}

// job is a job of a unit. The operation may outlast it: a job that is replaced leaves the unit as it is.
type job struct {
	id   uint32
	kind string                // start, stop, restart, reload
	done []func(result string) // called when it ends
}

func jobPath(id uint32) dbus.ObjectPath {
	return dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdPath, id))
}

func (j *job) path() dbus.ObjectPath { return jobPath(j.id) }

// state returns the state of a unit under one of its names.
func (u *Units) state(name string) *state {
	if _, there := u.defined[name]; !there {
		for id, d := range u.defined {
			if slices.Contains(d.Names, name) {
				name = id
			}
		}
	}
	s := u.states[name]
	if s == nil {
		s = &state{name: name, active: cmp.Or(u.defined[name].Active, "inactive")}
		if s.active == "active" {
			s.invocation = u.h.newID()
		}
		u.states[name] = s
	}
	return s
}

// request queues a job that a client asks for.
func (u *Units) request(method, name string) (path dbus.ObjectPath, refused *dbus.Error) {
	path = "/"
	u.locked(func() {
		s := u.state(name)
		refuse := func(name, text string) { refused = dbus.NewError(systemdName+"."+name, []any{text}) }
		u.jobs = append(u.jobs, method+" "+name)
		switch load := u.load(s); {
		case u.conn == nil || u.boot == nil:
			refused = dbus.MakeFailedError(ErrDown)
			return
		case load == "masked" && method != "StopUnit":
			refuse("UnitMasked", "Unit "+name+" is masked.")
			return
		case load != "loaded" && s.active == "inactive":
			refuse("NoSuchUnit", "Unit "+name+" not found.")
			return
		case u.shuttingDown && method != "StopUnit":
			refuse("TransactionIsDestructive", "Transaction for "+name+"/start is destructive (reboot.target has 'start' job queued, but 'stop' is included in transaction).")
			return
		}
		path = u.queue(method, s).path()
	})
	return path, refused
}

// queue queues a job and begins its operation. A job of the same kind is continued, another one is canceled.
func (u *Units) queue(method string, s *state) *job {
	kind := strings.TrimSuffix(strings.ToLower(method), "unit")
	if kind == "tryrestart" {
		kind = "restart"
	}
	if s.job != nil && s.job.kind == kind {
		return s.job
	}
	u.finish(s, "canceled")
	u.lastJob++
	s.job = &job{id: u.lastJob + 1, kind: kind} // 1 is the job of reboot.target
	j := s.job
	rests := s.active == "inactive" || s.active == "failed"
	switch {
	case kind == "start" && s.active == "active", kind == "stop" && rests, method == "TryRestartUnit" && rests,
		kind == "reload" && s.active != "active":
		u.after(s, 0, func() { u.finish(s, "done") })
	case kind == "start" && s.active == "activating": // the start that is under way ends this job, too
	case kind != "stop" && rests:
		u.begin(s)
	case kind == "reload":
		s.active, s.sub = "reloading", "reload"
		u.after(s, u.defined[s.name].ReloadTakes, func() { u.reloaded(s) })
	default: // a start waits for the end of a stop
		u.end(s, kind != "stop")
	}
	return j
}

// after calls f when the operation that begins now is over, unless another one begins before.
func (u *Units) after(s *state, d time.Duration, f func()) {
	u.forget(s)
	var timer *time.Timer
	// The client has the answer about its job before the job ends, as with the real systemd.
	timer = time.AfterFunc(max(d, time.Millisecond), func() {
		u.locked(func() {
			if s.timer == timer && u.boot != nil {
				s.timer = nil
				f()
			}
		})
	})
	s.timer = timer
}

// forget calls off the operation of a unit.
func (u *Units) forget(s *state) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// begin starts a unit.
func (u *Units) begin(s *state) {
	d := u.defined[s.name]
	s.checked, s.skipped = time.Since(u.boot.began)+time.Microsecond, d.Unmet
	if d.Unmet {
		s.active, s.sub = "inactive", "dead"
		u.after(s, 0, func() { u.finish(s, "done") })
		return
	}
	s.invocation, s.result = u.h.newID(), ""
	if !strings.HasSuffix(s.name, ".service") {
		u.beginGroup(s, d)
		return
	}
	s.active, s.sub = "activating", "start"
	s.run = &Run{Unit: s.name, Invocation: fmt.Sprintf("%x", s.invocation), BootID: u.boot.id, Began: time.Now()}
	u.runs = append(u.runs, s.run)
	if run := *s.run; d.Began != nil {
		u.later = append(u.later, func() { d.Began(run) })
	}
	switch oneshot := d.kind() == "oneshot"; {
	case !d.Hangs:
		u.after(s, d.StartTakes, func() { u.started(s, d, cmp.Or(d.Result, "success")) })
	case oneshot:
		u.forget(s)
	default:
		u.after(s, startTimeout, func() { u.started(s, d, "timeout") })
	}
}

// beginGroup starts a target. It becomes active when the jobs of the units that it pulls in have ended. It does not if one
// that it requires has failed; the results of the others do not count.
func (u *Units) beginGroup(s *state, d Unit) {
	u.forget(s)
	started, left, failed := s.job, 1, false
	ended := func(required bool) func(string) {
		return func(result string) {
			failed = failed || required && result != "done"
			if left--; left > 0 || s.job != started || started == nil {
				return
			}
			u.after(s, 0, func() {
				if failed {
					u.finish(s, "dependency")
					return
				}
				s.active, s.sub = "active", "active"
				u.finish(s, "done")
			})
		}
	}
	for i, name := range slices.Concat(d.Wants, d.Requires) {
		if m := u.state(name); u.load(m) == "loaded" && m != s {
			left++
			j := u.queue("StartUnit", m)
			j.done = append(j.done, ended(i >= len(d.Wants)))
		}
	}
	ended(false)("done")
}

// started ends the start of a service.
func (u *Units) started(s *state, d Unit, result string) {
	s.result = result
	switch {
	case result != "success":
		s.active, s.sub = "failed", "failed"
	case d.kind() != "oneshot":
		s.active, s.sub = "active", "running"
	case d.RemainAfterExit:
		s.active, s.sub = "active", "exited"
	default:
		s.active, s.sub = "inactive", "dead"
	}
	u.ended(s, result)
	u.finish(s, map[bool]string{true: "done", false: "failed"}[result == "success"])
}

// end stops a unit, and starts it again if that is asked for. The signal that stops a oneshot in its start is a failure.
func (u *Units) end(s *state, again bool) {
	killed := s.run != nil && u.defined[s.name].kind() == "oneshot"
	u.ended(s, "stopped")
	s.active, s.sub = "deactivating", "stop-sigterm"
	u.after(s, u.defined[s.name].StopTakes, func() {
		s.active, s.sub = "inactive", "dead"
		switch {
		case again:
			u.begin(s)
			return
		case killed:
			s.active, s.sub, s.result = "failed", "failed", "signal"
		}
		u.finish(s, "done")
	})
}

func (u *Units) reloaded(s *state) {
	s.active, s.sub, s.reload = "active", "running", cmp.Or(u.defined[s.name].ReloadResult, "success")
	u.finish(s, map[bool]string{true: "done", false: "failed"}[s.reload == "success"])
}

// ended records the end of a run whose start was under way.
func (u *Units) ended(s *state, result string) {
	if s.run == nil {
		return
	}
	s.run.Ended, s.run.Result = time.Now(), result
	run := *s.run
	s.run = nil
	if f := u.defined[s.name].Ended; f != nil {
		u.later = append(u.later, func() { f(run) })
	}
}

// finish ends the unit's job, if it has one.
func (u *Units) finish(s *state, result string) {
	j := s.job
	if j == nil {
		return
	}
	s.job = nil
	u.emit("JobRemoved", j.id, j.path(), s.name, result)
	for _, f := range j.done {
		f(result)
	}
}
