package systemd

import (
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"
)

const (
	managerName  = "org.freedesktop.systemd1"
	managerIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
)

// manager is PID 1.
var manager = target{service: managerName, path: "/org/freedesktop/systemd1"}

// Units asks systemd (org.freedesktop.systemd1) about units. Its methods may be called from any goroutine; each
// D-Bus call is bounded by 10 s. The zero value asks the system bus.
type Units struct{ Bus *Bus }

func (u Units) bus() *Bus {
	if u.Bus == nil {
		return systemBus
	}
	return u.Bus
}

// ActiveState gives a unit's state as systemd names it ("active", "inactive", "failed", "activating", "deactivating",
// "reloading", "maintenance"), and whether there is such a unit at all: loaded is false for one without a file, a
// masked one and one whose file is broken. The error matches ErrAbsent where systemd is not on the bus.
func (u Units) ActiveState(ctx context.Context, unit string) (state string, loaded bool, err error) {
	props, err := u.properties(ctx, unit)
	if err != nil {
		return "", false, err
	}
	return props.active, props.load == "loaded", nil
}

type unitProps struct {
	load, active string
	job          uint32   // id of the queued or running job, 0 if none
	pulledIn     bool     // another loaded unit wants or requires it
	wants        []string // what it wants or requires itself
}

// properties loads the unit first: one that is not active may well not be in memory, which says nothing about it.
func (u Units) properties(ctx context.Context, unit string) (unitProps, error) {
	_, all, err := u.all(ctx, unit, unitIface)
	if err != nil {
		return unitProps{}, err
	}
	p, err := readProps(all)
	if err != nil {
		return unitProps{}, fmt.Errorf("reading unit %q: %w", unit, err)
	}
	return p, nil
}

// all reads all properties that a unit has under an interface.
func (u Units) all(ctx context.Context, unit, iface string) (object target, all map[string]dbus.Variant, err error) {
	body, err := u.bus().call(ctx, manager, managerIface+".LoadUnit", unit)
	var path dbus.ObjectPath
	if err == nil {
		err = dbus.Store(body, &path)
	}
	if err == nil && !path.IsValid() {
		err = fmt.Errorf("path %q is none", printable(string(path), maxText))
	}
	if err != nil {
		return object, nil, fmt.Errorf("looking for unit %q: %w", unit, err)
	}
	object = target{service: managerName, path: path}
	if all, err = u.props(ctx, object, iface); err != nil {
		return object, nil, fmt.Errorf("reading unit %q: %w", unit, err)
	}
	return object, all, nil
}

// props reads all properties that an object has under an interface.
func (u Units) props(ctx context.Context, object target, iface string) (all map[string]dbus.Variant, err error) {
	body, err := u.bus().call(ctx, object, dbusName+".Properties.GetAll", iface)
	if err == nil {
		err = dbus.Store(body, &all)
	}
	return all, err
}

// store puts those of the properties that are there where they are wanted.
func store(all map[string]dbus.Variant, wanted map[string]any) error {
	for name, to := range wanted {
		if v, ok := all[name]; ok {
			if err := v.Store(to); err != nil {
				return fmt.Errorf("property %s: %w", name, err)
			}
		}
	}
	return nil
}

func readProps(all map[string]dbus.Variant) (unitProps, error) {
	var p unitProps
	for name, to := range map[string]*string{"LoadState": &p.load, "ActiveState": &p.active} {
		v, ok := all[name]
		if !ok {
			return p, fmt.Errorf("no property %s", name)
		}
		if err := v.Store(to); err != nil {
			return p, fmt.Errorf("property %s: %w", name, err)
		}
		*to = printable(*to, maxText)
	}
	var job struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	if v, ok := all["Job"]; ok {
		if err := v.Store(&job); err != nil {
			return p, fmt.Errorf("property Job: %w", err)
		}
		p.job = job.ID
	}
	for _, name := range []string{"WantedBy", "RequiredBy"} {
		var by []string
		if v, ok := all[name]; ok && v.Store(&by) == nil && len(by) > 0 {
			p.pulledIn = true
		}
	}
	for _, name := range []string{"Wants", "Requires"} {
		var units []string
		if v, ok := all[name]; ok {
			if err := v.Store(&units); err != nil {
				return p, fmt.Errorf("property %s: %w", name, err)
			}
		}
		p.wants = append(p.wants, units...)
	}
	return p, nil
}

// BootStatus is what boot-complete.target says about this boot.
type BootStatus int

// The boot statuses.
const (
	// BootUnknown goes with an error.
	BootUnknown BootStatus = iota
	// BootNoTarget: there is no such target, or nothing on this host pulls it in, or no systemd on the bus.
	BootNoTarget
	// BootPending: the target has not been reached yet.
	BootPending
	// BootComplete: it has been reached.
	BootComplete
	// BootFailed: it was to be reached and will not be: something it requires has failed.
	BootFailed
)

// String gives the status in lower case.
func (s BootStatus) String() string {
	switch s {
	case BootUnknown:
		return "unknown"
	case BootNoTarget:
		return "no target"
	case BootPending:
		return "pending"
	case BootComplete:
		return "complete"
	case BootFailed:
		return "failed"
	}
	return fmt.Sprintf("boot status(%d)", int(s))
}

// BootComplete asks after boot-complete.target. systemd ships that target everywhere and reaches it only where
// something wants to know (boot counting, greenboot, health-checker): a target that is inactive, without a job and
// wanted by nobody would be waited for in vain, and counts as none.
func (u Units) BootComplete(ctx context.Context) (BootStatus, error) {
	p, err := u.properties(ctx, "boot-complete.target")
	switch {
	case errors.Is(err, ErrAbsent):
		return BootNoTarget, nil
	case err != nil:
		return BootUnknown, err
	case p.active == "active":
		return BootComplete, nil
	case p.load != "loaded":
		return BootNoTarget, nil
	case p.job != 0 || p.active == "activating":
		return BootPending, nil
	case p.active == "failed":
		return BootFailed, nil
	case !p.pulledIn:
		return BootNoTarget, nil
	}
	// Pulled in, not reached, no job: either the transaction of this boot is not queued yet, or it is over.
	var state string
	if err := u.bus().property(ctx, manager, managerIface, "SystemState", &state); err != nil {
		return BootUnknown, err
	}
	if state == "initializing" || state == "starting" {
		return BootPending, nil
	}
	return BootFailed, nil
}
