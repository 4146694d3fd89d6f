package systemd

import (
	"errors"
	"testing"
)

func TestActiveState(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if _, _, err := u.ActiveState(t.Context(), "a.service"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v", err)
	}
	newSystemd(t, b, "running", map[string]fakeUnit{
		"a.service":    {load: "loaded", active: "active"},
		"b.service":    {load: "loaded", active: "failed"},
		"gone.service": {load: "not-found", active: "inactive"},
		"mask.service": {load: "masked", active: "inactive"},
	})
	for unit, want := range map[string]struct {
		state  string
		loaded bool
		fails  bool
	}{
		"a.service": {"active", true, false}, "b.service": {"failed", true, false},
		"gone.service": {"inactive", false, false}, "mask.service": {"inactive", false, false},
		"nonsense": {"", false, true},
	} {
		state, loaded, err := u.ActiveState(t.Context(), unit)
		if state != want.state || loaded != want.loaded || (err != nil) != want.fails {
			t.Errorf("%s: %q, %v, %v", unit, state, loaded, err)
		}
	}
}

func TestBootIncomplete(t *testing.T) {
	wanted := []string{"systemd-bless-boot.service"}
	for _, c := range []struct {
		name  string
		state string
		unit  fakeUnit
		want  string
	}{
		{"not found", "running", fakeUnit{load: "not-found", active: "inactive"}, ""},
		{"there, and nothing pulls it in", "running", fakeUnit{load: "loaded", active: "inactive"}, ""},
		{"reached", "running", fakeUnit{load: "loaded", active: "active", requiredBy: wanted}, ""},
		{"reached by hand", "running", fakeUnit{load: "loaded", active: "active"}, ""},
		{"queued", "starting", fakeUnit{load: "loaded", active: "inactive", job: 7, requiredBy: wanted}, "pending"},
		{"queued after the boot", "running", fakeUnit{load: "loaded", active: "inactive", job: 7}, "pending"},
		{"not queued yet", "initializing", fakeUnit{load: "loaded", active: "inactive", wantedBy: wanted}, "pending"},
		{"failed, and nothing pulls it in any more", "degraded", fakeUnit{load: "loaded", active: "failed"}, "failed"},
		{"never reached", "degraded", fakeUnit{load: "loaded", active: "inactive", requiredBy: wanted}, "failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBus(t)
			newSystemd(t, b, c.state, map[string]fakeUnit{"boot-complete.target": c.unit})
			bus := &Bus{Address: b.Address}
			defer bus.Close()
			if got, err := (Units{Bus: bus}).BootIncomplete(t.Context()); got != c.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestBootIncompleteWithoutSystemd(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if got, err := u.BootIncomplete(t.Context()); got != "" || !errors.Is(err, ErrAbsent) {
		t.Errorf("no systemd on the bus: %v, %v", got, err)
	}
	b.Stop()
	if got, err := u.BootIncomplete(t.Context()); got != "" || err == nil {
		t.Errorf("no bus: %v, %v", got, err)
	}
}
