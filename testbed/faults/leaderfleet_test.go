package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// The first two hosts stand for the Lease.
	leaderHosts, leaderCandidates = 4, 2
	// leaderSoon bounds one thing that takes seconds on a machine that does nothing else.
	leaderSoon = 90 * time.Second
	// lookEvery is how often a wait looks.
	lookEvery = 50 * time.Millisecond
	// leaderLag is by how much the rounds hold requests back, for the referee.
	leaderLag = 30 * time.Second
	// leaderKubectlManager is whom a person's writes are by.
	leaderKubectlManager = "kubectl-leadertest"
	leaderWorkload       = "db"
)

// leaderPolicyText has short times for what a round may make wait, and no hooks: a grant leads to the cordon at once.
const leaderPolicyText = `
rollout: {settle: 100ms, backoff: 1s, backoffMax: 1s, maxUnavailable: %d, maxTurnsPerDay: 48}
timeouts: {seen: 5s}
`

var leaderFleets atomic.Int64

// wires are a host's: its own, and as a candidate.
type wires struct{ host, coordinator *faultproxy.Proxy }

func (w wires) all() (all []*faultproxy.Proxy) {
	for _, p := range []*faultproxy.Proxy{w.host, w.coordinator} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// leaderFleet is some hosts, each of whose processes speaks through proxies.
type leaderFleet struct {
	t *testing.T
	*rig.Rig
	wires     map[string]wires
	namespace string
	update    int // the last one, 4.update.0
	stop      []func()
}

func leaderNewFleet(t *testing.T, cp *controlplane.ControlPlane, binary string, budget int) *leaderFleet {
	t.Helper()
	f := &leaderFleet{t: t, wires: map[string]wires{}, update: 1, namespace: fmt.Sprint("leadertest-", leaderFleets.Add(1))}
	ready := false
	defer func() {
		if !ready {
			f.close()
		}
	}()
	dir, err := os.MkdirTemp("", "leadertest-")
	f.must(err)
	f.stop = append(f.stop, func() { f.soft(os.RemoveAll(dir)) })
	for i := range leaderHosts {
		name := fmt.Sprint("node-", i+1)
		identity, err := cp.NodeConfig(name)
		f.must(err)
		w := wires{host: f.wire(faultproxy.Options{Name: name, Config: identity, Dir: dir})}
		if i < leaderCandidates {
			identity, err = cp.CoordinatorConfig()
			f.must(err)
			w.coordinator = f.wire(faultproxy.Options{Name: name, Config: identity, Dir: dir})
		}
		f.wires[name] = w
	}
	f.Rig, err = rig.Start(context.Background(), cp, rig.Options{
		Policy: fmt.Sprintf(leaderPolicyText, budget), Budget: budget, Lag: leaderLag, OnEvent: func(line string) { f.t.Log(line) },
		Fleet: simhost.FleetOptions{
			Hosts: leaderHosts, Coordinators: leaderCandidates,
			// The first one in order is no candidate's host.
			Zones: []string{"b", "b", "a", "b"},
			Host: simhost.Options{
				Binary: binary, RestartDelay: 200 * time.Millisecond, DownTime: 100 * time.Millisecond, InhibitDelayMax: time.Second,
				Config: func(c simhost.Config) {
					c.Set("lease", "duration", 2*time.Second)
					c.Set("lease", "renew_deadline", 1500*time.Millisecond)
					c.Set("lease", "retry_period", 200*time.Millisecond)
					c.Set("sources", "poll_interval", 500*time.Millisecond)
				},
			},
			Each: func(_ int, o *simhost.Options) {
				w := f.wires[o.Name]
				o.Kubeconfig = w.host.Kubeconfig()
				if w.coordinator != nil {
					o.CoordinatorKubeconfig = w.coordinator.Kubeconfig()
				}
			},
		},
	})
	f.must(err)
	f.place()
	ready = true
	return f
}

func (f *leaderFleet) wire(o faultproxy.Options) *faultproxy.Proxy {
	f.t.Helper()
	p, err := faultproxy.Start(o)
	f.must(err)
	f.stop = append(f.stop, func() { f.soft(p.Close()) })
	return p
}

// close ends the fleet and returns what the referee saw; a violation does not fail the test by itself.
func (f *leaderFleet) close() (report referee.Report) {
	if f.Rig != nil {
		if f.t.Failed() {
			for _, h := range f.Fleet.Hosts {
				f.t.Logf("%s:\n%s", h.Name(), h.LogTail(100))
			}
		}
		f.clear()
		var err error
		report, err = f.Close()
		if report.Count() == 0 {
			f.soft(err)
		}
		f.t.Log(report.String())
	}
	for _, stop := range f.stop {
		stop()
	}
	return report
}

func (f *leaderFleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *leaderFleet) soft(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Error(err)
	}
}

