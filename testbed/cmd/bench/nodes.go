package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	images      = 50 // images on each Node; the maximum that kubelets report
	fleetSettle = 10 * time.Second
	creators    = 16  // concurrent requests
	heartbeats  = 17  // per second: 5,000 kubelets write a status every 5 minutes
	beatRounds  = 150 // rounds of a tenth of a second
)

// scale measures the cost of a large fleet for the coordinator.
func (b *bench) scale(ctx context.Context) error {
	leader, err := b.leader(ctx)
	if err != nil {
		return err
	}
	section("a large fleet", fmt.Sprintf(`The process that coordinates, with Node objects of %d images each, idle and Ready, that nobody but it looks at.
		RSS %v after the last of them was created; CPU from the first creation on. Then %d status writes a second for %d s, as many as
		5,000 kubelets make that have nothing to report.`, images, fleetSettle, heartbeats, beatRounds/10))
	rows := [][]string{{"Nodes", "RSS", "to bound", "anonymous", "CPU of the coordinator"}}
	u, err := usageOf(leader.PID())
	if err != nil {
		return err
	}
	rows = append(rows, []string{fmt.Sprint(len(b.fleet.Hosts)), mebibytes(u.rss), times(float64(u.rss), bound), mebibytes(u.anon), ""})
	have := 0
	for _, want := range []int{1000, 5000} {
		before := u
		if err := b.createNodes(ctx, have, want); err != nil {
			return err
		}
		made := time.Since(before.at)
		have = want
		if err := pause(ctx, fleetSettle); err != nil {
			return err
		}
		if u, err = usageOf(leader.PID()); err != nil {
			return err
		}
		rows = append(rows, []string{fmt.Sprint(want + len(b.fleet.Hosts)), mebibytes(u.rss), times(float64(u.rss), bound), mebibytes(u.anon),
			fmt.Sprintf("%.1f s while they came, in %.0f s", (u.cpu - before.cpu).Seconds(), made.Seconds())})
	}
	before := u
	sent, err := b.beat(ctx, have)
	if err != nil {
		return err
	}
	if u, err = usageOf(leader.PID()); err != nil {
		return err
	}
	rows = append(rows, []string{"the same, with status writes", mebibytes(u.rss), times(float64(u.rss), bound), mebibytes(u.anon),
		fmt.Sprintf("%.0f%% of one CPU; %.1f ms for each of %d writes", 100*(u.cpu-before.cpu).Seconds()/u.at.Sub(before.at).Seconds(),
			(u.cpu-before.cpu).Seconds()*1000/float64(max(sent, 1)), sent)})
	table(rows)
	idle, err := b.requests(before.at, u.at)
	if err != nil {
		return err
	}
	by := byWhat(idle, ofCoordinators)
	fmt.Printf("    requests of the coordinator's identity in those %v: %s\n", u.at.Sub(before.at).Round(time.Second), list(by, 1))
	if err := b.scaleTurns(ctx); err != nil {
		return err
	}
	if err := b.spread(ctx, have); err != nil {
		return err
	}
	if err := b.busy(ctx); err != nil {
		return err
	}
	if now, err := b.leader(ctx); err != nil || now != leader {
		return fmt.Errorf("the leader changed in the middle (%w): the figures of the large fleet mean nothing", err)
	}
	return nil
}

// scaleTurns rolls one host of the large fleet a few times.
func (b *bench) scaleTurns(ctx context.Context) error {
	from := time.Now()
	for _, version := range []string{"5.1.0", "5.2.0", "5.3.0"} {
		if err := b.roll(ctx, b.fleet.Hosts[2:], version); err != nil {
			return err
		}
	}
	all, err := b.requests(from, time.Now())
	if err != nil {
		return err
	}
	promotions, err := latencies(all)
	if err != nil {
		return err
	}
	table(append([][]string{{"from a host's write to the promotion that it allows", "of", "median", "p99", "bound", "p99 to bound"}}, latencyRows(promotions)...))
	return nil
}

// spreadWithin limits the wait for the reasons of a whole fleet.
const spreadWithin = 3 * time.Minute

// spreadGrants is how many hosts get a turn, by fleetPolicy.
const spreadGrants = 10

// spread sets the emergency stop on a fleet in which every host wants a reboot, lifts the stop, and measures how fast
// the held reasons follow.
func (b *bench) spread(ctx context.Context, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*spreadWithin)
	defer cancel()
	if err := b.stopAll(ctx, true); err != nil {
		return err
	}
	wanted := time.Now()
	if err := b.want(ctx, nodes); err != nil {
		return err
	}
	took := time.Since(wanted)
	if _, err := b.told(ctx, wanted, "Stopped", nodes); err != nil {
		return err
	}
	lifted := time.Now()
	if err := b.stopAll(ctx, false); err != nil {
		return err
	}
	all, err := b.told(ctx, lifted, "Budget", nodes-spreadGrants)
	if err != nil {
		return err
	}
	var last, granted time.Time
	grants, bySecond := 0, map[int]int{}
	for i := range all {
		switch name, err := nameOf(&all[i]); {
		case err != nil:
			return err
		case strings.HasPrefix(name, "coordinator: to draining"):
			// These nodes have no host. After two minutes their turns are taken back, and others follow.
			if grants < spreadGrants {
				grants, granted = grants+1, all[i].Done
			}
		default:
			bySecond[int(all[i].Received.Sub(lifted)/time.Second)]++
			last = all[i].Done
		}
	}
	delete(bySecond, 0)
	most := 0
	for n := range maps.Values(bySecond) {
		most = max(most, n)
	}
	target := nodes / 60
	fmt.Printf("    %d hosts want a reboot (their words came in %v); the stop is lifted:\n", nodes, took.Round(time.Second))
	table([][]string{
		{"what the coordinator writes", "measured", "bound", "to bound"},
		{fmt.Sprintf("the last of %d grants, after", grants), millis(granted.Sub(lifted)), "1 s", times(granted.Sub(lifted).Seconds(), 1)},
		{"reasons in the busiest second, the first aside", fmt.Sprint(most), fmt.Sprint(target), times(float64(most), float64(target))},
		{"the last reason, after", last.Sub(lifted).Round(time.Second).String(), "1m0s", times(last.Sub(lifted).Seconds(), 60)},
	})
	return nil
}

