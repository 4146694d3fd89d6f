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

// leader is the only host that may coordinate, and it gets no turn. guest gets one turn after another.
const leader, guest = "node-1", "node-2"

// killPolicyText has a hook in every hook stage, so that a turn passes through all states.
const killPolicyText = `
rollout: {settle: 500ms, maxTurnsPerDay: 48}
hooks:
  beforeDrain: [{name: storage}]
  beforeReboot: [{name: backup}]
  beforeUncordon: [{name: check}]
`

// killFleet is the two hosts, each behind its own proxies.
type killFleet struct {
	*rig.Scene
	*hookauthor.Authors
	gun    gun
	update int // the guest's last update, 4.update.0

	mu      sync.Mutex
	writes  map[string]int // by class, all hosts
	unknown map[string]int // the shapes that have no class
}

func newKillFleet(t *testing.T) *killFleet {
	t.Helper()
	f := &killFleet{writes: map[string]int{}, unknown: map[string]int{}, update: 1}
	cp := pool.Take(t)
	f.Scene = rig.Begin(t, cp, rig.Options{
		Policy: killPolicyText, Proxied: true, Label: f.classify,
		// Each turn evicts the guest's pod, which comes back at the end of the turn.
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

// verdict stops the rig and fails the test if the referee found a violation.
func (f *killFleet) verdict() {
	if report := f.Verdict(); len(report.Unused) > 0 {
		f.T.Errorf("declared to the referee but not observed: %v", report.Unused)
	}
}

func (f *killFleet) guest() *simhost.Host { return f.Fleet.Host(guest) }

// classify returns the class of a write and counts the write.
func (f *killFleet) classify(role string, r *faultproxy.Request) string {
	if role == rig.RoleCoordinator && r.Group == "events.k8s.io" {
		return "" // texts for users, concurrent with the turn; no process waits for them
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

// seen returns the writes since the last call.
func (f *killFleet) seen() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.writes
	f.writes = map[string]int{}
	return seen
}

// classified fails the test for each write without a class.
func (f *killFleet) classified() {
	f.T.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for text, n := range f.unknown {
		f.T.Errorf("%d writes of a %s\nNo class covers this write. Add it to classes_test.go, with the scenario that shows it.", n, text)
	}
	clear(f.unknown)
}

// until waits until cond holds for a Node.
func (f *killFleet) until(name, what string, cond func(*turn.Node) bool) *turn.Node {
	f.T.Helper()
	return f.Until(name, rig.Soon, what, cond)
}
