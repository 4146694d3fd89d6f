package realhost

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// bootTimeout bounds the time in which systemd-nspawn starts the host's systemd. It sets up namespaces and mounts.
const bootTimeout = 90 * time.Second

// findInit waits for the host's systemd: a child of systemd-nspawn that is the first process of a PID namespace and has
// set its process name to systemd. It polls, because there is nothing to watch.
func (h *Host) findInit(nspawn int, ended <-chan error) (int, error) {
	deadline := time.NewTimer(bootTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn, nspawn))
		for child := range strings.FieldsSeq(string(children)) {
			if status, err := os.ReadFile("/proc/" + child + "/status"); err == nil && isInit(string(status)) {
				var pid int
				_, err := fmt.Sscan(child, &pid)
				return pid, err
			}
		}
		select {
		case err := <-ended:
			return 0, fmt.Errorf("systemd-nspawn exited before systemd ran: %w", errors.Join(err))
		case <-h.life.Done():
			return 0, errors.New("the host was closed")
		case <-deadline.C:
			return 0, fmt.Errorf("systemd does not run %s after the start of systemd-nspawn", bootTimeout)
		case <-tick.C:
		}
	}
}

func isInit(status string) bool {
	name, first := false, false
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "Name:":
			name = fields[1] == "systemd"
		case len(fields) > 2 && fields[0] == "NSpid:":
			first = fields[len(fields)-1] == "1"
		}
	}
	return name && first
}

// bootIDOf reads a host's boot id. systemd-nspawn creates a new one for each boot and mounts it over the one of the
// machine.
func bootIDOf(pid int) string {
	id, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/sys/kernel/random/boot_id", pid))
	return strings.TrimSpace(string(id))
}

// kill cuts the power: the kernel kills everything in the PID namespace with its first process.
func (b *boot) kill() { _ = syscall.Kill(b.pid, syscall.SIGKILL) }