// place gives the fleet pods, of which a budget lets one go at a time.
func (f *leaderFleet) place() {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	f.must(f.PlaceWork(ctx, f.namespace, leaderWorkload, leaderHosts))
}

// clear removes the pods before the next fleet comes: its nodes have the same names.
func (f *leaderFleet) clear() {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	f.soft(f.ClearWork(ctx, f.namespace, leaderWorkload))
}

func (f *leaderFleet) version() string { return fmt.Sprintf("4.%d.0", f.update) }

// nodes are all Nodes as the quorum has them.
func (f *leaderFleet) nodes() []turn.Node {
	f.t.Helper()
	all, _ := f.list()
	return all
}

// list is nodes with the resourceVersion that they are of.
func (f *leaderFleet) list() (all []turn.Node, at string) {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	list, err := f.ControlPlane.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	f.must(err)
	for i := range list.Items {
		all = append(all, turn.FromNode(&list.Items[i]))
	}
	return all, list.ResourceVersion
}

// node is one of them; the zero one if it is not there.
func (f *leaderFleet) node(name string) turn.Node {
	f.t.Helper()
	for _, n := range f.nodes() {
		if n.Name == name {
			return n
		}
	}
	return turn.Node{}
}

// sees waits until cond holds and reports whether it did within d.
func sees(d time.Duration, cond func() bool) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late.C:
			return false
		}
	}
	return true
}

// until is sees for what has to come.
func (f *leaderFleet) until(what string, cond func() bool) {
	f.t.Helper()
	if !sees(leaderSoon, cond) {
		f.t.Fatalf("%v, waiting for %s; the Nodes: %s", errPatience, what, f.describe())
	}
}

func (f *leaderFleet) describe() string {
	var all []string
	for _, n := range f.nodes() {
		all = append(all, fmt.Sprintf("%s is %s (wants %q, held %q, unschedulable %t, mark %t, ack %s)", n.Name, n.State, n.Wants, n.Held, n.Unschedulable, n.Mark, n.Ack))
	}
	return strings.Join(all, "; ")
}

// patch is a person's edit of a Node; a nil value removes. It reports whether it was accepted.
func (f *leaderFleet) patch(name string, doc map[string]any) bool {
	f.t.Helper()
	body, err := json.Marshal(doc)
	f.must(err)
	ctx, cancel := within(leaderSoon)
	defer cancel()
	_, err = f.ControlPlane.Client().CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: leaderKubectlManager})
	if !apierrors.IsConflict(err) {
		f.must(err)
	}
	return err == nil
}

// cordon is a person's edit of the Node as it was read; nil uncordons.
func (f *leaderFleet) cordon(n *turn.Node, unschedulable any) bool {
	f.t.Helper()
	return f.patch(n.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"unschedulable": unschedulable},
	})
}

// uncordon undoes a person's cordon, if it is still theirs.
func (f *leaderFleet) uncordon(name string) {
	f.t.Helper()
	f.until("a person to uncordon "+name, func() bool {
		n := f.node(name)
		if !n.Unschedulable || n.Mark {
			return true
		}
		f.Referee.AdminUncordon(name)
		done := f.cordon(&n, nil)
		f.sync()
		f.Referee.Withdraw()
		return done
	})
}

// sync has the referee see all that was done.
func (f *leaderFleet) sync() {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	f.must(f.Referee.Sync(ctx))
}
