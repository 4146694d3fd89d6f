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

// The real binary on two hosts: both are updated, one after the other. Whether it keeps all its promises on the way is the
// referee's business, not this package's.
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
			t.Errorf("%s told its service manager %+v", h.Name(), n)
		}
		if strings.Contains(h.Logs(), "by itself") {
			t.Errorf("lockkeeper ended by itself on %s", h.Name())
		}
	}
	// One after the other: the first is Ready again before the second one is ordered to reboot.
	r.told(t, NodeReady, 4) // it is told a moment after it is seen
	r.mu.Lock()
	defer r.mu.Unlock()
	var order []string
	for _, e := range r.events {
		if e.Kind == RebootCalled || e.Kind == NodeReady {
			order = append(order, string(e.Kind)+" "+strings.TrimPrefix(e.Host, "smoke-"))
		}
	}
	// Which one is first hangs on whose want is seen first.
	oneOrder := []string{"RebootCalled 1", "NodeReady 1", "RebootCalled 2", "NodeReady 2"}
	other := append(slices.Clone(oneOrder[2:]), oneOrder[:2]...)
	if len(order) < 2 || !slices.Equal(order[2:], oneOrder) && !slices.Equal(order[2:], other) {
		t.Errorf("events %v, want the last four one host after the other", order)
	}
}
