package systemd

import (
	"errors"
	"slices"
	"testing"
)

func TestGoneAndRunning(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if _, err := u.Gone(t.Context(), "a.service"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v", err)
	}
	if _, err := u.Running(t.Context(), []string{"a.service"}); !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v", err)
	}
	cases := map[string]struct {
		unit          fakeUnit
		gone, running bool
	}{
		"active.service":     {fakeUnit{load: "loaded", active: "active"}, false, true},
		"restarting.service": {fakeUnit{load: "loaded", active: "activating"}, false, true},
		"stopping.service":   {fakeUnit{load: "loaded", active: "deactivating"}, false, true},
		"stopped.service":    {fakeUnit{load: "loaded", active: "inactive"}, false, false},
		"failed.service":     {fakeUnit{load: "loaded", active: "failed"}, false, false},
		"broken.service":     {fakeUnit{load: "bad-setting", active: "inactive"}, false, false},
		"masked.service":     {fakeUnit{load: "masked", active: "inactive"}, true, false},
		"dying.service":      {fakeUnit{load: "masked", active: "active"}, false, true},
		"none.service":       {fakeUnit{load: "not-found", active: "inactive"}, true, false},
		"removed.service":    {fakeUnit{load: "not-found", active: "failed"}, true, false},
	}
	units := map[string]fakeUnit{}
	for name, c := range cases {
		units[name] = c.unit
	}
	units["silent.service"] = fakeUnit{load: "loaded"} // an answer without the state
	units["unloaded.service"] = fakeUnit{active: "inactive"}
	newSystemd(t, b, "running", units)
	for _, name := range []string{"silent.service", "unloaded.service"} {
		if gone, err := u.Gone(t.Context(), name); gone || err == nil {
			t.Errorf("%s: gone %t, %v, expected an error", name, gone, err)
		}
	}
	for _, name := range []string{"silent.service", "not a name"} { // systemd leaves out what is not a unit's name
		if running, err := u.Running(t.Context(), []string{name, "active.service"}); running != nil || err == nil {
			t.Errorf("%s: running %v, %v, expected an error", name, running, err)
		}
	}
	var names, expected []string
	for name, c := range cases {
		gone, err := u.Gone(t.Context(), name)
		if gone != c.gone || err != nil {
			t.Errorf("%s: gone %t, %v", name, gone, err)
		}
		names = append(names, name)
		if c.running {
			expected = append(expected, name)
		}
	}
	if running, err := u.Running(t.Context(), names); !slices.Equal(running, expected) || err != nil {
		t.Errorf("running: %v, %v, expected %v", running, err, expected)
	}
}
