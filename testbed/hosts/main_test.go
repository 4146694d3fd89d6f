package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	lab        *realhost.Lab
	cp         *controlplane.ControlPlane
	lockkeeper string // the binary
	absent     error  // why this machine cannot run hosts
)

func TestMain(m *testing.M) {
	if os.Getenv(selfEnv) != "" {
		os.Exit(itself())
	}
	if absent = realhost.Missing(); absent != nil {
		fmt.Fprintf(os.Stderr, "hosts: LEFT OUT: all tests with real hosts: %v\n", absent)
		os.Exit(m.Run())
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if lab, err = realhost.NewLab(ctx, os.Stderr); err == nil {
		err = realhost.Prepare(ctx, os.Stderr)
	}
	if err == nil {
		lockkeeper, err = simhost.BuildLockkeeper(ctx, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	opts := controlplane.Options{Addresses: []netip.Addr{lab.Gateway()}}
	status := controlplane.RunTests(m, opts, func(c *controlplane.ControlPlane) { cp = c })
	if err := lab.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

// host starts one host with files until the test ends.
func host(t *testing.T, prefix string, files map[string][]byte, enable ...string) *realhost.Host {
	t.Helper()
	return start(t, prefix, realhost.Options{Files: files}, enable...)
}

// start is like host, for a host that needs more than files.
func start(t *testing.T, prefix string, o realhost.Options, enable ...string) *realhost.Host {
	t.Helper()
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	o.Enable = enable
	f, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: prefix, Host: o})
	must(t, err)
	t.Cleanup(f.Close)
	return f.Hosts[0]
}

// exec runs a shell script on the host and returns its output. It ignores the exit status.
func exec(t *testing.T, h *realhost.Host, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, _ := h.Exec(ctx, "env", "--chdir=/", "sh", "-c", script)
	return strings.TrimSpace(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until cond returns true.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out after %v waiting for %s", within, what)
		}
	}
}

// unit returns a hook unit that runs a script, with additional lines for its service.
func unit(target, script string, more ...string) []byte {
	return fmt.Appendf(nil, "[Unit]\nDescription=a hook\n[Service]\nType=oneshot\nExecStart=/bin/sh -ec '%s'\n%s\n[Install]\nWantedBy=%s\n",
		script, strings.Join(more, "\n"), target)
}

// selfEnv makes this program the service on the host, see itself.
const selfEnv = "LOCKKEEPER_HOSTS_ITSELF"

// soon returns the deadline for requests of a test to systemd. It is long enough for a busy machine.
func soon() time.Time { return time.Now().Add(time.Minute) }
