package realhost

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
)

var (
	lab    *Lab
	cp     *controlplane.ControlPlane
	absent error // why this machine cannot run hosts
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		fmt.Fprintln(os.Stderr, own())
		os.Exit(1)
	}
	if absent = Missing(); absent != nil {
		fmt.Fprintf(os.Stderr, "realhost: LEFT OUT: all tests with real hosts: %v\n", absent)
		os.Exit(m.Run())
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if lab, err = NewLab(ctx, os.Stderr); err == nil {
		err = Prepare(ctx, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	opts := controlplane.Options{Addresses: []netip.Addr{lab.Gateway()}, NodeMonitorGrace: 8 * time.Second}
	status := controlplane.RunTests(m, opts, func(c *controlplane.ControlPlane) { cp = c })
	if err := lab.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

// start starts a fleet for a test, with names that begin with prefix.
func start(t *testing.T, prefix string, hosts int, change ...func(*Options)) []*Host {
	t.Helper()
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	o := FleetOptions{Hosts: hosts, Prefix: prefix}
	for _, f := range change {
		f(&o.Host)
	}
	f, err := StartFleet(context.WithoutCancel(t.Context()), lab, cp, o) // the end of the test's context would close the fleet before the journals are read
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, h := range f.Hosts {
			if !t.Failed() {
				break
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			said, err := h.Journal(ctx, "")
			cancel()
			t.Logf("the end of the journal of %s (%v):\n%s\nand of the console:\n%s", h.Name(), err, controlplane.LastLines(said, 60), h.console())
		}
		f.Close()
	})
	return f.Hosts
}

// soon returns a context for operations that take up to a boot on a busy machine.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until cond returns true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after 90 s waiting for %s", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
