package e2e

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// newer is the index of the host that runs the newest release, systemd 257, while the others run the default one,
// systemd 252. That host may coordinate. The tests of faults prefer the last host, which runs the default release.
const newer = 1

// testInhibitors has root and another user hold block inhibitors on the host with the newest release. The host's reboot
// must wait for both and name them, and happen once both are released. In the meantime logind itself refuses to reboot
// the host. The host gets that refusal if an inhibitor appears after the host has read the list. Up to systemd 256
// logind refuses only for an inhibitor of another user; since 257 also for root's own.
func testInhibitors(t *testing.T, f *fleet) {
	h := f.Hosts[newer]
	boots := h.Boots()
	inhibitAs(t, h, "core", "someone-else")
	inhibitAs(t, h, "root", "somebody")
	version := f.stage(t, h)
	until(t, aTurn, h.Name(), "to be about to reboot", inState(v1alpha1.StateRebooting))
	f.says(t, h, "rebooting", "Inhibited", "someone-else", "somebody")
	f.showHost(t.Context(), t, h, 8)
	refusesReboot(t, h)
	letGoOf(t, h, "someone-else")
	f.says(t, h, "rebooting", "Inhibited (somebody (pid")
	if release[newer] == realhost.Trixie {
		refusesReboot(t, h)
	}
	f.booted(t, h, boots)
	letGoOf(t, h, "somebody")
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	f.inhibitorHonoured(t, h)
}

// refusesReboot checks that logind refuses to reboot the host because of a block inhibitor, and that package systemd
// recognizes the error.
func refusesReboot(t *testing.T, h *realhost.Host) {
	t.Helper()
	bus := &systemd.Bus{Address: h.BusAddress()}
	err := systemd.Logind{Bus: bus}.Reboot(within(t, soon))
	t.Logf("%s: logind answers: %v", h.Name(), err)
	if !systemd.Inhibited(err) {
		t.Errorf("%s: logind answered %v to a call for a reboot, expected a refusal because of an inhibitor", h.Name(), err)
	}
}
