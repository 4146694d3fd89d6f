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
	absent error // why there are no hosts to test
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

// start starts a fleet for a test, with hosts named after it.
func start(t *testing.T, prefix string, hosts int, change ...func(*Options)) []*Host {
	t.Helper()
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	o := FleetOptions{Hosts: hosts, Prefix: prefix}
	for _, f := range change {
		f(&o.Host)
	}
	f, err := StartFleet(context.WithoutCancel(t.Context()), lab, cp, o) // its end closes the fleet, before the journals were read
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
			t.Logf("the end of the journal of %s (%v):\n%s\nand of its console:\n%s", h.Name(), err, lastLines(said, 60), h.console())
		}
		f.Close()
	})
	return f.Hosts
}

// soon is a bound for what takes up to a boot on a busy machine.
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

// eventually waits for what can only be asked for again and again.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 90 s in vain: %s", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
