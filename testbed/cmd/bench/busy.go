package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/large"
)

const (
	busyAtOnce = 50 // nodes in a turn at the same time
	busyWithin = 10 * time.Minute
	// aimBusy is the aim for what the coordinator adds to its own write at the API server.
	aimBusy = 100 * time.Millisecond
)

// pace is how fast the hosts are.
type pace struct {
	name string
	// shortest and longest say how long a host drains, and how long it boots.
	shortest, longest time.Duration
	turns             int // the pace ends when as many turns have ended
}

// busyPaces begin with the faster end of what real hosts do. The second one shows what happens when the leader, or the machine, is
// the bottleneck.
var busyPaces = []pace{
	{"drains and boots of 10 to 30 s", 10 * time.Second, 30 * time.Second, 150},
	{"drains and boots of 3 s", 3 * time.Second, 3 * time.Second, 200},
}

// busy rolls the large fleet with fifty nodes in a turn, whose hosts this program plays: each host is a client of the API server.
func (b *bench) busy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyWithin)
	defer cancel()
	return b.unbound(ctx, func() (err error) {
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
		fmt.Printf("    %d nodes in a turn at once; this program plays their hosts, without the admission policies:\n", busyAtOnce)
		rows := [][]string{{"fifty nodes in a turn", "of", "median", "p99", "bound", "to bound"}}
		for _, l := range busyPaces {
			p.set(l)
			from := time.Now()
			if err := p.until(playing, func(int) bool { return p.count() >= l.turns }); err != nil {
				return err
			}
			more, err := b.busyRows(l, from, time.Now())
			if err != nil {
				return err
			}
			rows = append(rows, more...)
		}
		if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, fleetPolicy+"paused: true\n"); err != nil {
			return err
		}
		if err := p.until(playing, func(inTurn int) bool { return inTurn == 0 }); err != nil {
			return err
		}
		table(rows)
		return nil
	})
}

// busyRows returns the rows about a pace that was measured between two times.
func (b *bench) busyRows(l pace, from, to time.Time) ([][]string, error) {
	all, err := b.requests(from, to)
	if err != nil {
		return nil, err
	}
	promotions, err := latencies(all)
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("no promotion in %d turns", l.turns)
	}
	beyond := percentile99(took) - percentile99(writes)
	return [][]string{
		{fmt.Sprintf("%s: %d turns ended in %v", l.name, l.turns, to.Sub(from).Round(time.Second)), "", "", "", "", ""},
		{"from a host's write to the promotion that it allows", fmt.Sprint(len(took)), millis(median(took)), millis(percentile99(took)), "", ""},
		{"the API server's own time for a write of the coordinator", fmt.Sprint(len(writes)), millis(median(writes)), millis(percentile99(writes)), "", ""},
		{"with " + l.name + ", what the coordinator adds to it", "", millis(median(took) - median(writes)), millis(beyond), millis(aimBusy), times(float64(beyond), float64(aimBusy))},
	}, nil
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
	pace    pace
	playing map[string]bool // by node and turn
	ended   int             // at this pace
	failed  error
}

func (p *players) set(l pace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace, p.ended = l, 0
}

func (p *players) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// until plays the hosts until done, which receives how many nodes are in a turn, returns true.
func (p *players) until(ctx context.Context, done func(inTurn int) bool) error {
	for {
		inTurn, err := p.play(ctx)
		if err != nil {
			return err
		}
		if done(inTurn) {
			return nil
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("%s: %d turns have ended, %d nodes are in a turn: %w", p.pace.name, p.count(), inTurn, err)
		}
	}
}

// stage waits for as long as a host drains or boots.
func (p *players) stage(ctx context.Context) error {
	p.mu.Lock()
	took := p.pace.shortest + rand.N(p.pace.longest-p.pace.shortest+1)
	p.mu.Unlock()
	return pause(ctx, took)
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
			h := large.Host{Nodes: p.client.CoreV1().Nodes(), Stage: p.stage, Await: p.await}
			err := h.Turn(ctx, n)
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.ended++; err != nil && p.failed == nil && ctx.Err() == nil {
				p.failed = fmt.Errorf("playing %s: %w", n.Name, err)
			}
		})
	}
	return inTurn, p.failed
}

// await waits until the coordinator has moved the node to the state.
func (p *players) await(ctx context.Context, node string, state v1alpha1.State) error {
	_, err := p.b.cp.WaitNode(ctx, node, "to be in "+string(state), func(n *corev1.Node) bool {
		return n != nil && n.Labels[v1alpha1.LabelState] == string(state)
	})
	return err
}
