package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// TestPackage takes the package through its life on a host: install, reload, upgrade, stop and upgrade, remove, purge.
// It uses the packaged command line and configuration.
func TestPackage(t *testing.T) {
	leftOut(t)
	must(t, cp.ApplyLockkeeper(within(t, soon))) // a host publishes nothing before it has read the policies
	fleet, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: "spare-", Host: realhost.Options{
		Files: map[string][]byte{dropInPath: []byte(ownProc)},
	}})
	must(t, err)
	t.Cleanup(fleet.Close)
	h := fleet.Hosts[0]
	is := func(property, want string) {
		t.Helper()
		out, err := h.Exec(within(t, soon), "systemctl", property, "lockkeeper")
		if _, exited := errors.AsType[*realhost.ExecError](err); !exited {
			must(t, err)
		}
		if got := strings.TrimSpace(out); got != want {
			t.Errorf("systemctl %s lockkeeper: %q, expected %q", property, got, want)
		}
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := h.Exec(within(t, soon), args...)
		t.Logf("# %s\n%s", strings.Join(args, " "), out)
		must(t, err)
		return out
	}
	put := func(deb string) {
		t.Helper()
		out, err := install(within(t, soon), h, deb)
		t.Logf("# dpkg -i\n%s", out)
		must(t, err)
	}

	put(debs.older)
	is("is-enabled", "enabled")
	is("is-active", "active")
	until(t, soon, h.Name(), "to have published", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+olderVersion })

	if out := do("systemctl", "show", "--property=ExecStart", "--value", "lockkeeper"); !strings.Contains(out, "argv[]=/usr/bin/lockkeeper run ;") {
		t.Errorf("the command line differs from the package: %s", out)
	}

	const edited = "# edited by an administrator"
	do("sh", "-c", "echo '"+edited+"' >>/etc/lockkeeper/lockkeeper.toml")
	before, err := pid(within(t, soon), h)
	must(t, err)
	do("systemctl", "reload", "lockkeeper")
	eventually(t, soon, "the reload to be in the journal", func(ctx context.Context) (bool, error) {
		said, err := h.Journal(ctx, "lockkeeper.service")
		return strings.Contains(said, "configuration reloaded"), err
	})
	if now, err := pid(within(t, soon), h); err != nil || now != before {
		t.Errorf("PID %d (%v) after a reload, before %d", now, err, before)
	}

	put(debs.newer)
	restarted(t, h, before)
	until(t, soon, h.Name(), "to be upgraded", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+newerVersion })
	if text := do("cat", "/etc/lockkeeper/lockkeeper.toml"); !strings.Contains(text, edited) {
		t.Error("the administrator's edit is gone after an upgrade")
	}

	do("systemctl", "stop", "lockkeeper")
	put(debs.older) // a downgrade
	is("is-active", "inactive")
	do("systemctl", "start", "lockkeeper")
	until(t, soon, h.Name(), "to be downgraded", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+olderVersion })

	do("dpkg", "-r", "lockkeeper")
	is("is-active", "inactive")
	do("sh", "-c", "test ! -e /usr/bin/lockkeeper && grep -q '"+edited+"' /etc/lockkeeper/lockkeeper.toml")
	put(debs.older)
	is("is-enabled", "enabled")
	is("is-active", "active")
	do("dpkg", "-P", "lockkeeper")
	do("sh", "-c", "test ! -e /etc/lockkeeper && test ! -e /var/cache/lockkeeper && test ! -e /etc/systemd/system/multi-user.target.wants/lockkeeper.service")
	if out := do("systemctl", "--failed", "--no-legend"); strings.Contains(out, "lockkeeper") {
		t.Errorf("systemd still knows the unit: %s", out)
	}
}
