package hosts

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// checkLogind calls for reboots with a real logind that does not run, and with one that hangs until the call is
// canceled. The host must not reboot, neither then nor when logind is back.
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
		// logind answers in order, so this answer comes after the processing of the earlier calls.
		eventually(t, time.Minute, "logind to answer "+when, func() bool { _, err := l.BlockingInhibitors(t.Context()); return err == nil })
		if underway, err := l.RebootUnderway(t.Context()); underway || err != nil || h.Reboots() > 0 {
			t.Errorf("%s: reboot in progress: %t, %v; %d reboots", when, underway, err, h.Reboots())
		}
	}

	exec(t, h, "systemctl stop systemd-logind")
	if err := reboot(); !errors.Is(err, systemd.ErrAbsent) || !err.Refused() {
		t.Errorf("without logind: %v", err)
	}
	if underway, err := l.RebootUnderway(t.Context()); underway || err != nil {
		t.Errorf("without logind: reboot in progress: %t, %v", underway, err)
	}
	stays("after it was stopped")

	exec(t, h, "kill -STOP $(systemctl show --value --property=MainPID systemd-logind)")
	if err := reboot(); err.Refused() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a hanging logind: %v", err)
	}
	exec(t, h, "kill -CONT $(systemctl show --value --property=MainPID systemd-logind)")
	stays("after it hung")
}
