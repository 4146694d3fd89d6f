package memhost

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// Names of systemd on the bus.
const (
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdIface = "org.freedesktop.systemd1.Manager"
	serviceIface = "org.freedesktop.systemd1.Service"
)

// Unit is the definition of a unit, as its files have it. The zero value is a loaded unit whose starts succeed at once.
type Unit struct {
	Load                        string   // LoadState; "" is "loaded"
	Active                      string   // ActiveState at the start of a boot; "" is "inactive"
	File                        string   // UnitFileState; "" is "enabled"
	Names                       []string // aliases
	Wants, Requires, RequiredBy []string

	// Type of a service; "" is "oneshot". A oneshot is active only with RemainAfterExit.
	Type            string
	RemainAfterExit bool

	// How long the operations of a service take. Each takes at least a millisecond.
	StartTakes, StopTakes, ReloadTakes time.Duration
	// Result of each start: "" is "success"; for example "exit-code", with an exit status of 1.
	Result string
	// ReloadResult of each reload: "" is "success".
	ReloadResult string
	// Hangs: a start does not end by itself. The start of a service that is not a oneshot fails after 90 s with "timeout".
	Hangs bool
	// Unmet: the unit's conditions do not hold, so a start skips it.
	Unmet bool
	// Began and Ended, if set, are called when a service's run begins, and when its start is over or was cut off. They must not
	// block.
	Began, Ended func(Run)
}

// Run is one run of a service: from its start until it is inactive, or active.
type Run struct {
	Unit       string
	Invocation string // hexadecimal
	BootID     string
	Began      time.Time
	Ended      time.Time // zero while the start runs
	// Result is "" while the start runs, "success", the definition's result, "stopped" if the unit was stopped before, or
	// "power-loss".
	Result string
}

// Units is the host's systemd over all boots. A definition stays until it is set again, and a boot begins with no unit started. Its
// methods are safe for concurrent use.
type Units struct {
	h *Host

	mu           sync.Mutex
	defined      map[string]Unit
	own          string // the unit of processes that ask; "" is none
	systemState  string
	boot         *boot
	conn         *dbus.Conn // nil while systemd is not on the bus
	subscribed   map[dbus.Sender]bool
	states       map[string]*state
	shuttingDown bool
	lastJob      uint32
	jobs         []string // requested
	runs         []*Run
	later        []func() // to call without mu
}

func newUnits(h *Host) *Units {
	return &Units{h: h, defined: map[string]Unit{}, states: map[string]*state{}, systemState: "running"}
}

// Set defines a unit. If the host runs and Active is set, the unit gets that state, unless it has a job.
func (u *Units) Set(name string, unit Unit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	unit.Load = cmp.Or(unit.Load, "loaded")
	u.defined[name] = unit
	if s := u.states[name]; s != nil && s.job == nil && unit.Active != "" {
		s.active = unit.Active
	}
}

// Change changes the definition of a unit, if there is one. The state of the unit stays, but a start that hangs continues if the definition no
// longer has it hang.
func (u *Units) Change(name string, change func(*Unit)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	d, defined := u.defined[name]
	if !defined {
		return
	}
	hung := d.Hangs
	change(&d)
	u.defined[name] = d
	if s := u.states[name]; s != nil && s.run != nil && hung && !d.Hangs {
		u.after(s, d.StartTakes, func() { u.started(s, d, cmp.Or(d.Result, "success")) })
	}
}

// Remove removes a unit's definition: its LoadState is not-found.
func (u *Units) Remove(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.defined, name)
}

// SetState sets ActiveState and SubState of a unit in the present boot, as if it had ended or failed by itself, without a job.
func (u *Units) SetState(name, active, sub string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.state(name)
	s.active, s.sub = active, sub
}

// SetOwn sets the unit that processes on this host belong to; "" is none.
func (u *Units) SetOwn(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.own = name
}

// SetSystemState sets systemd's property SystemState; it is "running" at first.
func (u *Units) SetSystemState(state string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.systemState = state
}

