package simhost

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// TestRealBinaryUpdatesTwoHosts runs the real binary on two hosts and checks that both are updated, one after the
// other. The other safety properties are checked by package referee, not here.
func TestRealBinaryUpdatesTwoHosts(t *testing.T) {
	binary, err := BuildLockkeeper(t.Context(), os.Stderr)
	must(t, err)
	must(t, cp.ApplyLockkeeper(t.Context()))
	_, err = cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 1s}")
	must(t, err)
	r := &record{}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f, err := StartFleet(ctx, cp, FleetOptions{
		Hosts: 2, Coordinators: 1, Prefix: "smoke-", Zones: []string{"a", "b"},
		Host: Options{Binary: binary, Events: r.add},
	})
	must(t, err)
	defer func() {
		if t.Failed() {
			for _, h := range f.Hosts {
				t.Logf("the log of %s:\n%s", h.Name(), h.LogTail(80))
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	must(t, f.WaitIdle(ctx))
	must(t, f.StageUpdate("4.2.0"))
	must(t, f.WaitUpdated(ctx, "4.2.0"))
	for _, h := range f.Hosts {
		if h.Reboots() != 1 || h.Boots() != 2 {
			t.Errorf("%s: %d reboots, %d boots", h.Name(), h.Reboots(), h.Boots())
		}
		if n := h.Notify(); !n.Ready || n.Status == "" {
			t.Errorf("%s sent %+v to its service manager", h.Name(), n)
		}
		if strings.Contains(h.Logs(), "by itself") {
			t.Errorf("lockkeeper exited unexpectedly on %s", h.Name())
		}
	}
	// The order is strict: the first host is Ready again before the second host gets its reboot call.
	r.waitFor(t, NodeReady, 4) // the event comes a moment after the write is visible
	r.mu.Lock()
	defer r.mu.Unlock()
	var order []string
	for _, e := range r.events {
		if e.Kind == RebootCalled || e.Kind == NodeReady {
			order = append(order, string(e.Kind)+" "+strings.TrimPrefix(e.Host, "smoke-"))
		}
	}
	// The order depends on the host whose wants the leader reads first.
	oneOrder := []string{"RebootCalled 1", "NodeReady 1", "RebootCalled 2", "NodeReady 2"}
	other := append(slices.Clone(oneOrder[2:]), oneOrder[:2]...)
	if len(order) < 2 || !slices.Equal(order[2:], oneOrder) && !slices.Equal(order[2:], other) {
		t.Errorf("events %v; expected the last four host by host", order)
	}
}
