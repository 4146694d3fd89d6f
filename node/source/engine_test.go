package source

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// TestEngineReport has what each answer of the engine, or none, means, and whether anything
// may be committed by it.
func TestEngineReport(t *testing.T) {
	update := func(version string) []v1alpha1.Change {
		return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: version}}
	}
	present := func(o updateengine.Operation, version string, unknown bool) updateengine.Reading {
		return updateengine.Reading{Presence: updateengine.Present, Operation: o, Version: version, VersionUnknown: unknown}
	}
	absent, away := updateengine.Reading{Presence: updateengine.Absent}, updateengine.Reading{Err: errors.New("no bus")}
	for _, c := range []struct {
		name    string
		reading updateengine.Reading
		before  []v1alpha1.Change
		gone    bool
		changes []v1alpha1.Change
		err     string // "" if the engine has confirmed the changes
	}{
		{"staged", present(updateengine.UpdatedNeedReboot, "4.2", false), nil, false, update("4.2"), ""},
		{"taken back", present(updateengine.Idle, "", false), update("4.2"), false, nil, ""},
		{"restarted", present(updateengine.UpdatedNeedReboot, "", true), update("4.2"), false, update("4.2"), ""},
		{"restarted, and so was lockkeeper", present(updateengine.UpdatedNeedReboot, "", true), nil, false, update(""), ""},
		{"an operation of its successor's", present("SOMETHING", "", false), update("4.2"), false, update("4.2"), "it is in operation \"SOMETHING\", which is not known"},
		{"no engine on this host", absent, nil, false, nil, ""},
		{"went away during the turn", absent, update("4.2"), false, update("4.2"), "it does not run"},
		{"masked during the turn", absent, update("4.2"), true, nil, ""},
		{"no bus", away, update("4.2"), false, update("4.2"), "no bus"},
		{"not read yet", updateengine.Reading{}, update("4.2"), false, update("4.2"), "not read yet"},
		{"no bus, whatever systemd said of the unit before", away, update("4.2"), true, update("4.2"), "no bus"},
	} {
		changes, err := engineReport(c.reading, c.before, c.gone)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if !slices.Equal(changes, c.changes) || text != c.err {
			t.Errorf("%s: %v, %q, expected %v, %q", c.name, changes, text, c.changes, c.err)
		}
	}
}

// engineBus plays the update engine and systemd.
type engineBus struct {
	operation string
	err       error // of the engine
	gone      bool
	goneErr   error
}

func (b *engineBus) Call(context.Context, string, ...any) ([]any, error) {
	return []any{int64(0), 0.0, b.operation, "4.2", int64(0)}, b.err
}

func (*engineBus) Watch(context.Context, string, time.Duration, func(context.Context) error) error {
	return nil
}

func (b *engineBus) Gone(context.Context, string) (bool, error) { return b.gone, b.goneErr }

// TestEngineAtACommit checks that only an answer of the engine that is known, or that there is no engine, lets a commit pass.
func TestEngineAtACommit(t *testing.T) {
	for name, c := range map[string]struct {
		bus   engineBus
		fails bool
	}{
		"staged":         {engineBus{operation: "UPDATE_STATUS_UPDATED_NEED_REBOOT"}, false},
		"not known":      {engineBus{operation: "UPDATE_STATUS_SOMETHING"}, true},
		"no answer":      {engineBus{err: errors.New("no answer")}, true},
		"not on the bus": {engineBus{err: dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}}, false},
	} {
		e := NewEngine(updateengine.New(updateengine.Options{Object: &c.bus}), &c.bus)
		if err := e.Read(t.Context()); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEngineThatIsGone checks that an engine that is not on the bus takes its update back only if systemd says that its unit is
// gone for good.
func TestEngineThatIsGone(t *testing.T) {
	staged := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}}
	for name, c := range map[string]struct {
		bus  engineBus
		gone bool
	}{
		"masked":            {engineBus{gone: true}, true},
		"restarts":          {engineBus{}, false},
		"systemd is silent": {engineBus{goneErr: errors.New("no answer")}, false},
	} {
		c.bus.err = dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}
		e := NewEngine(updateengine.New(updateengine.Options{Object: &c.bus}), &c.bus)
		must(t, e.Read(t.Context()))
		changes, err := e.Report(t.Context(), staged)
		if (len(changes) == 0) != c.gone || (err == nil) != c.gone {
			t.Errorf("%s: %v, %v", name, changes, err)
		}
	}
}
