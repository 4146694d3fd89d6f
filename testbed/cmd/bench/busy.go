package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	busyAtOnce = 50  // nodes in a turn at the same time
	busyTurns  = 200 // after these, no further turn begins
	busyWithin = 5 * time.Minute
	// busyStage is how long a host drains, and how long it boots.
	busyStage = 3 * time.Second
	// aimBusy is the aim for what the coordinator adds to its own write at the API server.
	aimBusy = 100 * time.Millisecond
)

// busy rolls the large fleet with fifty nodes in a turn, whose hosts this program plays: each host is a client of the API server.
func (b *bench) busy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyWithin)
	defer cancel()
	from := time.Now()
	var ended int
	err := b.unbound(ctx, func() (err error) {
		if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, fmt.Sprintf("rollout: {settle: 0s, maxUnavailable: %d}\n", busyAtOnce)); err != nil {
			return err
		}
		p := &players{b: b, playing: map[string]bool{}}
		if p.client, err = b.hostClient(); err != nil {
			return err
		}
		playing, stop := context.WithCancel(ctx)
		defer p.running.Wait()
		defer stop()
		for paused := false; ; {
			inTurn, err := p.play(playing)
			if err != nil {
				return err
			}
			if ended = p.count(); ended >= busyTurns && !paused {
				paused = true
				if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, fleetPolicy+"paused: true\n"); err != nil {
					return err
				}
			}
			if paused && inTurn == 0 {
				return nil
			}
			if err := pause(ctx, 500*time.Millisecond); err != nil {
				return fmt.Errorf("%d turns have ended, %d nodes are in a turn: %w", ended, inTurn, err)
			}
		}
	})
	if err != nil {
		return err
	}
	all, err := b.requests(from, time.Now())
	if err != nil {
		return err
	}
	promotions, err := latencies(all)
	if err != nil {
		return err
	}
	delete(promotions, string(v1alpha1.StateDraining)) // grants wait for the budget
	var took, writes []time.Duration
	for _, d := range promotions {
		took = append(took, d...)
	}
	for i := range all {
		if r := &all[i]; ofCoordinators(r) && r.what() == "patch nodes" {
			writes = append(writes, r.Done.Sub(r.Received))
		}
	}
	if len(took) == 0 {
		return fmt.Errorf("no promotion in %d turns", ended)
	}
	beyond := percentile99(took) - percentile99(writes)
	fmt.Printf("    %d turns of %d nodes at once, in %v; this program plays their hosts, without the admission policies:\n", ended, busyAtOnce, time.Since(from).Round(time.Second))
	table([][]string{
		{"fifty nodes in a turn", "of", "median", "p99", "bound", "to bound"},
		{"from a host's write to the promotion that it allows", fmt.Sprint(len(took)), millis(median(took)), millis(percentile99(took)), "", ""},
		{"the API server's own time for a write of the coordinator", fmt.Sprint(len(writes)), millis(median(writes)), millis(percentile99(writes)), "", ""},
		{"what the coordinator adds to it", "", millis(median(took) - median(writes)), millis(beyond), millis(aimBusy), times(float64(beyond), float64(aimBusy))},
	})
	return nil
}

func percentile99(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)*99/100]
}

// hostClient returns a client whose requests count as the hosts'.
func (b *bench) hostClient() (kubernetes.Interface, error) {
	cfg := b.cp.AdminConfig()
	cfg.UserAgent, cfg.QPS = "lockkeeper-host/bench", -1
	return kubernetes.NewForConfig(cfg)
}

// players play the hosts of the many Nodes that are in a turn.
type players struct {
	b      *bench
	client kubernetes.Interface

	running sync.WaitGroup
	mu      sync.Mutex
	playing map[string]bool // by node and turn
	ended   int
	failed  error
}

