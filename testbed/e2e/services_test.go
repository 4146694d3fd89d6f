package e2e

import (
	"path"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// The tests in this file break what a host's lockkeeper depends on: the bus, the engine, the watchdog, the disk.

// sh runs a script on the host.
func sh(t *testing.T, h *realhost.Host, script string) string {
	t.Helper()
	out, err := h.Exec(within(t, soon), "sh", "-c", script)
	must(t, err)
	return out
}

// testBusRestarted restarts D-Bus during a drain, and logind too: logind of systemd 257 does not reconnect to a new
// bus, and until it restarts the host waits, because logind does not answer who inhibits a shutdown.
func testBusRestarted(t *testing.T, f *fleet) {
	h := f.follower(t)
	boots := h.Boots()
	version, b := f.drainBlocked(t, h)
	before, err := pid(within(t, soon), h)
	must(t, err)
	sh(t, h, "systemctl restart dbus.service && systemctl restart systemd-logind.service")
	f.draining(t, h)
	if now, err := pid(within(t, soon), h); err != nil || now != before {
		t.Errorf("lockkeeper is process %d (%v), before the restart of D-Bus %d", now, err, before)
	}
	b.lift(t)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}

// testEngine restarts update_engine during a drain, so the engine forgets the version. Then it stops the engine, so the
// host cannot confirm the update: the host must hold and name the engine. In another drain it masks the engine, which
// withdraws the update for good: the turn must end with the uncordon, until there is an engine again.
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
	until(t, aTurn, h.Name(), "to be uncordoned and idle", content)
	f.booted(t, h, boots+1)
	b.lift(t)
	sh(t, h, "systemctl unmask --runtime "+realhost.EngineUnit+" && systemctl start "+realhost.EngineUnit)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+2)
}

// testWatchdog stops the process during a drain. systemd must notice that the process no longer feeds its watchdog.
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
		t.Error("the journal does not mention the watchdog")
	}
	f.draining(t, h)
	b.lift(t)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	sh(t, h, "rm "+short+" && systemctl daemon-reload && systemctl restart lockkeeper")
}

// testDiskFull fills the disks of lockkeeper's status files and of the journal.
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
	f.updated(t, aTurn, version, h) // the reboot frees the disks
	f.booted(t, h, boots+1)
}
