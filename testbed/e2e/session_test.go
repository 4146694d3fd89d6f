package e2e

import (
	"context"
	"strings"
	"testing"
)

// testLoggedIn: someone logs in by login and PAM, which gives logind a session with a terminal. Out of the shipped unit's sandbox the
// service warns them there, twice, and waits for the delay of the host's file.
func testLoggedIn(t *testing.T, f *fleet) {
	const (
		unit  = "somebody-logged-in"
		shown = "/var/lib/shown" // all that their terminal showed; it outlives the boot
	)
	h := f.follower(t)
	boots := h.Boots()
	// Debian's login closes its terminals to the group tty. sshd and the login of other distributions do not, nor does this.
	sh(t, h, "sed -i 's/^TTYPERM.*/TTYPERM 0620/' /etc/login.defs")
	// Their shell would end with its input, and util-linux's login stops unless it leads the session of its terminal.
	sh(t, h, "systemd-run --unit="+unit+` sh -c "sleep infinity | script --quiet --flush --command 'exec login -f core' `+shown+`"`)
	eventually(t, soon, "logind to know of them", func(ctx context.Context) (bool, error) {
		out, err := h.Exec(ctx, "loginctl", "--no-legend", "list-sessions")
		return strings.Contains(out, "core") && strings.Contains(out, "pts/"), err
	})
	version := f.stage(t, h)
	f.says(t, h, "rebooting", "Sessions", "core on pts/")
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
	warnings := strings.Count(sh(t, h, "cat "+shown), "THIS HOST REBOOTS")
	if warnings != 2 {
		t.Errorf("their terminal showed %d warnings of the reboot, expected two", warnings)
	}
	sh(t, h, "rm "+shown)
}
