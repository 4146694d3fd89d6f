package realhost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Packages are the Debian packages that have the programs that real hosts need on the machine.
var Packages = []string{"systemd-container", "mmdebstrap", "iproute2", "util-linux"}

// programs are what is called on the machine.
var programs = []string{"systemd-nspawn", "mmdebstrap", "ip", "bridge", "unshare"}

// Missing says why real hosts cannot be run here, nil if they can. A test that is left out for it prints it.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("real hosts need root")
	}
	var missing []string
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("real hosts need %s: apt-get install %s", strings.Join(missing, ", "), strings.Join(Packages, " "))
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("real hosts need overlayfs: %w", err)
	}
	if !strings.Contains(string(known), "\toverlay\n") {
		return errors.New("real hosts need overlayfs: this kernel has none, or its module is not loaded")
	}
	return nil
}
