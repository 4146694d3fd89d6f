package faults

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// leader is the only host that may coordinate; it has no turn. guest has one after the other.
const leader, guest = "node-1", "node-2"

// killPolicyText has a hook in every hook stage, so that a turn goes through all states.
const killPolicyText = `
rollout: {settle: 500ms, maxTurnsPerDay: 48}
hooks:
  beforeDrain: [{name: storage}]
  beforeReboot: [{name: backup}]
  beforeUncordon: [{name: check}]
`

// killFleet is the two hosts, each behind its proxies.
type killFleet struct {
	*rig.Scene
	*hookauthor.Authors
	gun    gun
	update int // the guest's last one, 4.update.0

	mu      sync.Mutex
	writes  map[string]int // by class, all hosts
	unknown map[string]int // shapes without a class
}

func newKillFleet(t *testing.T) *killFleet {
	t.Helper()
	f := &killFleet{writes: map[string]int{}, unknown: map[string]int{}, update: 1}
	cp := pool.Take(t)
	f.Scene = rig.Begin(t, cp, rig.Options{
		Policy: killPolicyText, Proxied: true, Label: f.classify,
		// The guest's pod is evicted in each turn and comes back at its end.
		Work: &controlplane.Workload{Replicas: 1, NodeSelector: map[string]string{corev1.LabelHostname: guest}},
		Fleet: simhost.FleetOptions{
			Hosts: 2, Coordinators: 1,
			Host: simhost.Options{Binary: binary, RestartDelay: 100 * time.Millisecond, DownTime: 100 * time.Millisecond, Config: func(c simhost.Config) {
				c.Set("", "lifecycle_conditions", true)
				c.Set("lease", "duration", 2*time.Second)
				c.Set("lease", "renew_deadline", 1500*time.Millisecond)
				c.Set("lease", "retry_period", 250*time.Millisecond)
			}},
		},
	})
	t.Cleanup(f.verdict)
	f.gun.hosts = f.Fleet.Host
	f.Proxies[leader].Coordinator.Add(func(r *faultproxy.Request) *faultproxy.Fault { return f.gun.aim(leader, r) })
	f.Proxies[guest].Host.Add(func(r *faultproxy.Request) *faultproxy.Fault { return f.gun.aim(guest, r) })
	var err error
	f.Authors, err = hookauthor.Start(cp.Client(), func(text string) { t.Log(text) })
	f.Must(err)
	t.Cleanup(f.Authors.Close)
	return f
}

// verdict ends the rig and fails the test if the referee objects.
func (f *killFleet) verdict() {
	if report := f.Verdict(); len(report.Unused) > 0 {
		f.T.Errorf("declared to the referee and not seen: %v", report.Unused)
	}
}

func (f *killFleet) guest() *simhost.Host { return f.Fleet.Host(guest) }

// classify names a write and remembers what it was.
func (f *killFleet) classify(role string, r *faultproxy.Request) string {
	if role == rig.RoleCoordinator && r.Group == "events.k8s.io" {
		return "" // words for people, beside the turn: nothing reads or waits for one
	}
	text := shape(r)
	class, known := classOf(role, text)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !known {
		f.unknown[role+": "+text]++
		return ""
	}
	f.writes[class]++
	return class
}

// seen is what was written since the last call.
func (f *killFleet) seen() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.writes
	f.writes = map[string]int{}
	return seen
}

// classified fails the test for every write that has no class.
func (f *killFleet) classified() {
	f.T.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for text, n := range f.unknown {
		f.T.Errorf("%d times a write of a %s\nNo class covers it. Say in classes_test.go what it is and where it is seen.", n, text)
	}
	clear(f.unknown)
}

// until waits until cond holds for a Node.
func (f *killFleet) until(name, what string, cond func(*turn.Node) bool) *turn.Node {
	f.T.Helper()
	return f.Until(name, rig.Soon, what, cond)
}
