package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// leader is the only host that may coordinate; it has no turn. guest has one after the other.
	leader, guest = "node-1", "node-2"
	// killSoon bounds one wait on a machine that does nothing else.
	killSoon     = 90 * time.Second
	killWorkload = "db"
	// killKubectlManager is whom a person's writes are by; the referee takes a cordon of kubectl's for a person's.
	killKubectlManager = "kubectl-killtest"
)

// killPolicyText has a hook in every hook stage, so that a turn goes through all states.
const killPolicyText = `
rollout: {settle: 500ms, maxTurnsPerDay: 48}
hooks:
  beforeDrain: [{name: storage}]
  beforeReboot: [{name: backup}]
  beforeUncordon: [{name: check}]
`

var killFleets atomic.Int64

// killFleet is the two hosts, each behind its proxies.
type killFleet struct {
	t *testing.T
	*rig.Rig
	*hookauthor.Authors
	gun       gun
	proxies   []*faultproxy.Proxy
	namespace string
	update    int // the guest's last one, 4.update.0

	mu      sync.Mutex
	writes  map[string]int // by class, all hosts
	unknown map[string]int // shapes without a class
}

func killNewFleet(t *testing.T) *killFleet {
	t.Helper()
	f := &killFleet{t: t, writes: map[string]int{}, unknown: map[string]int{}, update: 1,
		namespace: fmt.Sprint("killtest-", killFleets.Add(1))}
	cp, dir := pool.Take(t), t.TempDir()
	proxy := func(role, host string, target bool) string {
		config, err := cp.NodeConfig(host)
		if role == "coordinator" {
			config, err = cp.CoordinatorConfig()
		}
		f.must(err)
		p, err := faultproxy.Start(faultproxy.Options{
			Name: role + " " + host, Config: config, Dir: dir,
			Label: func(r *faultproxy.Request) string { return f.classify(role, r) },
		})
		f.must(err)
		if target {
			p.Add(func(r *faultproxy.Request) *faultproxy.Fault { return f.gun.aim(host, r) })
		}
		f.proxies = append(f.proxies, p)
		return p.Kubeconfig()
	}
	hosts := map[string]string{leader: proxy("host", leader, false), guest: proxy("host", guest, true)}
	coordinator := proxy("coordinator", leader, true)
	t.Cleanup(func() {
		for _, p := range f.proxies {
			f.soft(p.Close())
		}
	})
	var err error
	f.Rig, err = rig.Start(context.Background(), cp, rig.Options{
		Policy: killPolicyText, OnEvent: func(line string) { t.Log(line) },
		Fleet: simhost.FleetOptions{
			Hosts: 2, Coordinators: 1,
			Host: simhost.Options{Binary: binary, RestartDelay: 100 * time.Millisecond, DownTime: 100 * time.Millisecond, Config: func(c simhost.Config) {
				c.Set("", "lifecycle_conditions", true)
				c.Set("lease", "duration", 2*time.Second)
				c.Set("lease", "renew_deadline", 1500*time.Millisecond)
				c.Set("lease", "retry_period", 250*time.Millisecond)
			}},
			Each: func(_ int, o *simhost.Options) {
				o.Kubeconfig, o.CoordinatorKubeconfig = hosts[o.Name], coordinator
			},
		},
	})
	f.must(err)
	f.gun.hosts = f.Fleet.Host
	t.Cleanup(f.verdict)
	f.Authors, err = hookauthor.Start(cp.Client(), func(text string) { t.Log(text) })
	f.must(err)
	t.Cleanup(f.Authors.Close)
	f.place()
	return f
}

// verdict ends the rig and fails the test if the referee objects.
func (f *killFleet) verdict() {
	report := f.Rig.Verdict(f.t)
	if len(report.Unused) > 0 {
		f.t.Errorf("declared to the referee and not seen: %v", report.Unused)
	}
}

func (f *killFleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *killFleet) soft(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Error(err)
	}
}

func (f *killFleet) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *killFleet) guest() *simhost.Host { return f.Fleet.Host(guest) }

// place puts a pod with a controller on the guest: it is evicted in each turn and comes back at its end.
func (f *killFleet) place() {
	f.t.Helper()
	f.must(f.ControlPlane.CreateWorkload(f.within(killSoon), controlplane.Workload{
		Namespace: f.namespace, Name: killWorkload, Replicas: 1, NodeSelector: map[string]string{corev1.LabelHostname: guest},
	}))
	f.t.Cleanup(f.clear)
	f.must(f.ControlPlane.WaitWorkload(f.within(killSoon), f.namespace, killWorkload))
}

// clear removes the pod before the next fleet comes: its nodes have the same names.
func (f *killFleet) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), killSoon)
	defer cancel()
	client, now := f.ControlPlane.Client(), int64(0)
	f.soft(client.AppsV1().Deployments(f.namespace).Delete(ctx, killWorkload, metav1.DeleteOptions{}))
	_, err := f.ControlPlane.WaitPods(ctx, f.namespace, "", "to be gone", func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			// A node that is down has nobody to end its pods.
			_ = client.CoreV1().Pods(f.namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		return len(pods) == 0
	})
	f.soft(err)
}

// classify names a write and remembers what it was.
func (f *killFleet) classify(role string, r *faultproxy.Request) string {
	if role == "coordinator" && r.Group == "events.k8s.io" {
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
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for text, n := range f.unknown {
		f.t.Errorf("%d times a write of a %s\nNo class covers it. Say in classes_test.go what it is and where it is seen.", n, text)
	}
	clear(f.unknown)
}

// until waits until a Node is as cond wants it.
func (f *killFleet) until(name, what string, cond func(*turn.Node) bool) *turn.Node {
	f.t.Helper()
	obj, err := f.ControlPlane.WaitNode(f.within(killSoon), name, what, func(o *corev1.Node) bool {
		if o == nil {
			return false
		}
		n := turn.FromNode(o)
		return cond(&n)
	})
	f.must(err)
	n := turn.FromNode(obj)
	return &n
}

// patch is a person's edit of a Node; a nil value removes.
func (f *killFleet) patch(name string, doc map[string]any) {
	f.t.Helper()
	body, err := json.Marshal(doc)
	f.must(err)
	_, err = f.ControlPlane.Client().CoreV1().Nodes().Patch(f.within(killSoon), name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: killKubectlManager})
	f.must(err)
}
