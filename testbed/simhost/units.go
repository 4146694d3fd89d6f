package simhost

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

// systemd as it is on the bus.
const (
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
)

// Unit is how one unit stands: Load is LoadState ("loaded", "masked"; "" is "not-found"), Active is ActiveState ("" is
// "inactive").
type Unit struct{ Load, Active string }

// Units are a host's stand-in for systemd, which tells how units stand and runs none. A host has one from the first
// [Units.Set] on, over all its boots; what is set lasts until it is set anew. Its methods may be called by several
// goroutines.
type Units struct {
	h *Host

	mu    sync.Mutex
	units map[string]Unit
	conn  *dbus.Conn // nil while it does not run
	props map[string]*prop.Properties
	job   uint32
}

// Set says how a unit stands from now on, and tells whoever listens that a job has ended.
func (u *Units) Set(name string, unit Unit) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.units == nil {
		u.units = map[string]Unit{}
	}
	u.units[name] = unit
	b := u.h.current()
	if b == nil {
		return nil // it comes with the next boot
	}
	if u.conn == nil {
		return u.startLocked(b)
	}
	if p := u.props[name]; p != nil {
		p.SetMust(unitIface, "LoadState", cmp.Or(unit.Load, "not-found"))
		p.SetMust(unitIface, "ActiveState", cmp.Or(unit.Active, "inactive"))
	} else if err := u.export(name); err != nil {
		return err
	}
	u.job++
	job := dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdPath, u.job))
	return u.conn.Emit(systemdPath, systemdIface+".JobRemoved", u.job, job, name, "done")
}

// start starts it with a boot or a bus, if the host has one.
func (u *Units) start(b *boot) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.units == nil || u.conn != nil {
		return nil
	}
	return u.startLocked(b)
}

func (u *Units) startLocked(b *boot) error {
	conn, err := b.theBus().connect()
	if err != nil {
		return fmt.Errorf("starting systemd's stand-in: %w", err)
	}
	u.conn, u.props = conn, map[string]*prop.Properties{}
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
	err = conn.ExportMethodTable(map[string]any{
		"LoadUnit":    u.loadUnit,
		"ListJobs":    func() ([]job, *dbus.Error) { return []job{}, nil },
		"Subscribe":   func() *dbus.Error { return nil },
		"Unsubscribe": func() *dbus.Error { return nil },
	}, systemdPath, systemdIface)
	if err == nil {
		_, err = prop.Export(conn, systemdPath, prop.Map{systemdIface: {"SystemState": {Value: "running", Emit: prop.EmitFalse}}})
	}
	if err == nil {
		err = own(conn, systemdName)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// export puts a unit on the bus.
func (u *Units) export(name string) error {
	type job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	unit := u.units[name]
	value := func(v any) *prop.Prop { return &prop.Prop{Value: v, Emit: prop.EmitFalse} }
	p, err := prop.Export(u.conn, unitPath(name), prop.Map{unitIface: {
		"LoadState": value(cmp.Or(unit.Load, "not-found")), "ActiveState": value(cmp.Or(unit.Active, "inactive")),
		"Job": value(job{0, "/"}), "WantedBy": value([]string{}), "RequiredBy": value([]string{}),
	}})
	if err != nil {
		return fmt.Errorf("exporting unit %s: %w", name, err)
	}
	u.props[name] = p
	return nil
}

// loadUnit finds every unit, as the real one does: one without a file is there as not-found.
func (u *Units) loadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil {
		return "/", dbus.MakeFailedError(errDown)
	}
	if u.props[name] == nil {
		if err := u.export(name); err != nil {
			return "/", dbus.MakeFailedError(err)
		}
	}
	return unitPath(name), nil
}

// stop takes it off the bus.
func (u *Units) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		drop(u.conn, systemdName)
		u.conn = nil
	}
}

func unitPath(name string) dbus.ObjectPath {
	return systemdPath + "/unit/_" + dbus.ObjectPath(fmt.Sprintf("%x", name))
}
