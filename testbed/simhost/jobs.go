package simhost

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/godbus/dbus/v5"
)

const serviceIface = "org.freedesktop.systemd1.Service"

// unitFolders are the directories of unit files, in systemd's order.
var unitFolders = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"}

// jobProp is a unit's property Job: the ID (0 if there is no job) and the path.
type jobProp struct {
	ID   uint32
	Path dbus.ObjectPath
}

var noJob = jobProp{0, "/"}

func jobPath(id uint32) dbus.ObjectPath {
	return dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdPath, id))
}

// unitRun is the part of a unit that changes with its jobs. mu guards it.
type unitRun struct {
	job        jobProp
	invocation []byte // never modified in place
}

// unitObject serves a unit's properties on the bus. Package prop is not used because it would write new values into old values that are
// being sent.
type unitObject struct {
	u    *Units
	name string
}

// GetAll implements org.freedesktop.DBus.Properties.
func (o unitObject) GetAll(iface string) (map[string]dbus.Variant, *dbus.Error) {
	o.u.mu.Lock()
	defer o.u.mu.Unlock()
	run, unit := o.u.runs[o.name], o.u.units[o.name]
	if run == nil {
		return nil, dbus.MakeFailedError(errDown)
	}
	all := map[string]dbus.Variant{}
	switch iface {
	case unitIface:
		for key, value := range map[string]any{
			"Id": o.name, "Names": []string{o.name}, "FragmentPath": "", "DropInPaths": []string{},
			"LoadState": cmp.Or(unit.Load, "not-found"), "ActiveState": cmp.Or(unit.Active, "inactive"), "UnitFileState": "enabled",
			"Job": run.job, "InvocationID": run.invocation, "CanReload": true, "WantedBy": []string{}, "RequiredBy": []string{},
			"Wants": append([]string{}, unit.Wants...), "Requires": []string{}, "SubState": "", "ConditionResult": true, "ConditionTimestampMonotonic": uint64(0),
		} {
			all[key] = dbus.MakeVariant(value)
		}
	case serviceIface:
		for key, value := range map[string]any{"Type": "notify", "ExecMainStatus": int32(0), "ExecMainCode": int32(0), "NRestarts": uint32(0), "Result": "success", "ReloadResult": "success"} {
			all[key] = dbus.MakeVariant(value)
		}
	}
	return all, nil
}

// Get implements org.freedesktop.DBus.Properties.
func (o unitObject) Get(iface, property string) (dbus.Variant, *dbus.Error) {
	all, err := o.GetAll(iface)
	value, there := all[property]
	if err == nil && !there {
		err = dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{"Unknown property " + property + "."})
	}
	return value, err
}

// Jobs returns the jobs that were requested from systemd, over all boots and in order: "Reload" is a daemon-reload; the
// others are the method and its unit, such as "TryRestartUnit app.service".
func (u *Units) Jobs() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.jobs)
}

// HoldJobs keeps the jobs of units that start from now on running until release is called or the boot ends. Without it a job finishes at
// once. A second call replaces the first.
func (u *Units) HoldJobs() (release func()) {
	held := make(chan struct{})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held = held
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.held == held {
			u.held = nil
			close(held)
		}
	}
}

// jobMethods are the methods of systemd that start jobs or reload it.
func (u *Units) jobMethods() map[string]any {
	methods := map[string]any{
		"Reload": u.daemonReload,
		// lockkeeper has no unit here: it runs as if a user had started it.
		"GetUnitByPID": func(uint32) (dbus.ObjectPath, *dbus.Error) {
			return "/", dbus.NewError("org.freedesktop.systemd1.NoUnitForPID", []any{"PID does not belong to any loaded unit."})
		},
	}
	for _, method := range []string{"ReloadUnit", "RestartUnit", "TryRestartUnit", "StartUnit", "StopUnit"} {
		methods[method] = func(name, _ string) (dbus.ObjectPath, *dbus.Error) { return u.queue(method, name) }
	}
	methods["ListUnitsByNames"] = u.listUnits
	return methods
}

// unitRow is one entry of systemd's list of units.
type unitRow struct {
	Name, Description, Load, Active, Sub, Following string
	Path                                            dbus.ObjectPath
	JobID                                           uint32
	JobType                                         string
	JobPath                                         dbus.ObjectPath
}

// listUnits returns the units with these names.
func (u *Units) listUnits(names []string) ([]unitRow, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rows := make([]unitRow, 0, len(names))
	for _, name := range names {
		unit := u.units[name]
		rows = append(rows, unitRow{Name: name, Load: cmp.Or(unit.Load, "not-found"), Active: cmp.Or(unit.Active, "inactive"), Path: unitPath(name), JobPath: "/"})
	}
	return rows, nil
}

// daemonReload sends the signals for the start and the end of a reload.
func (u *Units) daemonReload() *dbus.Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil {
		return dbus.MakeFailedError(errDown)
	}
	u.jobs = append(u.jobs, "Reload")
	for _, begins := range []bool{true, false} {
		if err := u.conn.Emit(systemdPath, systemdIface+".Reloading", begins); err != nil {
			return dbus.MakeFailedError(err)
		}
	}
	return nil
}

// queue starts a job for a unit.
func (u *Units) queue(method, name string) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.h.current()
	if u.conn == nil || b == nil {
		return "/", dbus.MakeFailedError(errDown)
	}
	run := u.runs[name]
	if run == nil || u.units[name].Load != "loaded" {
		return "/", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not found."})
	}
	u.jobs = append(u.jobs, method+" "+name)
	u.job++
	job, conn, held := jobProp{u.job, jobPath(u.job)}, u.conn, u.held
	run.job = job
	b.task(func() {
		if held != nil {
			select {
			case <-held:
			case <-b.ctx.Done():
				return
			}
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.conn == conn { // otherwise the job ended with its systemd
			u.done(run, job, method, name)
		}
	})
	return job.Path, nil
}

// done ends a job. The caller must hold mu.
func (u *Units) done(run *unitRun, job jobProp, method, name string) {
	if method != "ReloadUnit" {
		run.invocation = newInvocation()
	}
	if method == "StartUnit" {
		for _, wanted := range u.units[name].Wants {
			if r := u.runs[wanted]; r != nil {
				r.invocation = newInvocation()
			}
		}
	}
	run.job = noJob
	if err := u.conn.Emit(systemdPath, systemdIface+".JobRemoved", job.ID, job.Path, name, "done"); err != nil {
		u.h.logf("sending the end of job %d: %v", job.ID, err)
	}
}

func newInvocation() []byte {
	id := make([]byte, 16)
	rand.Read(id) // never fails
	return id
}
