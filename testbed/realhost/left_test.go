package realhost

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// ownerEnv makes this test binary a program that owns a lab with a host until the program ends. With the value panic it
// ends by a panic.
const ownerEnv = "REALHOST_TEST_OWNER"

// own creates the lab, boots a host and prints their locations.
func own() error {
	ctx := context.Background()
	l, err := NewLab(ctx, nil)
	if err != nil {
		return err
	}
	control, err := controlplane.Start(ctx, controlplane.Options{
		Addresses: []netip.Addr{l.Gateway()},
		Without:   []controlplane.Component{controlplane.ControllerManager, controlplane.Scheduler, controlplane.Ballast, controlplane.Pods},
	})
	if err != nil {
		return err
	}
	f, err := StartFleet(ctx, l, control, FleetOptions{Hosts: 1, Prefix: "left-"})
	if err != nil {
		return err
	}
	fmt.Printf("%s %s %d %d\n", l.tag, l.dir, f.Hosts[0].current().pid, l.janitor.Process.Pid)
	if os.Getenv(ownerEnv) == "panic" {
		go func() { panic("as it happens") }()
	}
	select {}
}

// remains returns what is left of a lab on the machine.
func remains(t *testing.T, tag, dir string, pid int) (all []string) {
	t.Helper()
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + tag)
	must(t, err)
	links, err := filepath.Glob("/sys/class/net/*" + tag + "*")
	must(t, err)
	nspawn, err := filepath.Glob("/run/systemd/nspawn/propagate/" + tag + "-*")
	must(t, err)
	lock := filepath.Join(locksDir, strings.TrimPrefix(tag, labPrefix))
	// A lab of another process may have taken the number, once it was free.
	if owner, err := os.ReadFile(lock); err != nil || string(owner) == dir {
		all = append(append(groups, links...), nspawn...)
	} else {
		lock = ""
	}
	for _, path := range []string{dir, lock} {
		if _, err := os.Stat(path); err == nil {
			all = append(all, path)
		}
	}
	if !dead(pid) {
		all = append(all, fmt.Sprintf("process %d", pid))
	}
	mounts, err := os.ReadFile("/proc/mounts")
	must(t, err)
	if strings.Contains(string(mounts), dir) {
		all = append(all, "mounts below "+dir)
	}
	return all
}

// dead reports whether a process is gone, or is a zombie.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// owner is a process with its own lab.
type owner struct {
	cmd          *osexec.Cmd
	tag, dir     string
	pid, janitor int
}

func startOwner(t *testing.T, how string) *owner {
	t.Helper()
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	o := &owner{cmd: osexec.CommandContext(t.Context(), os.Args[0])}
	o.cmd.Env = append(os.Environ(), ownerEnv+"="+how)
	o.cmd.Stderr = os.Stderr
	out, err := o.cmd.StdoutPipe()
	must(t, err)
	must(t, o.cmd.Start())
	t.Cleanup(func() { _ = o.cmd.Process.Kill(); _ = o.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	_, err = fmt.Sscan(line, &o.tag, &o.dir, &o.pid, &o.janitor)
	must(t, err)
	if len(remains(t, o.tag, o.dir, o.pid)) < 5 && how != "panic" {
		t.Fatalf("the running host was not found: %v", remains(t, o.tag, o.dir, o.pid))
	}
	return o
}

func TestNothingIsLeft(t *testing.T) {
	for how, end := range map[string]func(o *owner) error{
		"terminated": func(o *owner) error { return o.cmd.Process.Signal(syscall.SIGTERM) },
		"panic":      func(*owner) error { return nil },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			o := startOwner(t, how)
			must(t, end(o))
			t.Cleanup(func() { t.Logf("left: %v", remains(t, o.tag, o.dir, o.pid)) })
			eventually(t, "nothing to be left", func() bool { return len(remains(t, o.tag, o.dir, o.pid)) == 0 })
		})
	}
	t.Run("with its janitor", func(t *testing.T) {
		t.Parallel()
		o := startOwner(t, "killed")
		must(t, syscall.Kill(o.janitor, syscall.SIGKILL))
		must(t, o.cmd.Process.Kill())
		_ = o.cmd.Wait()
		eventually(t, "the janitor to be dead", func() bool { return dead(o.janitor) })
		if len(remains(t, o.tag, o.dir, o.pid)) < 5 {
			t.Errorf("without a janitor only %v is left: nothing to sweep", remains(t, o.tag, o.dir, o.pid))
		}
		must(t, Sweep(soon(t)))
		if left := remains(t, o.tag, o.dir, o.pid); len(left) > 0 {
			t.Errorf("left after the sweep: %v", left)
		}
	})
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		if absent != nil {
			t.Skipf("left out: %v", absent)
		}
		l, err := NewLab(soon(t), nil)
		must(t, err)
		must(t, l.Close())
		must(t, l.Close())
		if left := remains(t, l.tag, l.dir, -1); len(left) > 0 {
			t.Errorf("left after Close: %v", left)
		}
		if _, err := l.add(&Host{}); err == nil {
			t.Error("a closed lab accepts a host")
		}
	})
}
