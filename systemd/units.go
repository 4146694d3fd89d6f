package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	managerName  = "org.freedesktop.systemd1"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
	serviceIface = "org.freedesktop.systemd1.Service"

	jobRemoved = managerIface + ".JobRemoved"

	// signalPoll is how often WatchJobs, WatchReloads and WatchShutdown call without a signal.
	signalPoll = 5 * time.Minute
)

// Units asks systemd (org.freedesktop.systemd1) about units, and manages them. Its methods may be called from any goroutine.
// Each D-Bus call takes at most 10 s. Errors match [ErrAbsent] where systemd is not on the bus. The zero value uses the
// system bus.
type Units struct{ Bus *Bus }

func (u Units) manager() Object { return u.Bus.Object(managerName, managerPath) }

// unit is what systemd reports about a unit: the properties of the interface Unit under their own names.
type unit struct {
	Id                                              string
	Names                                           []string
	LoadState, ActiveState, SubState, UnitFileState string
	LoadError                                       struct{ Name, Text string }
	Job                                             struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	InvocationID                          []byte // of its last run; empty if it never ran
	CanReload                             bool
	ConditionResult                       bool   // its conditions held when they were last checked
	ConditionTimestampMonotonic           uint64 // when that was, in µs
	Wants, Requires, WantedBy, RequiredBy []string
	FragmentPath                          string
	DropInPaths                           []string
	service                               service
}

// service is what systemd reports about a service in addition: the properties of the interface Service. It is zero for other
// types of units.
type service struct {
	Type, StatusText     string
	Result, ReloadResult string // "success", "exit-code", "timeout" and so on
	NRestarts            uint32 // by systemd itself, since the service was last started
	ExecMainCode         int32  // how the main process ended: CLD_EXITED and so on
	ExecMainStatus       int32  // its exit status or signal

	ExecCondition, ExecStartPre, ExecStart, ExecStartPost, ExecReload []command
}

// command is a command of a service, and how its last process ended.
type command struct {
	Path                                 string
	Argv                                 []string
	IgnoreFailure                        bool
	Start, StartMono, Exited, ExitedMono uint64
	PID                                  uint32
	Code, Status                         int32
}

// unit reads a unit. systemd loads it for that, so that an inactive unit has its properties too.
func (u Units) unit(ctx context.Context, name string) (unit, error) {
	var at dbus.ObjectPath
	if err := u.manager().call(ctx, managerIface+".LoadUnit", []any{name}, &at); err != nil {
		return unit{}, fmt.Errorf("looking for unit %q: %w", name, err)
	}
	p, err := u.unitAt(ctx, at)
	if err != nil {
		return unit{}, fmt.Errorf("reading unit %q: %w", name, err)
	}
	return p, nil
}

func (u Units) unitAt(ctx context.Context, at dbus.ObjectPath) (unit, error) {
	if !at.IsValid() {
		return unit{}, fmt.Errorf("systemd answered with the invalid path %q", v1alpha1.OneLine(string(at), maxText))
	}
	object := u.Bus.Object(managerName, at)
	p := unit{ConditionResult: true}
	err := object.properties(ctx, unitIface, &p)
	if err == nil && (p.Id == "" || p.LoadState == "" || p.ActiveState == "") {
		err = errors.New("systemd answered without Id, LoadState or ActiveState")
	}
	if err == nil && strings.HasSuffix(p.Id, ".service") {
		err = object.properties(ctx, serviceIface, &p.service)
	}
	return p, err
}

// invocation names a unit's run that is under way, or its last one; "" if it never ran.
func (p *unit) invocation() string { return fmt.Sprintf("%x", p.InvocationID) }

// changing reports whether a unit is between two states, or has a job.
func (p *unit) changing() bool {
	return p.Job.ID != 0 || p.ActiveState == "activating" || p.ActiveState == "reloading" || p.ActiveState == "deactivating"
}

// unmet reports whether the unit was not started since before because its conditions did not hold. To systemd, such a job is
// done, and the unit stays in the state that its last run left.
func (p *unit) unmet(before *unit) bool {
	return !p.ConditionResult && p.ConditionTimestampMonotonic != before.ConditionTimestampMonotonic && p.invocation() == before.invocation()
}

