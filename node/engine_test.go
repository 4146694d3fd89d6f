package node

import (
	"errors"
	"slices"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// What each word of the engine's, or its silence, means for the plan, and whether anything may be committed by it.
func TestEngineChange(t *testing.T) {
	update := func(version string) []v1alpha1.Change {
		return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: version}}
	}
	present := func(o updateengine.Operation, version string, unknown bool) updateengine.Reading {
		return updateengine.Reading{Presence: updateengine.Present, Operation: o, Version: version, VersionUnknown: unknown}
	}
	absent, away := updateengine.Reading{Presence: updateengine.Absent}, updateengine.Reading{Err: errors.New("no bus")}
	for _, c := range []struct {
		name            string
		reading         updateengine.Reading
		before          []v1alpha1.Change
		gone            bool
		changes         []v1alpha1.Change
		read, confirmed bool
	}{
		{"staged", present(updateengine.UpdatedNeedReboot, "4.2", false), nil, false, update("4.2"), true, true},
		{"taken back", present(updateengine.Idle, "", false), update("4.2"), false, nil, true, true},
		{"restarted", present(updateengine.UpdatedNeedReboot, "", true), update("4.2"), false, update("4.2"), true, true},
		{"restarted, and so was lockkeeper", present(updateengine.UpdatedNeedReboot, "", true), nil, false, update(""), true, true},
		{"an operation of its successor's", present("SOMETHING", "", false), update("4.2"), false, update("4.2"), false, false},
		{"no engine on this host", absent, nil, false, nil, true, true},
		{"went away during the turn", absent, update("4.2"), false, update("4.2"), true, false},
		{"masked during the turn", absent, update("4.2"), true, nil, true, true},
		{"no bus", away, update("4.2"), false, update("4.2"), false, false},
		{"no bus, whatever systemd said of the unit before", away, update("4.2"), true, update("4.2"), false, false},
	} {
		got := engineChange(c.reading, c.before, c.gone)
		if !slices.Equal(got.changes, c.changes) || got.read != c.read || got.confirmed != c.confirmed {
			t.Errorf("%s: %+v, want %v, read %t, confirmed %t", c.name, got, c.changes, c.read, c.confirmed)
		}
	}
}
