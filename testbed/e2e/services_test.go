package e2e

import (
	"path"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// Faults of what a host's lockkeeper lives on: the bus, the engine, the watchdog, the disk.

// sh runs a script on the host.
func sh(t *testing.T, h *realhost.Host, script string) string {
	t.Helper()
	out, err := h.Exec(within(t, soon), "sh", "-c", script)
	must(t, err)
	return out
}

// testBusRestarted: D-Bus is restarted during a drain. logind is restarted too: that of systemd 257 does not come back to a
// new bus by itself, and until it does the host waits, because logind does not answer who inhibits a shutdown.
func testBusRestarted(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	before, err := pid(within(t, soon), h)
	must(t, err)
	sh(t, h, "systemctl restart dbus.service && systemctl restart systemd-logind.service")
	f.draining(t, h)
	if now, err := pid(within(t, soon), h); err != nil || now != before {
		t.Errorf("lockkeeper is process %d (%v), and was %d before D-Bus was restarted", now, err, before)
	}
	b.lift(t)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}

// testEngine: update_engine is restarted in the middle of a drain, and has forgotten the version; then it is stopped, and what it
// said cannot be confirmed: the host holds and names it. In another drain it is masked, and with it its update is gone for good:
// the turn ends, and the node is given back, until there is an engine again.
func testEngine(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	sh(t, h, "systemctl restart "+realhost.EngineUnit)
	f.draining(t, h)
	sh(t, h, "systemctl stop "+realhost.EngineUnit)
	b.lift(t)
	until(t, aTurn, h.Name(), "to be about to reboot", inState(v1alpha1.StateRebooting))
	f.says(t, h, "rebooting", "SourceUnreadable", "update")
	f.showHost(t.Context(), t, h, 10)
	f.booted(t, h, boots)
	sh(t, h, "systemctl start "+realhost.EngineUnit)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)

	version, b = f.drainBlocked(t, h)
	sh(t, h, "systemctl mask --now --runtime "+realhost.EngineUnit)
	until(t, aTurn, h.Name(), "to be given back", content)
	f.booted(t, h, boots+1)
	b.lift(t)
	sh(t, h, "systemctl unmask --runtime "+realhost.EngineUnit+" && systemctl start "+realhost.EngineUnit)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+2)
}

// testWatchdog: the process is stopped in the middle of a drain; systemd notices that it feeds its watchdog no more.
func testWatchdog(t *testing.T, f *fleet) {
	h := f.follower(t)
	const short = "/etc/systemd/system/lockkeeper.service.d/watchdog.conf"
	must(t, h.WriteFile(within(t, soon), short, []byte("[Service]\nWatchdogSec=5s\n"), 0o644))
	sh(t, h, "systemctl daemon-reload && systemctl restart lockkeeper")
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	before, err := pid(within(t, soon), h)
	must(t, err)
	sh(t, h, "systemctl kill --signal=STOP lockkeeper")
	restarted(t, h, before)
	journal, err := h.Journal(within(t, soon), "lockkeeper.service")
	must(t, err)
	if !strings.Contains(journal, "Watchdog timeout") {
		t.Error("its journal says nothing of a watchdog")
	}
	f.draining(t, h)
	b.lift(t)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	sh(t, h, "rm "+short+" && systemctl daemon-reload && systemctl restart lockkeeper")
}

// testDiskFull: there is no room where lockkeeper leaves its words, nor for the journal.
func testDiskFull(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	for _, dir := range []string{"/run/lockkeeper", "/var/log/journal"} {
		sh(t, h, "mount -t tmpfs -o size=64k tmpfs "+dir+"; dd if=/dev/zero of="+path.Join(dir, "rubbish")+" 2>&1; df "+dir)
	}
	before, err := pid(within(t, soon), h)
	must(t, err)
	sh(t, h, "systemctl restart systemd-journald; systemctl restart --no-block lockkeeper")
	restarted(t, h, before)
	f.draining(t, h)
	b.lift(t)
	f.updated(t, aTurn, version, h) // what fills the disks goes with the boot
	f.booted(t, h, boots+1)
}
