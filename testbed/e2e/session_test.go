package e2e

import (
	"context"
	"strings"
	"testing"
)

// testLoggedIn logs a user in through login and PAM, which gives logind a session with a terminal. The service must
// warn the user twice there, from the sandbox of the packaged unit, and wait for the delay in the host's file.
func testLoggedIn(t *testing.T, f *fleet) {
	const (
		unit  = "somebody-logged-in"
		shown = "/var/lib/shown" // everything that the terminal showed; survives the reboot
	)
	h := f.follower(t)
	boots := h.Boots()
	// Debian's login denies the group tty access to its terminals. sshd and the login of other distributions do not,
	// so this test allows it too.
	sh(t, h, "sed -i 's/^TTYPERM.*/TTYPERM 0620/' /etc/login.defs")
	// The user's shell would end with its input, and login of util-linux stops unless it leads the session of its
	// terminal.
	sh(t, h, "systemd-run --unit="+unit+` sh -c "sleep infinity | script --quiet --flush --command 'exec login -f core' `+shown+`"`)
	eventually(t, soon, "logind to list the session", func(ctx context.Context) (bool, error) {
		out, err := h.Exec(ctx, "loginctl", "--no-legend", "list-sessions")
		return strings.Contains(out, "core") && strings.Contains(out, "pts/"), err
	})
	version := f.stage(t, h)
	f.says(t, h, "rebooting", "Sessions", "core on pts/")
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	warnings := strings.Count(sh(t, h, "cat "+shown), "THIS HOST REBOOTS")
	if warnings != 2 {
		t.Errorf("the terminal showed %d warnings of the reboot, expected two", warnings)
	}
	sh(t, h, "rm "+shown)
}
