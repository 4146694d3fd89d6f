package source

import (
	"errors"
	"slices"
	"testing"

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
