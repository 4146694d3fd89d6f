package simhost

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// Names of systemd on the bus.
const (
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
)

// Unit is the state of one unit: Load is LoadState ("loaded", "masked"; "" means "not-found"), Active is ActiveState ("" means "inactive"),
// and Wants are the units that it wants.
type Unit struct {
	Load, Active string
	Wants        []string
}

// Units is the simulated systemd of a host. It reports the states of units but does not run them. A reload or restart
// of a unit creates a job, which succeeds; a restart also gives the unit a new invocation ID, and a start also those that
// it wants; see [Units.Jobs]. A host has a systemd from the first [Units.Set] on, over all its boots. A state stays
// until it is set again. The methods are safe for concurrent use.
type Units struct {
	h *Host

	mu    sync.Mutex
	units map[string]Unit
	conn  *dbus.Conn // nil while systemd does not run
	runs  map[string]*unitRun
	job   uint32        // the ID of the last job
	jobs  []string      // requested jobs
	held  chan struct{} // jobs continue until it is closed; nil: jobs finish at once
}

// Set sets the state of a unit, and sends the signal of a finished job.
func (u *Units) Set(name string, unit Unit) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.units == nil {
		u.units = map[string]Unit{}
	}
	u.units[name] = unit
	b := u.h.current()
	if b == nil {
		return nil // the next boot exports it
	}
	if u.conn == nil {
		return u.startLocked(b)
	}
	if err := u.export(name); err != nil {
		return err
	}
	u.job++
	return u.conn.Emit(systemdPath, systemdIface+".JobRemoved", u.job, jobPath(u.job), name, "done")
}

// start starts systemd with a boot or a bus.
func (u *Units) start(b *boot) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		return nil
	}
	return u.startLocked(b)
}

func (u *Units) startLocked(b *boot) error {
	conn, err := b.theBus().connect()
	if err != nil {
		return fmt.Errorf("starting systemd's stand-in: %w", err)
	}
	u.conn, u.runs = conn, map[string]*unitRun{}
	fail := func(err error) error {
		conn.Close()
		u.conn = nil
		return fmt.Errorf("starting systemd's stand-in: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(u.units)) {
		if err := u.export(name); err != nil {
			return fail(err)
		}
	}
	type job struct {
		ID                uint32
		Unit, Type, State string
		Path, UnitPath    dbus.ObjectPath
	}
	methods := u.jobMethods()
	methods["LoadUnit"] = u.loadUnit
	methods["ListJobs"] = func() ([]job, *dbus.Error) { return []job{}, nil }
	methods["Subscribe"] = func() *dbus.Error { return nil }
	methods["Unsubscribe"] = func() *dbus.Error { return nil }
	err = conn.ExportMethodTable(methods, systemdPath, systemdIface)
	if err == nil {
		_, err = prop.Export(conn, systemdPath, prop.Map{systemdIface: {
			"SystemState": {Value: "running", Emit: prop.EmitFalse}, "UnitPath": {Value: unitFolders, Emit: prop.EmitFalse},
		}})
	}
	if err == nil {
		err = engine.Own(conn, systemdName)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// export exports a unit on the bus unless it is exported already.
func (u *Units) export(name string) error {
	if u.runs[name] != nil {
		return nil
	}
	if err := u.conn.Export(unitObject{u, name}, unitPath(name), "org.freedesktop.DBus.Properties"); err != nil {
		return fmt.Errorf("exporting unit %s: %w", name, err)
	}
	u.runs[name] = &unitRun{job: noJob, invocation: newInvocation()}
	return nil
}

// loadUnit accepts every name, as the real systemd does: a unit without a file has the LoadState not-found.
func (u *Units) loadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil {
		return "/", dbus.MakeFailedError(errDown)
	}
	if err := u.export(name); err != nil {
		return "/", dbus.MakeFailedError(err)
	}
	return unitPath(name), nil
}

// stop removes systemd from the bus.
func (u *Units) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		engine.Drop(u.conn, systemdName)
		u.conn = nil
	}
}

func unitPath(name string) dbus.ObjectPath {
	return systemdPath + "/unit/_" + dbus.ObjectPath(fmt.Sprintf("%x", name))
}