// Jobs returns the jobs that were requested over all boots, in order: "Reload" is a daemon-reload; the others are the method
// and its unit, such as "StartUnit a.target". Jobs that systemd queues itself are not in it.
func (u *Units) Jobs() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.jobs)
}

// Runs returns the runs of all services over all boots, in the order of their starts.
func (u *Units) Runs() []Run {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]Run, 0, len(u.runs))
	for _, r := range u.runs {
		all = append(all, *r)
	}
	return all
}

// ActiveState returns a unit's state in the present boot.
func (u *Units) ActiveState(name string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state(name).active
}

// reset begins the states of a new boot.
func (u *Units) reset(b *boot) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.boot, u.states, u.shuttingDown = b, map[string]*state{}, false
}

// powerLost ends the runs of a boot.
func (u *Units) powerLost() {
	u.locked(func() {
		for _, name := range slices.Sorted(maps.Keys(u.states)) {
			s := u.states[name]
			u.forget(s)
			u.ended(s, "power-loss")
		}
		u.boot = nil
	})
}

// setShuttingDown queues or cancels the job of reboot.target.
func (u *Units) setShuttingDown(on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shuttingDown = on
}

// locked calls f with mu held, and then what f has left for later.
func (u *Units) locked(f func()) {
	u.mu.Lock()
	f()
	later := u.later
	u.later = nil
	u.mu.Unlock()
	for _, f := range later {
		f()
	}
}

// start puts systemd on the boot's bus.
func (u *Units) start(b *boot) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		return nil
	}
	conn, err := b.theBus().Connect()
	if err != nil {
		return fmt.Errorf("starting systemd: %w", err)
	}
	methods := map[string]any{
		"LoadUnit": u.loadUnit, "ListJobs": u.listJobs, "ListUnitsByNames": u.listUnits, "Reload": u.daemonReload,
		"Subscribe": u.subscribe, "Unsubscribe": func() *dbus.Error { return nil }, "GetUnitByPID": u.unitByPID,
	}
	for _, method := range []string{"StartUnit", "StopUnit", "RestartUnit", "TryRestartUnit", "ReloadUnit"} {
		methods[method] = func(name, _ string) (dbus.ObjectPath, *dbus.Error) { return u.request(method, name) }
	}
	err = conn.ExportMethodTable(methods, systemdPath, systemdIface)
	if err == nil {
		err = objects{u.properties}.export(conn, systemdPath)
	}
	if err == nil {
		err = engine.Own(conn, systemdName)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("starting systemd: %w", err)
	}
	u.conn, u.subscribed = conn, map[dbus.Sender]bool{}
	return nil
}

// stop takes systemd off the bus. Its jobs continue.
func (u *Units) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		engine.Drop(u.conn, systemdName)
		u.conn = nil
	}
}

// emit sends a signal of systemd, if a client has subscribed.
func (u *Units) emit(signal string, values ...any) {
	if u.conn != nil && len(u.subscribed) > 0 {
		_ = u.conn.Emit(systemdPath, systemdIface+"."+signal, values...) // fails only without a bus
	}
}

func (u *Units) subscribe(sender dbus.Sender) *dbus.Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.subscribed[sender] {
		return dbus.NewError(systemdName+".AlreadySubscribed", []any{"Client is already subscribed."})
	}
	u.subscribed[sender] = true
	return nil
}

// loadUnit accepts every name, as the real systemd does: a unit without a file has the LoadState not-found.
func (u *Units) loadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	if !strings.Contains(name, ".") {
		return "/", dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"Unit name " + name + " is not valid."})
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return unitPath(u.state(name).name), nil
}

func (u *Units) unitByPID(uint32) (dbus.ObjectPath, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == "" {
		return "/", dbus.NewError(systemdName+".NoUnitForPID", []any{"PID does not belong to any loaded unit."})
	}
	return unitPath(u.state(u.own).name), nil
}

