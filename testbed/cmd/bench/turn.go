package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	turnPods   = 3
	turnWithin = 3 * time.Minute
	// tail is the time after a turn's end in which its last requests may arrive.
	tail = 2 * time.Second
)

// turn counts the requests of one whole turn to the API server.
func (b *bench) turn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	h, version := b.fleet.Hosts[2], "4.2.0"
	err := b.cp.CreateWorkload(ctx, controlplane.Workload{
		Namespace: "bench", Name: "web", Replicas: turnPods, NodeSelector: map[string]string{corev1.LabelHostname: h.Name()},
	})
	if err != nil {
		return err
	}
	if err := b.cp.WaitWorkload(ctx, "bench", "web"); err != nil {
		return err
	}
	metricsBefore, err := b.total(ctx)
	if err != nil {
		return err
	}
	from := time.Now()
	if err := h.StageUpdate(version); err != nil {
		return err
	}
	_, err = b.cp.WaitNode(ctx, h.Name(), "to have had its turn", func(n *corev1.Node) bool {
		return n != nil && h.Version() == version && n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) && n.Annotations[v1alpha1.AnnotationLast] != ""
	})
	if err != nil {
		return fmt.Errorf("%w; the end of the host's log:\n%s", err, h.LogTail(30))
	}
	took := time.Since(from)
	if err := pause(ctx, tail); err != nil {
		return err
	}
	to := time.Now()
	metricsAfter, err := b.total(ctx)
	if err != nil {
		return err
	}
	all, err := b.requests(from, to)
	if err != nil {
		return err
	}
	others := 0
	for i := range all {
		if all[i].Verb != "watch" {
			others++
		}
	}

	section("requests of one turn", fmt.Sprintf(`One host's whole turn from the staged update to idle, %d pods evicted, one reboot, %v; the other hosts want nothing.
		By the API server's audit log, which tells who asked. As a check: its apiserver_request_total grew by %d meanwhile for everybody,
		and the log has %d (kubelets, controllers and this program included; watches not).
		The Lease's renewals go on without a turn and are left out of the sum.`, turnPods, took.Round(time.Second), metricsAfter-metricsBefore, others))
	host := byWhat(all, func(r *request) bool {
		return strings.HasPrefix(r.UserAgent, "lockkeeper-host/") && r.User.Username == "system:node:"+h.Name()
	})
	leader := byWhat(all, ofCoordinators)
	renewals := leader["get leases"] + leader["update leases"]
	delete(leader, "get leases")
	delete(leader, "update leases")
	rows := [][]string{{"verb and resource", "host", "coordinator"}}
	both := maps.Clone(host)
	maps.Copy(both, leader)
	for _, what := range slices.Sorted(maps.Keys(both)) {
		rows = append(rows, []string{what, fmt.Sprint(host[what]), fmt.Sprint(leader[what])})
	}
	rows = append(rows, []string{"all", fmt.Sprint(sum(host)), fmt.Sprint(sum(leader))},
		[]string{"renewals of the Lease meanwhile", "-", fmt.Sprint(renewals)})
	table(rows)
	return nil
}
