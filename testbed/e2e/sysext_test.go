package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// TestSysext merges the image into the /usr of a host that identifies itself as Flatcar, with systemd-sysext. The
// service must start with only the files of the image. A host has no loop devices, so the test mounts the image on the
// machine, in a mount namespace that ends with the command, and copies the content to the host.
func TestSysext(t *testing.T) {
	leftOut(t)
	images, err := filepath.Glob(filepath.Join(filepath.Dir(debs.older), "lockkeeper-*.raw"))
	must(t, err)
	if len(images) != 1 {
		t.Fatalf("%d images next to the package, expected one: %v", len(images), images)
	}
	extension := t.TempDir()
	must(t, os.Chmod(extension, 0o755))
	said, err := exec.CommandContext(within(t, soon), "unshare", "--mount", "--propagation", "private", "sh", "-ec",
		`mount -t squashfs -o loop,ro "$1" /mnt && cp -a /mnt/. "$2"`, "sh", images[0], extension).CombinedOutput()
	if err != nil {
		t.Fatalf("mounting the image: %v\n%s", err, said)
	}
	must(t, cp.ApplyLockkeeper(within(t, soon)))
	fleet, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: "flatcar-", Host: realhost.Options{
		OSRelease: map[string]string{"ID": "flatcar", "SYSEXT_LEVEL": "1.0"},
		Files:     map[string][]byte{dropInPath: []byte(dropIn)},
		Binds:     map[string]string{"/var/lib/extensions/lockkeeper": extension},
	}})
	must(t, err)
	t.Cleanup(fleet.Close)
	h := fleet.Hosts[0]
	do := func(args ...string) string {
		t.Helper()
		out, err := h.Exec(within(t, soon), args...)
		t.Logf("# %s\n%s", strings.Join(args, " "), out)
		must(t, err)
		return out
	}
	if _, err := h.Exec(within(t, soon), "test", "-e", "/usr/bin/lockkeeper"); err == nil {
		// systemd-sysext.service may have merged the image during the boot, so the following steps would prove
		// nothing.
		do("systemd-sysext", "unmerge")
	}
	do("systemd-sysext", "merge")
	do("systemctl", "daemon-reload")
	// Flatcar does the same after it has merged extensions: it starts the targets again, with what the extensions add
	// to them.
	do("systemctl", "restart", "--no-block", "multi-user.target")
	until(t, soon, h.Name(), "to have published", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+olderVersion })
	eventually(t, soon, "the service to be active", func(ctx context.Context) (bool, error) {
		out, err := h.Exec(ctx, "systemctl", "is-active", "lockkeeper")
		return strings.TrimSpace(out) == "active", err
	})
	do("systemctl", "status", "--no-pager", "lockkeeper")
	// The order of docs/uninstall.md: as long as the image is there, multi-user.target starts the target again.
	do("systemd-sysext", "unmerge")
	do("systemctl", "daemon-reload")
	do("systemctl", "stop", "lockkeeper-sysext.target", "lockkeeper.service")
	if upheld := do("systemctl", "show", "--property", "Upholds", "--value", "multi-user.target"); strings.TrimSpace(upheld) != "" {
		t.Errorf("multi-user.target upholds %q", upheld)
	}
	if out, err := h.Exec(within(t, soon), "systemctl", "is-active", "lockkeeper-sysext.target", "lockkeeper.service"); err == nil || out != "inactive\ninactive\n" {
		t.Errorf("after the image is gone: %v\n%s", err, out)
	}
	if _, err := h.Exec(within(t, soon), "test", "-e", "/usr/bin/lockkeeper"); err == nil {
		t.Error("the binary exists without the extension")
	}
}
