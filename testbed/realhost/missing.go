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

// Packages are the Debian packages that have the programs that real hosts need on the machine.
var Packages = []string{"systemd-container", "mmdebstrap", "iproute2", "util-linux"}

// programs are what is called on the machine.
var programs = []string{"systemd-nspawn", "mmdebstrap", "ip", "bridge", "unshare"}

// Missing says why real hosts cannot be run here, nil if they can: it looks for what they need, and tries in small what they do. A
// test that is left out for it prints it.
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
	return refused()
}

// try is what a host takes, in small: namespaces with an overlay and a network of their own. That a program is installed says
// nothing about what a sandbox lets it do.
const try = `
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lower /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
ip link add probe-br type bridge
ip link add probe-a type veth peer name probe-b
ip link set probe-a master probe-br
`

// refused says what of it this machine does not let root do, nil if nothing. It is tried once.
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

// tryBound is how long that may take.
const tryBound = 2 * time.Minute
