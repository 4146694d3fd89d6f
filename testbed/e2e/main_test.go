package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

var (
	lab    *realhost.Lab
	cp     *controlplane.ControlPlane
	debs   packages
	absent error // why this machine cannot run hosts
	// release is the release of each host of a fleet.
	release [3]realhost.Release
)

func TestMain(m *testing.M) {
	if absent = realhost.Missing(); absent != nil {
		fmt.Fprintf(os.Stderr, "e2e: LEFT OUT: installation, roll-out and faults on real hosts: %v\n", absent)
		os.Exit(m.Run())
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer debs.remove()
	opts := controlplane.Options{Addresses: []netip.Addr{lab.Gateway()}, NodeMonitorGrace: nodeGrace}
	status := controlplane.RunTests(m, opts, func(c *controlplane.ControlPlane) { cp = c })
	if err := lab.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

// prepare builds what the tests need before a control plane runs.
func prepare(ctx context.Context) (err error) {
	if lab, err = realhost.NewLab(ctx, os.Stderr); err != nil {
		return err
	}
	if err = realhost.Prepare(ctx, os.Stderr); err == nil {
		err = chooseReleases(ctx)
	}
	if err == nil {
		debs, err = buildPackages(ctx)
	}
	if err != nil {
		_ = lab.Close() // err already describes the failure
	}
	return err
}

// chooseReleases makes one host of a fleet run the newest release, if its packages can be downloaded.
func chooseReleases(ctx context.Context) error {
	usual, err := realhost.DefaultRelease()
	if err != nil {
		return err
	}
	for i := range release {
		release[i] = usual
	}
	if _, err := realhost.Tree(ctx, os.Stderr, realhost.Trixie); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: LEFT OUT: a host with systemd 257 (Debian %s): %v\n", realhost.Trixie, err)
		return ctx.Err()
	}
	release[newer] = realhost.Trixie
	return nil
}

// nodeGrace is the time without a heartbeat after which a Node is no longer Ready. A real kubelet sends a heartbeat
// every 10 s.
const nodeGrace = 25 * time.Second

// These are the limits of waits. They allow for a busy machine.
const (
	soon   = 90 * time.Second // an operation that takes seconds
	aTurn  = 4 * time.Minute  // a turn with its reboot
	aFleet = 10 * time.Minute // a turn of each host
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster returns a scene with the waits for objects in the cluster.
func cluster(t *testing.T) *rig.Scene { return &rig.Scene{T: t, Rig: &rig.Rig{ControlPlane: cp}} }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	return cluster(t).Within(d)
}

// eventually polls until cond returns true. An error counts as false.
func eventually(t *testing.T, d time.Duration, what string, cond func(ctx context.Context) (bool, error)) {
	t.Helper()
	cluster(t).EventuallyWithin(d, what, func(ctx context.Context) (bool, error) {
		ok, err := cond(ctx)
		return ok && err == nil, err
	})
}

// leftOut skips a test if there are no real hosts; [TestMain] has printed the reason.
func leftOut(t *testing.T) {
	t.Helper()
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
}

// soak reports whether the long tests should run too.
func soak() bool { return os.Getenv("LOCKKEEPER_SOAK") != "" }
