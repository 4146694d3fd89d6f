package realhost

import (
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/engine"
)

//go:embed files
var files embed.FS

// These are paths in a host.
const (
	osReleaseFile = "/usr/lib/os-release"
	engineState   = "/var/lib/update-engine"
	// KubeletKubeconfig is the path of the kubelet's credential, the same as with kubeadm.
	KubeletKubeconfig = "/etc/kubernetes/kubelet.conf"
)

// sysctls are the settings under /proc/sys that the kubelet requires.
var sysctls = map[string]string{"vm.overcommit_memory": "1", "kernel.panic": "10", "kernel.panic_on_oops": "1"}

// install writes the files that turn the tree into this host, into the host's overlay directory.
func (h *Host) install() error {
	// An earlier host with this name in the lab has left its disk.
	if err := os.RemoveAll(h.dir); err != nil {
		return err
	}
	for _, dir := range []string{"up", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	h.machineID = hex.EncodeToString(id)
	kubeconfig, err := h.cp.KubeconfigAt(h.lab.Gateway(), "system:node:"+h.opts.Name, controlplane.NodesGroup)
	if err != nil {
		return err
	}
	config, err := files.ReadFile("files/kubelet.yaml")
	if err != nil {
		return err
	}
	all := map[string][]byte{
		"/etc/hostname":                []byte(h.opts.Name + "\n"),
		"/etc/hosts":                   fmt.Appendf(nil, "127.0.0.1 localhost\n%s %s\n", h.addr, h.opts.Name),
		"/etc/machine-id":              []byte(h.machineID + "\n"),
		osReleaseFile:                  []byte(h.opts.osRelease(firstVersion)),
		"/etc/kubernetes/kubelet.yaml": config,
		"/etc/kubernetes/kubelet.env":  fmt.Appendf(nil, "KUBELET_ARGS=%s\n", h.kubeletArgs()),
		"/etc/systemd/network/10-host0.network": fmt.Appendf(nil,
			"[Match]\nName=host0\n[Network]\nAddress=%s/24\nGateway=%s\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n", h.addr, h.lab.Gateway()),
		"/etc/systemd/journald.conf.d/testbed.conf": []byte("[Journal]\nStorage=persistent\nSystemMaxUse=64M\nRateLimitIntervalSec=0\n"),
	}
	for name, value := range sysctls {
		all["/usr/lib/hostparts/sysctl/"+name] = []byte(value + "\n")
	}
	enable := slices.Clone(h.opts.Enable)
	for name, folder := range map[string]string{
		"kubelet.service": "/usr/lib/systemd/system", "hostparts-runtime.service": "/usr/lib/systemd/system",
		"update-engine.service": "/usr/lib/systemd/system", "com.coreos.update1.conf": "/usr/share/dbus-1/system.d",
	} {
		data, err := files.ReadFile("files/" + name)
		if err != nil {
			return err
		}
		all[path.Join(folder, name)] = data
		if strings.HasSuffix(name, ".service") {
			enable = append(enable, name)
		}
	}
	maps.Copy(all, h.opts.Files)
	for name, data := range all {
		if err := h.writeUpper(name, data, modeOf(name)); err != nil {
			return err
		}
	}
	for _, unit := range enable {
		if err := h.linkUpper("/usr/lib/systemd/system/"+unit, "/etc/systemd/system/multi-user.target.wants/"+unit); err != nil {
			return err
		}
	}
	return h.writeUpper(KubeletKubeconfig, kubeconfig, 0o600)
}

func modeOf(name string) os.FileMode {
	switch path.Base(path.Dir(name)) {
	case "bin", "sbin":
		return 0o755
	}
	return 0o644
}

func (h *Host) kubeletArgs() string {
	args := []string{"--hostname-override=" + h.opts.Name, "--node-ip=" + h.addr.String()}
	if len(h.opts.Labels) > 0 {
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(h.opts.Labels)) {
			labels = append(labels, key+"="+h.opts.Labels[key])
		}
		args = append(args, "--node-labels="+strings.Join(labels, ","))
	}
	return strings.Join(args, " ")
}

// writeUpper changes the disk of a host that is down.
func (h *Host) writeUpper(name string, data []byte, mode os.FileMode) error {
	to := h.upper(name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("writing %s on the disk of %s: %w", name, h.opts.Name, err)
	}
	err := os.WriteFile(to, data, mode)
	if err == nil {
		err = os.Chmod(to, mode) // independent of the umask
	}
	if err != nil {
		return fmt.Errorf("writing %s on the disk of %s: %w", name, h.opts.Name, err)
	}
	return nil
}

func (h *Host) linkUpper(target, name string) error {
	to := h.upper(name)
	err := os.MkdirAll(filepath.Dir(to), 0o755)
	if err == nil {
		err = os.Remove(to)
	}
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.Symlink(target, to)
	}
	if err != nil {
		return fmt.Errorf("linking %s on the disk of %s: %w", name, h.opts.Name, err)
	}
	return nil
}

// upper returns the path of a changed file in the overlay.
func (h *Host) upper(name string) string { return filepath.Join(h.dir, "up", filepath.Clean("/"+name)) }

// prepareBoot changes the disk between two boots: from now on the host runs what the engine has staged.
func (h *Host) prepareBoot(next NextBoot) error {
	staged := h.upper(path.Join(engineState, engine.StagedFile))
	switch data, err := os.ReadFile(staged); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("reading the staged version: %w", err)
	default:
		if err := os.Remove(staged); err != nil {
			return fmt.Errorf("removing the staged version: %w", err)
		}
		if !next.OldVersion {
			h.setVersion(string(data))
		}
	}
	if err := h.writeUpper(osReleaseFile, []byte(h.opts.osRelease(h.Version())), 0o644); err != nil {
		return err
	}
	for _, unit := range next.Mask {
		if err := h.linkUpper("/dev/null", "/etc/systemd/system/"+unit); err != nil {
			return err
		}
	}
	if next.Prepare != nil {
		return next.Prepare()
	}
	return nil
}
