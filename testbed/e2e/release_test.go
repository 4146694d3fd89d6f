package e2e

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// newer is the host of a fleet that runs the newest release, systemd 257, while the others run the default one, systemd 252.
// It may coordinate. The tests of faults prefer the last host, which runs the default release.
const newer = 1

// testInhibitors: root and another user hold block inhibitors on the host with the newest release. Its reboot waits for both
// and names them; it happens once both have let go. Meanwhile logind itself refuses to reboot the host: that is what an
// inhibitor gets that is taken after the host has read the list. Up to systemd 256 logind does so for an inhibitor of
// another user only; from 257 it does so for root's own as well.
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
// recognizes this answer.
func refusesReboot(t *testing.T, h *realhost.Host) {
	t.Helper()
	bus := &systemd.Bus{Address: h.BusAddress()}
	err := systemd.Logind{Bus: bus}.Reboot(within(t, soon))
	t.Logf("%s: logind answers: %v", h.Name(), err)
	if !systemd.Inhibited(err) {
		t.Errorf("%s: logind answered %v to a call for a reboot, expected a refusal because of an inhibitor", h.Name(), err)
	}
}