// stopped reports whether a unit is at rest and not active.
func (p *unit) stopped() bool { return p.ActiveState == "inactive" || p.ActiveState == "failed" }

// startsAgain reports whether a service has failed, and waits until systemd starts it again (Restart=). From systemd 254 on, a
// second state precedes the start, auto-restart-queued.
func (p *unit) startsAgain() bool {
	return p.ActiveState == "activating" && strings.HasPrefix(p.SubState, "auto-restart")
}

// failure returns in systemd's terms why a unit's last start, or its last reload, failed: the result, the command if it is
// known, and how that ended.
func (p *unit) failure(reload bool) string {
	s := &p.service
	result := s.Result
	ran := []struct {
		property string
		commands []command
	}{
		{"ExecCondition=", s.ExecCondition}, {"ExecStartPre=", s.ExecStartPre}, {"ExecStart=", s.ExecStart}, {"ExecStartPost=", s.ExecStartPost},
		{"", []command{{Code: s.ExecMainCode, Status: s.ExecMainStatus}}}, // a main process that no command started itself
	}
	if reload {
		result, ran = s.ReloadResult, ran[:1]
		ran[0].property, ran[0].commands = "ExecReload=", s.ExecReload
	}
	result = v1alpha1.OneLine(result, maxText)
	switch result {
	case "", "success":
		return p.ActiveState
	case "exit-code", "signal", "core-dump":
	default:
		return result
	}
	for _, of := range ran {
		for _, c := range of.commands {
			if how := c.failure(); how != "" {
				return result + ", " + of.property + c.name() + how
			}
		}
	}
	return result
}

// name returns the name of a command's program, with a space; "" if the command is not known.
func (c *command) name() string {
	if c.Path == "" {
		return ""
	}
	return v1alpha1.OneLine(path.Base(c.Path), maxText/4) + " "
}

// failure returns how a command failed, "" if it did not.
func (c *command) failure() string {
	const exited = 1 // CLD_EXITED
	switch {
	case c.IgnoreFailure || c.Status == 0 || c.Code == 0:
		return ""
	case c.Code == exited:
		return fmt.Sprintf("status %d", c.Status)
	}
	return fmt.Sprintf("signal %d", c.Status)
}

// ActiveState returns a unit's state in systemd's terms ("active", "inactive", "failed", "activating", "deactivating",
// "reloading", "maintenance"), and whether the unit is loaded: a unit without a file, a masked one and one with a broken file
// are not.
func (u Units) ActiveState(ctx context.Context, name string) (state string, loaded bool, err error) {
	p, err := u.unit(ctx, name)
	return v1alpha1.OneLine(p.ActiveState, maxText), p.LoadState == "loaded", err
}

// Gone reports whether a unit is gone for good: masked or without a file, and not running any more. A unit that was only
// stopped, or that failed, may come back and is not gone.
func (u Units) Gone(ctx context.Context, name string) (bool, error) {
	p, err := u.unit(ctx, name)
	return (p.LoadState == "masked" || p.LoadState == "not-found") && p.stopped(), err
}

// Running returns those of the units that are neither inactive nor failed: they are active, or start, reload or stop. A service
// that waits for its restart runs. A unit that does not exist does not run.
func (u Units) Running(ctx context.Context, names []string) ([]string, error) {
	rows, err := u.list(ctx, names)
	if err != nil {
		return nil, err
	}
	if len(rows) != len(names) {
		return nil, fmt.Errorf("listing units: systemd answered with %d units, expected %d", len(rows), len(names))
	}
	var running []string
	for i, name := range names { // a row has the unit's own name, and name may be another one of it
		switch rows[i].ActiveState {
		case "":
			return nil, fmt.Errorf("listing units: systemd answered without the state of %q", name)
		case "inactive", "failed":
		default:
			running = append(running, name)
		}
	}
	return running, nil
}

// Invocation returns the ID of the unit's run that is under way, or of its last one; "" if it never ran.
func (u Units) Invocation(ctx context.Context, name string) (string, error) {
	p, err := u.unit(ctx, name)
	return p.invocation(), err
}

