package systemd

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// runningUnits plays a systemd whose units stay active when they have started, as with RemainAfterExit=yes. The target
// hooks.target wants a.service.
type runningUnits struct {
	mu     sync.Mutex
	units  map[string]*fakeProps
	states map[string]string
	runs   byte // of all units
	asked  []string
}

func newRunningUnits(t *testing.T, states map[string]string) (*runningUnits, Units) {
	t.Helper()
	b := newBus(t)
	conn := b.Connect()
	r := &runningUnits{units: map[string]*fakeProps{}, states: states}
	path := func(name string) dbus.ObjectPath {
		return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + strings.ReplaceAll(name, ".", "_"))
	}
	for name, state := range states {
		r.units[name] = exportProps(t, conn, path(name), map[string]map[string]any{serviceIface: {"Result": "success"}, unitIface: {
			"Id": name, "LoadState": "loaded", "ActiveState": state, "UnitFileState": "enabled", "InvocationID": []byte{0}, "ConditionResult": true,
			"Wants": map[bool][]string{true: {"a.service"}}[name == "hooks.target"],
		}})
	}
	must(t, conn.ExportMethodTable(map[string]any{
		"Subscribe": func() *dbus.Error { return nil },
		"LoadUnit":  func(name string) (dbus.ObjectPath, *dbus.Error) { return path(name), nil },
		"ListUnitsByNames": func(names []string) (rows []sd.UnitStatus, _ *dbus.Error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, name := range names {
				rows = append(rows, sd.UnitStatus{Name: name, LoadState: "loaded", ActiveState: r.states[name], Path: path(name), JobPath: "/"})
			}
			return rows, nil
		},
		"StartUnit": func(name, _ string) (dbus.ObjectPath, *dbus.Error) {
			r.ask("start "+name, "active", name, "a.service")
			return "/org/freedesktop/systemd1/job/7", nil
		},
		"StopUnit": func(name, _ string) (dbus.ObjectPath, *dbus.Error) {
			r.ask("stop "+name, "inactive", name)
			return "/org/freedesktop/systemd1/job/7", nil
		},
		"TryRestartUnit": func(name, _ string) (dbus.ObjectPath, *dbus.Error) {
			r.ask("stop "+name, "inactive", name)
			r.ask("start "+name, "active", name)
			return "/", dbus.NewError(dbusName+".Error.NoReply", nil) // the bus gave up waiting for the answer
		},
	}, managerPath, managerIface))
	own(t, conn, managerName)
	bus := &Bus{Address: b.Address}
	t.Cleanup(func() { bus.Close() })
	return r, Units{Bus: bus}
}

// ask brings units to a state. A unit that is in it already does not run again.
func (r *runningUnits) ask(what, state string, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, what)
	for _, name := range names {
		if r.states[name] == state {
			continue
		}
		r.states[name] = state
		r.units[name].set(unitIface, "ActiveState", state)
		if state == "active" {
			r.runs++
			r.units[name].set(unitIface, "InvocationID", []byte{r.runs})
		}
	}
}

// TestTargetRunsItsUnits checks that a run of a target starts its units even if they are still active from an earlier run, and
// leaves none of them active.
func TestTargetRunsItsUnits(t *testing.T) {
	for _, before := range []string{"inactive", "active"} {
		r, units := newRunningUnits(t, map[string]string{"hooks.target": before, "a.service": before})
		states, err := units.RunTarget(t.Context(), "hooks.target", time.Now().Add(time.Minute), func([]UnitState) {})
		if err != nil || !slices.Equal(states, []UnitState{{Unit: "a.service"}}) {
			t.Errorf("%s before: %+v, %v", before, states, err)
		}
		if r.states["a.service"] != "inactive" || r.states["hooks.target"] != "inactive" {
			t.Errorf("%s before: %v after the run", before, r.states)
		}
	}
}

// TestTargetInTime checks that nothing is started after the reads behind the decision are too old.
func TestTargetInTime(t *testing.T) {
	r, units := newRunningUnits(t, map[string]string{"hooks.target": "inactive", "a.service": "inactive"})
	_, err := units.RunTarget(t.Context(), "hooks.target", time.Now().Add(-time.Nanosecond), func([]UnitState) {})
	if !errors.Is(err, ErrTooLate) || len(r.asked) != 0 {
		t.Errorf("%v; asked for %q", err, r.asked)
	}
}

// TestRestartWithoutAnAnswer checks that a restart whose answer is lost counts as done if the unit has run again.
func TestRestartWithoutAnAnswer(t *testing.T) {
	r, units := newRunningUnits(t, map[string]string{"a.mount": "active"})
	left, err := units.Restart(t.Context(), "a.mount", time.Now().Add(time.Minute))
	if left != "" || err != nil || len(r.asked) != 2 {
		t.Errorf("left %q, %v; asked for %q", left, err, r.asked)
	}
}