// daemonReload sends the signals for the start and the end of a reload.
func (u *Units) daemonReload() *dbus.Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.jobs = append(u.jobs, "Reload")
	u.emit("Reloading", true)
	u.emit("Reloading", false)
	return nil
}

// unitRow is one entry of systemd's list of units.
type unitRow struct {
	Name, Description, Load, Active, Sub, Following string
	Path                                            dbus.ObjectPath
	JobID                                           uint32
	JobType                                         string
	JobPath                                         dbus.ObjectPath
}

func (u *Units) listUnits(names []string) ([]unitRow, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rows := make([]unitRow, 0, len(names))
	for _, name := range names {
		s := u.state(name)
		row := unitRow{Name: s.name, Load: u.load(s), Active: s.active, Sub: s.sub, Path: unitPath(s.name), JobPath: "/"}
		if s.job != nil {
			row.JobID, row.JobType, row.JobPath = s.job.id, s.job.kind, s.job.path()
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// jobRow is one entry of systemd's list of jobs.
type jobRow struct {
	ID                uint32
	Unit, Type, State string
	Path, UnitPath    dbus.ObjectPath
}

func (u *Units) listJobs() ([]jobRow, *dbus.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rows := []jobRow{}
	for _, name := range slices.Sorted(maps.Keys(u.states)) {
		if j := u.states[name].job; j != nil {
			rows = append(rows, jobRow{j.id, name, j.kind, "running", j.path(), unitPath(name)})
		}
	}
	if u.shuttingDown {
		rows = append(rows, jobRow{1, "reboot.target", "start", "waiting", jobPath(1), unitPath("reboot.target")})
	}
	return rows, nil
}

func unitPath(name string) dbus.ObjectPath {
	return systemdPath + "/unit/_" + dbus.ObjectPath(fmt.Sprintf("%x", name))
}

// load returns a unit's LoadState.
func (u *Units) load(s *state) string { return cmp.Or(u.defined[s.name].Load, "not-found") }

// properties returns the properties of systemd itself and of units.
func (u *Units) properties(path dbus.ObjectPath, iface string) map[string]any {
	u.mu.Lock()
	defer u.mu.Unlock()
	if path == systemdPath {
		return map[string]any{"SystemState": u.systemState, "UnitPath": []string{
			"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
		}}
	}
	for _, s := range u.states {
		if unitPath(s.name) != path {
			continue
		}
		if iface == serviceIface {
			return u.serviceProperties(s)
		}
		return u.unitProperties(s)
	}
	return nil
}

func (u *Units) unitProperties(s *state) map[string]any {
	d := u.defined[s.name]
	job := struct {
		ID   uint32
		Path dbus.ObjectPath
	}{0, "/"}
	if s.job != nil {
		job.ID, job.Path = s.job.id, s.job.path()
	}
	list := func(l []string) []string { return append([]string{}, l...) }
	return map[string]any{
		"Id": s.name, "Names": append([]string{s.name}, d.Names...), "FragmentPath": "", "DropInPaths": []string{},
		"LoadState": u.load(s), "ActiveState": s.active, "SubState": s.sub, "UnitFileState": cmp.Or(d.File, "enabled"),
		"Job": job, "InvocationID": slices.Clone(s.invocation), "CanReload": true,
		"Wants": list(d.Wants), "Requires": list(d.Requires), "WantedBy": []string{}, "RequiredBy": list(d.RequiredBy),
		"ConditionResult": !s.skipped, "ConditionTimestampMonotonic": uint64(s.checked / time.Microsecond),
	}
}

func (u *Units) serviceProperties(s *state) map[string]any {
	d := u.defined[s.name]
	var code, status int32
	if s.result == "exit-code" {
		code, status = 1, 1
	}
	return map[string]any{
		"Type": d.kind(), "Result": cmp.Or(s.result, "success"), "ReloadResult": cmp.Or(s.reload, "success"), "StatusText": "",
		"NRestarts": uint32(0), "ExecMainCode": code, "ExecMainStatus": status,
	}
}

func (d Unit) kind() string { return cmp.Or(d.Type, "oneshot") }