func (p *players) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// play begins to play each host whose turn has begun. It returns how many nodes are in a turn.
func (p *players) play(ctx context.Context) (inTurn int, err error) {
	list, err := p.b.cp.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0",
		LabelSelector: v1alpha1.LabelState + " notin (idle, paused)," + v1alpha1.LabelState})
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list.Items {
		n := turn.FromNode(&list.Items[i])
		key := n.Name + "/" + n.Turn
		if !strings.HasPrefix(n.Name, "many-") || !n.InTurn() {
			continue
		}
		if inTurn++; p.playing[key] {
			continue
		}
		p.playing[key] = true
		p.running.Go(func() {
			err := p.turn(ctx, n)
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.ended++; err != nil && p.failed == nil && ctx.Err() == nil {
				p.failed = fmt.Errorf("playing %s: %w", n.Name, err)
			}
		})
	}
	return inTurn, p.failed
}

// turn plays one turn of a host: it cordons, drains, reboots and uncordons.
func (p *players) turn(ctx context.Context, n turn.Node) error {
	boot := n.BootID
	ack := func(state v1alpha1.State, report v1alpha1.Report) string {
		return v1alpha1.Ack{Turn: n.Turn, BootID: boot, State: state, Report: report}.String()
	}
	mark := v1alpha1.Cordon{Turn: n.Turn, At: time.Now().UTC(), Set: []string{v1alpha1.CordonOurs}}
	draining, rebooting, uncordoning := v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateUncordoning

	err := p.write(ctx, n.Name, nil, map[string]any{v1alpha1.AnnotationAck: ack(draining, v1alpha1.ReportCommitted), v1alpha1.AnnotationCordon: mark.String()}, new(true))
	if err == nil {
		err = pause(ctx, busyStage)
	}
	if err == nil {
		err = p.write(ctx, n.Name, nil, map[string]any{v1alpha1.AnnotationAck: ack(draining, v1alpha1.ReportDone)}, nil)
	}
	if err == nil {
		err = p.await(ctx, n.Name, rebooting)
	}
	if err == nil {
		err = p.write(ctx, n.Name, nil, map[string]any{v1alpha1.AnnotationAck: ack(rebooting, v1alpha1.ReportCommitted)}, nil)
	}
	if err == nil {
		err = pause(ctx, busyStage)
	}
	if err != nil {
		return err
	}

	boot = n.Turn // each turn ends in another boot
	status := fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, boot)
	if _, err := p.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	host := *n.Host
	host.BootID, host.Drains, host.Changes = boot, false, nil
	host.BootTime = time.Now().UTC().Truncate(time.Second)
	err = p.write(ctx, n.Name, map[string]any{v1alpha1.LabelWants: string(v1alpha1.WantsNothing)},
		map[string]any{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(host), v1alpha1.AnnotationAck: ack(rebooting, v1alpha1.ReportDone)}, nil)
	if err == nil {
		err = p.await(ctx, n.Name, uncordoning)
	}
	if err == nil {
		err = p.write(ctx, n.Name, nil, map[string]any{v1alpha1.AnnotationAck: ack(uncordoning, v1alpha1.ReportDone), v1alpha1.AnnotationCordon: nil}, new(false))
	}
	if err == nil {
		err = p.await(ctx, n.Name, v1alpha1.StateIdle)
	}
	return err
}

// write writes labels and annotations of a Node, of which nil removes one, and whether it is cordoned, unless that is nil.
func (p *players) write(ctx context.Context, node string, labels, annotations map[string]any, cordoned *bool) error {
	patch := map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}}
	if labels == nil {
		patch["metadata"] = map[string]any{"annotations": annotations}
	}
	if cordoned != nil {
		patch["spec"] = map[string]any{"unschedulable": *cordoned}
	}
	body, err := json.Marshal(patch)
	if err == nil {
		_, err = p.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}

// await waits until the coordinator has moved the node to the state.
func (p *players) await(ctx context.Context, node string, state v1alpha1.State) error {
	_, err := p.b.cp.WaitNode(ctx, node, "to be in "+string(state), func(n *corev1.Node) bool {
		return n != nil && n.Labels[v1alpha1.LabelState] == string(state)
	})
	return err
}
