package realhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Packages lists the Debian packages with the programs that real hosts need on the machine.
var Packages = []string{"systemd-container", "mmdebstrap", "iproute2", "util-linux"}

// programs lists the programs that the package calls on the machine.
var programs = []string{"systemd-nspawn", "mmdebstrap", "ip", "bridge", "unshare"}

// Missing returns the reason why real hosts cannot run on this machine, or nil. It checks the requirements, and tries
// small versions of the operations. A test that is skipped because of Missing prints its error.
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
		return errors.New("real hosts need overlayfs: this kernel does not support it, or the module is not loaded")
	}
	return refused()
}

// try is a small version of what a host needs: namespaces with their own overlay and network. An installed program does
// not prove that a sandbox allows what the program does.
const try = `
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lower /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
ip link add probe-br type bridge
ip link add probe-a type veth peer name probe-b
ip link set probe-a master probe-br
`

// refused returns the operations that this machine refuses to root, or nil. It tries them once.
var refused = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), tryBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "--net", "--pid", "--uts", "--ipc", "--fork", "sh", "-ec", try)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("real hosts need mounts, networks and namespaces, which this machine refuses: %w: %s", err, bytes.TrimSpace(said))
	}
	name := fmt.Sprintf("lockkeeper-probe-%d", os.Getpid())
	made, err := makeCgroups(name)
	for _, dir := range made {
		err = errors.Join(err, os.Remove(dir))
	}
	if err != nil {
		return fmt.Errorf("real hosts need cgroups, which this machine refuses: %w", err)
	}
	return nil
})

// tryBound is the timeout of these tries.
const tryBound = 2 * time.Minute
