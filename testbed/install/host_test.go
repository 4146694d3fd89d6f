package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	packagePath    = "/tmp/lockkeeper.deb"
	credentialPath = "/etc/lockkeeper/coordinator.kubeconfig"
	hookUnit       = "kubeadm-upgrade-node.service" // of docs/recipes.md
)

// host is a simulated host as ssh reaches it: the few commands that an installation needs.
type host struct {
	*simhost.Host
	binary string

	mu      sync.Mutex
	copied  bool // the package is there
	secrets int  // how often a credential was put there
}

func (h *host) Run(ctx context.Context, command string) (string, int, error) {
	switch command {
	case "apt-get install -y " + packagePath, "apt-get install -y -o Dpkg::Options::=--force-confold " + packagePath:
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.copied {
			return "E: Unsupported file " + packagePath + " given on commandline\n", 100, nil
		}
		if h.PID() != 0 {
			h.StopLockkeeper() // an upgrade restarts it
		}
		return "", 0, h.StartLockkeeper() // as the package does
	case "systemctl status lockkeeper":
		if h.PID() == 0 {
			return "inactive (dead)\n", 3, nil
		}
		return fmt.Sprintf("     Active: active (running)\n   Main PID: %d (lockkeeper)\n     Status: %q\n", h.PID(), h.Notify().Status), 0, nil
	case "lockkeeper status":
		cmd := exec.CommandContext(ctx, h.binary, "status", "--root", h.Root())
		cmd.Env = []string{"HOME=" + h.Dir()}
		out, err := cmd.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); exited {
			err = nil
		}
		return string(out), cmd.ProcessState.ExitCode(), err
	case "rm " + credentialPath:
		return "", 0, os.Remove(h.credential())
	case "systemctl enable " + hookUnit:
		return "", 0, h.wants(hookUnit)
	case "systemctl disable " + hookUnit:
		return "", 0, h.wants()
	}
	return "", 0, errors.New("no simulated host knows this command")
}

// Put copies as scp does: into the file that is there, if one is.
func (h *host) Put(_ context.Context, path string, data []byte, mode os.FileMode) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch path {
	case packagePath:
		h.copied = true
		return nil
	case credentialPath:
		if mode != 0o600 {
			return fmt.Errorf("a secret whose mode is %v", mode)
		}
		h.secrets++
		return os.WriteFile(h.credential(), data, mode)
	case "/usr/local/sbin/kubeadm-upgrade-node":
		if mode != 0o755 {
			return fmt.Errorf("a program whose mode is %v", mode)
		}
		return h.WriteFile(path, string(data))
	case "/etc/systemd/system/" + hookUnit:
		return errors.Join(h.WriteFile(path, string(data)), h.Units().Set(hookUnit, simhost.Unit{Load: "loaded"}))
	}
	return errors.New("no simulated host has a place for this file")
}

// wants sets the units that run before a reboot, and starts lockkeeper again: the stand-in for systemd does not say that units
// were enabled.
func (h *host) wants(units ...string) error {
	if err := h.Units().Set("lockkeeper-before-reboot.target", simhost.Unit{Load: "loaded", Wants: units}); err != nil {
		return err
	}
	h.StopLockkeeper()
	return h.StartLockkeeper()
}

// credential is where the host's file has it.
func (h *host) credential() string { return filepath.Join(h.Dir(), "coordinator.kubeconfig") }
