package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	images      = 50 // on each Node; kubelets report that many at most
	fleetSettle = 10 * time.Second
	creators    = 16  // requests at once
	heartbeats  = 17  // a second: 5,000 kubelets write a status every 5 minutes
	beatRounds  = 150 // a tenth of a second each
)

// nodes shows what a large fleet costs the coordinator.
func (b *bench) nodes(ctx context.Context) error {
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
	if now, err := b.leader(ctx); err != nil || now != leader {
		return fmt.Errorf("the leader changed in the middle (%w): the figures of the large fleet mean nothing", err)
	}
	return nil
}

func ballast(i int) string { return fmt.Sprintf("many-%05d", i) }

// createNodes creates the Nodes from..to-1, each in a state that no coordinator gave it.
func (b *bench) createNodes(ctx context.Context, from, to int) (err error) {
	if err := b.cp.UnbindPolicies(ctx); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = b.cp.ApplyLockkeeper(ctx)
		}
	}()
	return b.create(ctx, from, to)
}

func (b *bench) create(ctx context.Context, from, to int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for i := range numbers {
				if _, err := b.cp.Client().CoreV1().Nodes().Create(ctx, manyNode(i), metav1.CreateOptions{}); err != nil {
					cancel(fmt.Errorf("creating Node %s: %w", ballast(i), err))
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

// manyNode is a Node as large as a real one, whose host is up to date.
func manyNode(i int) *corev1.Node {
	name, booted := ballast(i), time.Now().Add(-24*time.Hour).Truncate(time.Second)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourcePods: resource.MustParse("110")}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3),
				v1alpha1.LabelState:      string(v1alpha1.StateIdle), v1alpha1.LabelWants: string(v1alpha1.WantsNothing),
			},
			Annotations: map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(v1alpha1.Host{
				Protocol: v1alpha1.Protocol, Version: "bench", NodeUID: name, BootID: name, BootTime: booted, Started: booted, Managed: true, OSVersion: "4.1.0",
			})},
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

// beat writes statuses as kubelets do that have nothing to say.
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
