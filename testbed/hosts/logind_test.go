package hosts

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// checkLogind calls reboots on a real logind that does not run, and on one that hangs until the call is given up: the host does not
// reboot, neither then nor when logind is back.
func checkLogind(t *testing.T, h *realhost.Host) {
	t.Helper()
	l := systemd.Logind{Bus: bus(t, h)}
	reboot := func() *systemd.CallError {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		e, ok := errors.AsType[*systemd.CallError](l.Reboot(ctx))
		if !ok {
			t.Fatal("the reboot was accepted")
		}
		return e
	}
	stays := func(when string) {
		t.Helper()
		// Its answer comes after what it was sent before.
		eventually(t, time.Minute, "logind to answer "+when, func() bool { _, err := l.BlockingInhibitors(t.Context()); return err == nil })
		if underway, err := l.RebootUnderway(t.Context()); underway || err != nil || h.Reboots() > 0 {
			t.Errorf("%s: a reboot is under way: %t, %v; %d reboots", when, underway, err, h.Reboots())
		}
	}

	exec(t, h, "systemctl stop systemd-logind")
	if err := reboot(); !errors.Is(err, systemd.ErrAbsent) || !err.Refused() {
		t.Errorf("without logind: %v", err)
	}
	if underway, err := l.RebootUnderway(t.Context()); underway || err != nil {
		t.Errorf("without logind: a reboot is under way: %t, %v", underway, err)
	}
	stays("after it was stopped")

	exec(t, h, "kill -STOP $(systemctl show --value --property=MainPID systemd-logind)")
	if err := reboot(); err.Refused() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of a logind that hangs: %v", err)
	}
	exec(t, h, "kill -CONT $(systemctl show --value --property=MainPID systemd-logind)")
	stays("after it hung")
}
