package systemd

import (
	"fmt"
	"sync"
	"testing"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// fakeLogin is a fake logind.
type fakeLogin struct {
	conn  *dbus.Conn
	props *fakeProps

	mu      sync.Mutex
	refuse  *dbus.Error   // the answer to RebootWithFlags
	hang    chan struct{} // if not nil, RebootWithFlags answers when it is closed
	calls   []string
	callers []dbus.Sender // of calls
}

// newLogin exports a logind.
func newLogin(t *testing.T, b *testBus) *fakeLogin {
	t.Helper()
	f := newLoginOn(t, b.Connect())
	own(t, f.conn, loginName)
	return f
}

// newLoginOn exports a logind that does not own its name yet.
func newLoginOn(t *testing.T, conn *dbus.Conn) *fakeLogin {
	t.Helper()
	f := &fakeLogin{conn: conn}
	methods := map[string]any{
		"RebootWithFlags": func(sender dbus.Sender, flags uint64) *dbus.Error {
			return f.reboot(sender, fmt.Sprintf("RebootWithFlags(%d)", flags))
		},
		"ListInhibitors": func() ([]inhibitorRow, *dbus.Error) {
			return []inhibitorRow{
				{"shutdown:sleep", "apt", "upgrade\nin progress", "block", 0, 123},
				{"shutdown", "kubelet", "Kubelet needs time", "delay", 0, 45},
				{"idle:handle-lid-switch", "player", "film", "block", 1000, 77},
				{"shutdown", "desk", "meeting", "block-weak", 1000, 78},
			}, nil
		},
		"ListSessions": func() ([]sessionRow, *dbus.Error) {
			var rows []sessionRow
			for _, s := range sessions {
				rows = append(rows, sessionRow{s.id, 1000, s.user, s.seat, sessionPath(s.id)})
			}
			return append(rows, sessionRow{"99", 1000, "vanished", "", sessionPath("99")}), nil
		},
	}
	must(t, f.conn.ExportMethodTable(methods, loginPath, loginManager))
	f.props = exportProps(t, f.conn, loginPath, map[string]map[string]any{loginManager: {
		"PreparingForShutdown": false,
		"ScheduledShutdown": struct {
			Kind string
			Usec uint64
		}{"", 0},
	}})
	for _, s := range sessions {
		exportProps(t, f.conn, sessionPath(s.id), map[string]map[string]any{"org.freedesktop.login1.Session": s.props})
	}
	must(t, f.conn.ExportMethodTable(map[string]any{
		"GetAll": func(string) (map[string]dbus.Variant, *dbus.Error) { // the answer of sd-bus
			return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownObject", []any{"Unknown object '/...'."})
		},
	}, sessionPath("99"), "org.freedesktop.DBus.Properties"))
	return f
}

type inhibitorRow struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

type sessionRow struct {
	ID   string
	UID  uint32
	User string
	Seat string
	Path dbus.ObjectPath
}

var sessions = []struct {
	id, user, seat string
	props          map[string]any
}{
	{"1", "anna", "seat0", map[string]any{"Class": "user", "State": "active", "TTY": "tty1", "Remote": false}},
	{"2", "bert", "", map[string]any{"Class": "user", "State": "online", "TTY": "pts/0", "Remote": true}},
	{"3", "carl", "", map[string]any{"Class": "user", "State": "active", "TTY": "", "Remote": false}},
	{"4", "gdm", "seat0", map[string]any{"Class": "greeter", "State": "active", "TTY": "tty1", "Remote": false}},
	{"5", "dora", "", map[string]any{"Class": "user", "State": "closing", "TTY": "pts/1", "Remote": true}},
	{"6", "cron", "", map[string]any{"Class": "background", "State": "active", "TTY": "", "Remote": false}},
	{"7", "root", "", map[string]any{"Class": "user-early", "State": "active", "TTY": "tty2", "Remote": false}},
	{"c1", "root", "", map[string]any{"Class": "manager", "State": "active", "TTY": "tty3", "Remote": true}},
}

func sessionPath(id string) dbus.ObjectPath {
	return dbus.ObjectPath("/org/freedesktop/login1/session/_3" + id)
}

func (f *fakeLogin) reboot(sender dbus.Sender, method string) *dbus.Error {
	f.mu.Lock()
	f.calls, f.callers = append(f.calls, method), append(f.callers, sender)
	hang, refuse := f.hang, f.refuse
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return refuse
}

// on makes the reboot methods answer with refuse, after hang is closed if hang is not nil.
func (f *fakeLogin) on(refuse *dbus.Error, hang chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse, f.hang = refuse, hang
}

// prepare does what logind does when a shutdown starts or is canceled.
func (f *fakeLogin) prepare(t *testing.T, active bool) {
	t.Helper()
	f.setPreparing(active)
	must(t, f.conn.Emit(loginPath, loginManager+".PrepareForShutdown", active))
}

func (f *fakeLogin) setPreparing(active bool) {
	f.props.set(loginManager, "PreparingForShutdown", active)
}

func (f *fakeLogin) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

// fakeUnit is a unit of a fake systemd.
type fakeUnit struct {
	load, active         string
	job                  uint32
	wantedBy, requiredBy []string
}

type jobRow struct {
	ID                uint32
	Unit, Type, State string
	Path, UnitPath    dbus.ObjectPath
}

// newSystemd exports a systemd with units and jobs that do not change.
func newSystemd(t *testing.T, b *testBus, state string, units map[string]fakeUnit, jobs ...jobRow) {
	t.Helper()
	conn := b.Connect()
	paths := map[string]dbus.ObjectPath{}
	for name, u := range units {
		path := dbus.ObjectPath("/org/freedesktop/systemd1/unit/u" + string(rune('a'+len(paths))))
		paths[name] = path
		exportProps(t, conn, path, map[string]map[string]any{unitIface: {
			"Id": name, "LoadState": u.load, "ActiveState": u.active, "WantedBy": u.wantedBy, "RequiredBy": u.requiredBy,
			"Job": struct {
				ID   uint32
				Path dbus.ObjectPath
			}{u.job, "/"},
		}})
	}
	must(t, conn.ExportMethodTable(map[string]any{
		"LoadUnit": func(name string) (dbus.ObjectPath, *dbus.Error) {
			if path, ok := paths[name]; ok {
				return path, nil
			}
			return "/", dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"Unit name " + name + " is not valid."})
		},
		"ListUnitsByNames": func(names []string) (rows []sd.UnitStatus, _ *dbus.Error) {
			for _, name := range names {
				if path, ok := paths[name]; ok {
					rows = append(rows, sd.UnitStatus{Name: "alias-of-" + name, LoadState: units[name].load, ActiveState: units[name].active, Path: path, JobPath: "/"})
				}
			}
			return rows, nil
		},
		"ListJobs": func() ([]jobRow, *dbus.Error) { return jobs, nil },
	}, managerPath, managerIface))
	exportProps(t, conn, managerPath, map[string]map[string]any{managerIface: {"SystemState": state}})
	own(t, conn, managerName)
}

// fakeProps contains an object's properties and counts the reads.
type fakeProps struct {
	mu     sync.Mutex
	values map[string]map[string]any
	gets   int
}

func exportProps(t *testing.T, conn *dbus.Conn, path dbus.ObjectPath, values map[string]map[string]any) *fakeProps {
	t.Helper()
	p := &fakeProps{values: values}
	must(t, conn.ExportMethodTable(map[string]any{
		"Get": func(iface, name string) (dbus.Variant, *dbus.Error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.gets++
			v, ok := p.values[iface][name]
			if !ok {
				return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", nil)
			}
			return dbus.MakeVariant(v), nil
		},
		"GetAll": func(iface string) (map[string]dbus.Variant, *dbus.Error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			all := map[string]dbus.Variant{}
			for name, v := range p.values[iface] {
				all[name] = dbus.MakeVariant(v)
			}
			return all, nil
		},
	}, path, "org.freedesktop.DBus.Properties"))
	return p
}

func (p *fakeProps) set(iface, name string, v any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.values[iface][name] = v
}

func (p *fakeProps) read() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gets
}

func own(t *testing.T, conn *dbus.Conn, name string) {
	t.Helper()
	reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("owning %s: %v, %v", name, reply, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
