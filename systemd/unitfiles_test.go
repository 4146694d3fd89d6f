package systemd

import (
	"errors"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

// fileUnit is a unit of a systemd that knows only files.
type fileUnit struct {
	id, fragment   string
	names, dropIns []string
}

func newFileSystemd(t *testing.T, b *testBus, unitPath any, units map[string]fileUnit) {
	t.Helper()
	conn := b.Connect()
	paths := map[string]dbus.ObjectPath{}
	for name, u := range units {
		path := dbus.ObjectPath("/org/freedesktop/systemd1/unit/u" + string(rune('a'+len(paths))))
		paths[name] = path
		exportProps(t, conn, path, map[string]map[string]any{unitIface: {
			"Id": u.id, "Names": u.names, "LoadState": "loaded", "ActiveState": "inactive", "FragmentPath": u.fragment, "DropInPaths": u.dropIns,
		}})
	}
	must(t, conn.ExportMethodTable(map[string]any{
		"LoadUnit": func(name string) (dbus.ObjectPath, *dbus.Error) {
			if path, ok := paths[name]; ok {
				return path, nil
			}
			return "/", dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"Unit name " + name + " is not valid."})
		},
	}, managerPath, managerIface))
	exportProps(t, conn, managerPath, map[string]map[string]any{managerIface: {"UnitPath": unitPath}})
	own(t, conn, managerName)
}

func TestUnitFiles(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if _, _, err := u.UnitFiles(t.Context(), "a.service"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v", err)
	}
	unitPath := []string{"/etc/systemd/system.control", "/run/systemd/transient", "/etc/systemd/system", "/usr/lib/systemd/system"}
	newFileSystemd(t, b, unitPath, map[string]fileUnit{
		"plain.service": {id: "plain.service", names: []string{"plain.service"}, fragment: "/usr/lib/systemd/system/plain.service",
			dropIns: []string{"/etc/systemd/system/plain.service.d/10.conf", "/etc/systemd/system.control/plain.service.d/50-CPUWeight.conf"}},
		"alias.service": {id: "a-b.service", names: []string{"a-b.service", "alias.service"}, fragment: "/opt/a-b.service",
			dropIns: []string{"/opt/a-b.service.d/x.conf"}},
		"in@one.socket": {id: "in@one.socket", names: []string{"in@one.socket"}},
		"none.service":  {id: "none.service", names: []string{"none.service"}},
	})
	for unit, want := range map[string]struct{ fragments, dropIns string }{
		"plain.service": {"/etc/systemd/system/plain.service /usr/lib/systemd/system/plain.service",
			"/etc/systemd/system/plain.service.d /usr/lib/systemd/system/plain.service.d /etc/systemd/system/service.d /usr/lib/systemd/system/service.d"},
		"alias.service": {"/etc/systemd/system/a-b.service /usr/lib/systemd/system/a-b.service /opt/a-b.service",
			"/etc/systemd/system/a-.service.d /usr/lib/systemd/system/a-.service.d /etc/systemd/system/a-b.service.d /usr/lib/systemd/system/a-b.service.d " +
				"/etc/systemd/system/alias.service.d /usr/lib/systemd/system/alias.service.d /etc/systemd/system/service.d /usr/lib/systemd/system/service.d /opt/a-b.service.d/x.conf"},
		"in@one.socket": {"/etc/systemd/system/in@one.socket /usr/lib/systemd/system/in@one.socket /etc/systemd/system/in@.socket /usr/lib/systemd/system/in@.socket",
			"/etc/systemd/system/in@.socket.d /usr/lib/systemd/system/in@.socket.d /etc/systemd/system/in@one.socket.d /usr/lib/systemd/system/in@one.socket.d " +
				"/etc/systemd/system/socket.d /usr/lib/systemd/system/socket.d"},
		"none.service": {"/etc/systemd/system/none.service /usr/lib/systemd/system/none.service",
			"/etc/systemd/system/none.service.d /usr/lib/systemd/system/none.service.d /etc/systemd/system/service.d /usr/lib/systemd/system/service.d"},
	} {
		fragments, dropIns, err := u.UnitFiles(t.Context(), unit)
		must(t, err)
		if got := strings.Join(fragments, " "); got != want.fragments {
			t.Errorf("%s: fragments\n%s\nexpected\n%s", unit, got, want.fragments)
		}
		if got := strings.Join(dropIns, " "); got != want.dropIns {
			t.Errorf("%s: drop-ins\n%s\nexpected\n%s", unit, got, want.dropIns)
		}
	}
	for _, unit := range []string{"nonsense"} {
		if fragments, dropIns, err := u.UnitFiles(t.Context(), unit); err == nil {
			t.Errorf("%s: %v, %v", unit, fragments, dropIns)
		}
	}
}

// TestNames uses the names of systemd.unit(5) and, for cases that it does not cover, those of systemd 252.
func TestNames(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if _, err := u.Names(t.Context(), "a.service"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v", err)
	}
	newFileSystemd(t, b, []string{}, map[string]fileUnit{
		"alias.target": {id: "reboot.target", names: []string{"reboot.target", "alias.target"}},
		"none.service": {id: "none.service", names: []string{}},
	})
	if names, err := u.Names(t.Context(), "alias.target"); err != nil || strings.Join(names, " ") != "reboot.target alias.target" {
		t.Errorf("an alias: %q, %v", names, err)
	}
	// Without its names, a unit must not be treated as harmless.
	if names, err := u.Names(t.Context(), "none.service"); err == nil || errors.As(err, new(*JobError)) {
		t.Errorf("no names: %q, %v", names, err)
	}
	if names, err := u.Names(t.Context(), "no unit"); !errors.As(err, new(*JobError)) {
		t.Errorf("no unit's name: %q, %v", names, err)
	}
}

func TestDropInNames(t *testing.T) {
	for name, want := range map[string]string{
		"foo.service":              "foo.service.d service.d",
		"foo-bar-baz.service":      "foo-.service.d foo-bar-.service.d foo-bar-baz.service.d service.d",
		"foo-bar@a-b.service":      "foo-.service.d foo-@.service.d foo-@a-b.service.d foo-bar@.service.d foo-bar@a-b.service.d service.d",
		"-.mount":                  "-.mount.d mount.d",
		"foo-.slice":               "foo-.slice.d slice.d",
		"foo--.slice":              "foo--.slice.d foo-.slice.d slice.d",
		"system-getty.slice":       "slice.d system-.slice.d system-getty.slice.d",
		"dev-disk-by\\x2da.device": "dev-.device.d dev-disk-.device.d dev-disk-by\\x2da.device.d device.d",
	} {
		if got := strings.Join(dropInNames(name), " "); got != want {
			t.Errorf("%s: %s\nexpected %s", name, got, want)
		}
	}
}