// stopAll sets or lifts the emergency stop.
func (b *bench) stopAll(ctx context.Context, set bool) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationStop)
	if set {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:"bench"}}}`, v1alpha1.AnnotationStop)
	}
	_, err := b.cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).
		Patch(ctx, controlplane.LockkeeperLease, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// want makes all the many Nodes want a reboot.
func (b *bench) want(ctx context.Context, nodes int) error {
	return b.unbound(ctx, func() error {
		return b.each(ctx, 0, nodes, func(ctx context.Context, i int) error {
			host := manyHost(i, b.uids[i])
			host.Drains, host.Changes = true, []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}}
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
				"labels":      map[string]string{v1alpha1.LabelWants: string(v1alpha1.WantsReboot)},
				"annotations": map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(host)},
			}})
			if err == nil {
				_, err = b.cp.Client().CoreV1().Nodes().Patch(ctx, ballast(i), types.MergePatchType, patch, metav1.PatchOptions{})
			}
			return err
		})
	})
}

// told waits for a limited time until the coordinator has written the reason to this number of Nodes since from. It
// returns everything that the coordinator wrote to Nodes in that time.
func (b *bench) told(ctx context.Context, from time.Time, reason v1alpha1.Reason, nodes int) ([]request, error) {
	for end := time.Now().Add(spreadWithin); ; {
		all, err := b.requests(from, time.Now())
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(r request) bool { return !ofCoordinators(&r) || r.what() != "patch nodes" })
		n := 0
		for i := range all {
			if name, err := nameOf(&all[i]); err == nil && name == "coordinator: held="+string(reason) {
				n++
			}
		}
		if n >= nodes {
			return all, nil
		}
		if time.Now().After(end) { // writes are slow on a busy machine
			fmt.Printf("    %d of %d nodes were told %s within %v\n", n, nodes, reason, spreadWithin)
			return all, nil
		}
		if err := pause(ctx, 10*time.Second); err != nil {
			return nil, err
		}
	}
}

func ballast(i int) string { return fmt.Sprintf("many-%05d", i) }

// createNodes creates the Nodes from..to-1, each in a state that no coordinator wrote.
func (b *bench) createNodes(ctx context.Context, from, to int) error {
	b.uids = append(b.uids, make([]string, to-from)...)
	return b.unbound(ctx, func() error {
		return b.each(ctx, from, to, func(ctx context.Context, i int) error {
			n, err := b.cp.Client().CoreV1().Nodes().Create(ctx, manyNode(i), metav1.CreateOptions{})
			if err == nil {
				b.uids[i] = string(n.UID)
			}
			return err
		})
	})
}

// unbound calls f while any identity may write any key.
func (b *bench) unbound(ctx context.Context, f func() error) error {
	if err := b.cp.UnbindPolicies(ctx); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return b.cp.ApplyLockkeeper(ctx)
}

// each calls f for the Nodes from..to-1, several concurrently.
func (b *bench) each(ctx context.Context, from, to int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for i := range numbers {
				if err := f(ctx, i); err != nil {
					cancel(fmt.Errorf("writing Node %s: %w", ballast(i), err))
				}
			}
		})
	}
	for i := from; i < to && ctx.Err() == nil; i++ {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	return context.Cause(ctx)
}

// manyHost returns the host record of one of the many Nodes.
func manyHost(i int, uid string) v1alpha1.Host {
	name, booted := ballast(i), time.Now().Add(-24*time.Hour).Truncate(time.Second)
	return v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "bench", NodeUID: uid, BootID: name, BootTime: booted, Started: booted, Managed: true, OSVersion: "4.1.0",
	}
}

// manyNode returns a Node that is as large as a real one and whose host is up to date.
func manyNode(i int) *corev1.Node {
	name := ballast(i)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourcePods: resource.MustParse("110")}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				// The node controller would add these labels to one node after another.
				"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
				corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3),
				v1alpha1.LabelState:      string(v1alpha1.StateIdle), v1alpha1.LabelWants: string(v1alpha1.WantsNothing),
			},
			Annotations: map[string]string{controlplane.BallastAnnotation: controlplane.BallastFake, v1alpha1.AnnotationHost: v1alpha1.FormatRecord(manyHost(i, name))},
		},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room, NodeInfo: corev1.NodeSystemInfo{BootID: name},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
	for k := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.invalid/team/service-%d@sha256:%064x", k, k), fmt.Sprintf("registry.example.invalid/team/service-%d:v1.%d", k, i)},
			SizeBytes: 1 << 28,
		})
	}
	return n
}

// beat writes statuses like kubelets without news.
func (b *bench) beat(ctx context.Context, nodes int) (sent int, err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for round := range beatRounds {
		for due := (round + 1) * heartbeats / 10; sent < due; sent++ {
			patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
			_, err := b.cp.Client().CoreV1().Nodes().Patch(ctx, ballast(sent*nodes/(beatRounds*heartbeats/10)%nodes), types.StrategicMergePatchType,
				[]byte(patch), metav1.PatchOptions{}, "status")
			if err != nil {
				return sent, fmt.Errorf("writing a status: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return sent, context.Cause(ctx)
		case <-tick.C:
		}
	}
	return sent, nil
}