// Own returns all names of the unit that this process belongs to, and the ID of its present run. There are no names if the
// process belongs to no unit, for example because a user started it.
func (u Units) Own(ctx context.Context) (names []string, invocation string, err error) {
	var at dbus.ObjectPath
	err = u.manager().call(ctx, managerIface+".GetUnitByPID", []any{uint32(0)}, &at) // 0 is the caller
	if answeredWith(err, managerName+".NoUnitForPID") {
		return nil, "", nil
	}
	var p unit
	if err == nil {
		p, err = u.unitAt(ctx, at)
	}
	if err != nil {
		return nil, "", fmt.Errorf("looking for the unit of this process: %w", err)
	}
	return p.Names, p.invocation(), nil
}

// list lists units by their names, and loads them for that.
func (u Units) list(ctx context.Context, names []string) (rows []sd.UnitStatus, err error) {
	if err := u.manager().call(ctx, managerIface+".ListUnitsByNames", []any{names}, &rows); err != nil {
		return nil, fmt.Errorf("listing units: %w", err)
	}
	return rows, nil
}

// WatchJobs calls f after a job of one of the units has ended: the unit was started, stopped or restarted. It also calls f at
// the start, after errors, and at least every 5 minutes. A unit that ends by itself has no job. f must not block. WatchJobs returns
// the cause of ctx's end.
func (u Units) WatchJobs(ctx context.Context, units []string, f func()) error {
	return u.watch(ctx, jobRemoved, jobOf(units...), signalPoll, func(context.Context) { f() })
}

// jobOf returns a filter for the JobRemoved signals about some units.
func jobOf(units ...string) func(body []any) bool {
	return func(body []any) bool {
		if len(body) != 4 {
			return false
		}
		unit, ok := body[2].(string)
		return ok && slices.Contains(units, unit)
	}
}

// WatchReloads calls f when systemd has read its unit files again (daemon-reload, systemctl enable), at the start, after
// errors, and at least every 5 minutes. It returns the cause of ctx's end.
func (u Units) WatchReloads(ctx context.Context, f func(context.Context)) error {
	return u.watch(ctx, managerIface+".Reloading", nil, signalPoll, f)
}

// watch calls f as [Object.Watch] calls its function, and has systemd send its signals.
func (u Units) watch(ctx context.Context, signal string, filter func(body []any) bool, interval time.Duration, f func(context.Context)) error {
	return u.manager().watch(ctx, signal, filter, interval, func(ctx context.Context) error {
		err := u.subscribe(ctx)
		f(ctx)
		return err
	})
}

// subscribe has systemd send signals on the present connection. It sends none without that.
func (u Units) subscribe(ctx context.Context) error {
	err := u.manager().call(ctx, managerIface+".Subscribe", nil)
	if err != nil && !answeredWith(err, managerName+".AlreadySubscribed") {
		return fmt.Errorf("subscribing to systemd's signals: %w", err)
	}
	return nil
}

// BootIncomplete returns why boot-complete.target is not reached: "pending" or "failed". It returns "" if the target is
// reached, or if it will not be: systemd ships it everywhere, but reaches it only if a unit pulls it in (boot counting,
// greenboot, health-checker). A target that is inactive, has no job and is wanted by no unit counts as missing. While systemd is
// not on the bus, as right after a restart of the bus, it returns an error.
func (u Units) BootIncomplete(ctx context.Context) (why string, err error) {
	const pending, failed = "pending", "failed"
	p, err := u.unit(ctx, "boot-complete.target")
	switch {
	case err != nil:
		return "", err
	case p.ActiveState == "active" || p.LoadState != "loaded":
		return "", nil
	case p.Job.ID != 0 || p.ActiveState == "activating":
		return pending, nil
	case p.ActiveState == "failed":
		return failed, nil
	case len(p.WantedBy)+len(p.RequiredBy) == 0:
		return "", nil
	}
	// The target is pulled in and has no job: its job is not queued yet, or has failed.
	var state string
	if err := u.manager().property(ctx, managerIface, "SystemState", &state); err != nil {
		return "", err
	}
	if state == "initializing" || state == "starting" {
		return pending, nil
	}
	return failed, nil
}
