package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// These are paths on the host. The page's link and images end in .raw.
const (
	sysextLink   = "/etc/extensions/lockkeeper"
	sysextImages = "/opt/extensions/lockkeeper"
)

func sysextImage(version string) string { return sysextImages + "/lockkeeper-" + version }

// TestSysext takes the image through its life on a host that identifies itself as Flatcar: merge, update, back to the
// older image, remove. The commands are those of docs/flatcar.md and docs/uninstall.md, with two differences. A host in
// systemd-nspawn has no loop devices, so systemd-sysext cannot mount an image in a file: each image is a directory with
// the content of the file, which the test mounts on the machine. And a stand-in for systemd-sysupdate downloads nothing;
// it only sets the link.
func TestSysext(t *testing.T) {
	leftOut(t)
	must(t, cp.ApplyLockkeeper(within(t, soon)))
	fleet, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: "flatcar-", Host: realhost.Options{
		OSRelease: map[string]string{"ID": "flatcar", "SYSEXT_LEVEL": "1.0"},
		Files:     map[string][]byte{dropInPath: []byte(dropIn), "/etc/systemd/system/lockkeeper-sysupdate.service": updateService(t)},
		Binds:     map[string]string{"/mnt/older": unpackImage(t, debs.older), "/mnt/newer": unpackImage(t, debs.newer)},
	}})
	must(t, err)
	t.Cleanup(fleet.Close)
	s := shell{t, fleet.Hosts[0]}

	must(t, s.host.WriteFile(within(t, soon), "/usr/lib/systemd/systemd-sysupdate",
		[]byte("#!/bin/sh\nln -sfn "+sysextImage(newerVersion)+" "+sysextLink+"\n"), 0o755))
	s.do("mkdir -p /etc/extensions " + sysextImages)
	s.do("cp -a /mnt/older " + sysextImage(olderVersion) + "; ln -s " + sysextImage(olderVersion) + " " + sysextLink)
	s.do(`systemctl daemon-reload
systemctl restart systemd-sysext.service
systemctl daemon-reload
systemctl start lockkeeper-sysext.target`)
	s.runs(olderVersion)
	s.is("is-active", "active")

	s.do("cp -a /mnt/newer " + sysextImage(newerVersion))
	s.restarts("systemctl start lockkeeper-sysupdate.service")
	s.runs(newerVersion)
	current, err := pid(within(t, soon), s.host)
	must(t, err)
	s.do("systemctl start lockkeeper-sysupdate.service") // there is nothing new
	if now, err := pid(within(t, soon), s.host); err != nil || now != current {
		t.Errorf("PID %d (%v) after an update to the same image, before %d", now, err, current)
	}

	s.restarts("ln -sfn " + sysextImage(olderVersion) + " " + sysextLink + `
systemctl restart systemd-sysext.service
systemctl daemon-reload
systemctl restart lockkeeper.service`)
	s.runs(olderVersion)
	removeSysext(s)
}

// removeSysext removes the images. multi-user.target upholds the target that wants the service as long as the image is
// merged, and must not start either of them again.
func removeSysext(s shell) {
	s.leaves("lockkeeper leave --this-host", "")
	s.do("rm -r " + sysextLink + " " + sysextImages + `
systemd-sysext refresh
systemctl daemon-reload
systemctl stop lockkeeper-sysext.target lockkeeper.service
test ! -e /usr/bin/lockkeeper`)
	s.do("systemctl start multi-user.target") // which has systemd look again at what it upholds
	eventually(s.T, soon, "systemd to have no jobs", func(ctx context.Context) (bool, error) {
		out, err := s.host.Exec(ctx, "systemctl", "list-jobs", "--no-legend")
		return strings.TrimSpace(out) == "", err
	})
	s.is("is-active", "inactive")
	if out, err := s.host.Exec(within(s.T, soon), "pidof", "lockkeeper"); err == nil {
		s.Errorf("lockkeeper runs although it was removed: %s", out)
	}
	s.notFailed()
}

// unpackImage returns a directory with the content of the sysext image of a release.
func unpackImage(t *testing.T, deb string) string {
	t.Helper()
	image, err := beside(deb, "lockkeeper-*.raw")
	must(t, err)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	said, err := exec.CommandContext(within(t, soon), "unshare", "--mount", "--propagation", "private", "sh", "-ec",
		`mount -t squashfs -o loop,ro "$1" /mnt && cp -a /mnt/. "$2"`, "sh", image, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("mounting the image: %v\n%s", err, said)
	}
	return dir
}

// updateService returns lockkeeper-sysupdate.service of a release's Ignition file, with this test's link.
func updateService(t *testing.T) []byte {
	t.Helper()
	file, err := beside(debs.older, "lockkeeper-*.ign")
	must(t, err)
	data, err := os.ReadFile(file)
	must(t, err)
	var ignition struct {
		Systemd struct {
			Units []struct{ Name, Contents string }
		}
	}
	must(t, json.Unmarshal(data, &ignition))
	for _, u := range ignition.Systemd.Units {
		if u.Name == "lockkeeper-sysupdate.service" && strings.Contains(u.Contents, sysextLink+".raw;") {
			return []byte(strings.ReplaceAll(u.Contents, sysextLink+".raw", sysextLink))
		}
	}
	t.Fatalf("%s has no lockkeeper-sysupdate.service with the link %s.raw", filepath.Base(file), sysextLink)
	return nil
}
