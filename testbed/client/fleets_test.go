package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

const (
	// fleetSeed and fleetCount are the settings of `make test`.
	fleetSeed, fleetCount = 20263, 10
	// fleetJobs is how many fleets are drained at once: they mostly wait.
	fleetJobs = 10
)

// TestFleets drains the nodes of random fleets through a proxy that breaks requests, and checks what docs/drain.md promises.
// The seed and the number of a fleet alone define its plan.
func TestFleets(t *testing.T) {
	t.Parallel()
	seed, last := rig.Number(t, "LOCKKEEPER_SEED", fleetSeed), rig.Number(t, "LOCKKEEPER_SOAK", fleetCount)
	long, first := os.Getenv("LOCKKEEPER_SOAK") != "", uint64(0)
	if only := rig.Number(t, "LOCKKEEPER_CAMPAIGN", 0); only > 0 {
		first, last = only-1, only
	}
	jobs := rig.Number(t, "LOCKKEEPER_JOBS", fleetJobs)
	guard := newFleetGuard(t)
	fleetPriorities(t)
	began := time.Now()
	var sum fleetSum
	var next atomic.Uint64
	next.Store(first)
	var workers sync.WaitGroup
	for range jobs {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < last; n = next.Add(1) - 1 {
				passed := t.Run(fmt.Sprint("fleet-", n+1), func(t *testing.T) { playFleet(t, composeFleet(seed, n, long), guard, &sum) })
				sum.add(passed)
			}
		})
	}
	workers.Wait()
	fmt.Printf("fleets: seed %d, %d fleets in %v, %v\n", seed, sum.fleets, time.Since(began).Round(time.Second), &sum)
}

// fleetSum is what all fleets did.
type fleetSum struct {
	mu                                           sync.Mutex
	fleets, failed                               int
	pods, evictions, deletions, refusals, faults int
}

func (s *fleetSum) add(passed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fleets++
	if !passed {
		s.failed++
	}
}

// of adds a fleet's figures.
func (s *fleetSum) of(f *fleet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range f.hosts {
		all, _ := h.proxy.Records()
		for _, r := range all {
			switch {
			case r.Outcome != faultproxy.Answered:
				s.faults++
			case r.Write() && r.Code/100 != 2:
				s.refusals++
			case r.Is("create", "pods/eviction"):
				s.evictions++
			case r.Is("delete", "pods"):
				s.deletions++
			}
		}
	}
	s.pods += len(f.judge.pods)
}

func (s *fleetSum) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d pods, %d evictions and %d forced deletions were accepted, %d were refused, %d requests were broken, %d fleets failed",
		s.pods, s.evictions, s.deletions, s.refusals, s.faults, s.failed)
}

// playFleet makes a fleet, drains its nodes and judges.
func playFleet(t *testing.T, p *fleetPlan, guard *fleetGuard, sum *fleetSum) {
	t.Log(p)
	f := &fleet{
		t: t, plan: p, rng: rand.New(rand.NewPCG(p.seed, ^p.number)), placed: map[*group]int{}, held: map[*group]bool{},
		lateG: &group{name: "late", kind: replica, replicas: 1, grace: 1, stops: 300 * time.Millisecond, fate: goes},
	}
	var cancel context.CancelFunc
	f.ctx, cancel = context.WithCancel(t.Context())
	defer f.tasks.Wait()
	defer cancel()
	f.w = newWorld(t, fmt.Sprintf("fleet-%d", p.number+1))
	f.judge = newFleetJudge(f)
	nodes := []string{f.w.node, f.w.node + "-too"}[:p.drains]
	f.others = []string{f.w.node + "-else", f.w.node + "-more"}
	for _, name := range slices.Concat(nodes[1:], f.others) {
		f.w.addNode(name)
	}
	defer f.clean(append(nodes, f.others...))
	for _, node := range nodes {
		h, err := newFleetHost(f, node)
		must(t, err)
		defer h.proxy.Close()
		f.hosts = append(f.hosts, h)
	}
	defer guard.fleets.Delete(f.w.space)
	must(t, guard.protect(f))
	list, err := f.w.admin.CoreV1().Pods(f.w.space).List(f.ctx, metav1.ListOptions{})
	must(t, err)
	f.tasks.Go(func() { f.judge.follow(f.ctx, list.ResourceVersion) })
	for _, g := range p.groups {
		f.hold(g, true)
		must(t, f.create(g))
	}
	for _, g := range p.groups {
		f.ready(g)
	}
	began := time.Now()
	f.play()
	cancel()
	f.tasks.Wait()
	sum.of(f)
	broken := f.judge.verdict()
	t.Logf("fleet %d took %v", p.number+1, time.Since(began).Round(100*time.Millisecond))
	if len(broken) == 0 {
		return
	}
	t.Errorf("fleet %d of seed %d (LOCKKEEPER_SEED=%d LOCKKEEPER_CAMPAIGN=%d):\n  %s", p.number+1, p.seed, p.seed, p.number+1, strings.Join(broken, "\n  "))
	for _, h := range f.hosts {
		all, _ := h.proxy.Records()
		slices.SortFunc(all, func(a, b faultproxy.Record) int { return a.Time.Compare(b.Time) })
		for _, r := range all[:min(len(all), 150)] {
			t.Log(&r)
		}
	}
}

// clean removes the fleet, as fast as it can: hundreds follow.
func (f *fleet) clean(nodes []string) {
	f.ended.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	admin := f.w.admin.CoreV1()
	if err := admin.Namespaces().Delete(ctx, f.w.space, metav1.DeleteOptions{}); err != nil {
		f.t.Error(err)
	}
	pods, err := admin.Pods(f.w.space).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Error(err)
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if len(p.Finalizers) > 0 {
			_, _ = admin.Pods(f.w.space).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		_ = admin.Pods(f.w.space).Delete(ctx, p.Name, deleteNow)
	}
	for _, name := range nodes {
		if err := admin.Nodes().Delete(ctx, name, deleteNow); err != nil {
			f.t.Error(err)
		}
	}
}
