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

func TestBootComplete(t *testing.T) {
	wanted := []string{"systemd-bless-boot.service"}
	for _, c := range []struct {
		name  string
		state string
		unit  fakeUnit
		want  BootStatus
	}{
		{"not found", "running", fakeUnit{load: "not-found", active: "inactive"}, BootNoTarget},
		{"there but of no use", "running", fakeUnit{load: "loaded", active: "inactive"}, BootNoTarget},
		{"reached", "running", fakeUnit{load: "loaded", active: "active", requiredBy: wanted}, BootComplete},
		{"reached by hand", "running", fakeUnit{load: "loaded", active: "active"}, BootComplete},
		{"queued", "starting", fakeUnit{load: "loaded", active: "inactive", job: 7, requiredBy: wanted}, BootPending},
		{"queued after the boot", "running", fakeUnit{load: "loaded", active: "inactive", job: 7}, BootPending},
		{"not queued yet", "initializing", fakeUnit{load: "loaded", active: "inactive", wantedBy: wanted}, BootPending},
		{"never reached", "degraded", fakeUnit{load: "loaded", active: "inactive", requiredBy: wanted}, BootFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBus(t)
			newSystemd(t, b, c.state, map[string]fakeUnit{"boot-complete.target": c.unit})
			bus := &Bus{Address: b.Address}
			defer bus.Close()
			if got, err := (Units{Bus: bus}).BootComplete(t.Context()); got != c.want || err != nil {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestBootCompleteWithoutSystemd(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	u := Units{Bus: bus}
	if got, err := u.BootComplete(t.Context()); got != BootNoTarget || err != nil {
		t.Errorf("no systemd on the bus: %v, %v", got, err)
	}
	b.Stop()
	if got, err := u.BootComplete(t.Context()); got != BootUnknown || err == nil {
		t.Errorf("no bus: %v, %v", got, err)
	}
}
