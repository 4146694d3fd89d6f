package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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
		end, err := b.ask(playing, p)
		if err != nil {
			return err
		}
		defer end()
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
	var took, writes, answered, answers []time.Duration
	asked := map[string]time.Time{}
	for _, d := range promotions {
		took = append(took, d...)
	}
	for i := range all {
		switch r := &all[i]; {
		case r.ObjectRef == nil || r.what() != "patch nodes" || r.ResponseStatus.Code != 200:
		case ofCoordinators(r):
			writes = append(writes, r.Done.Sub(r.Received))
		case r.ObjectRef.Name == asking:
			var body nodePatch
			if err := json.Unmarshal(r.RequestObject, &body); err != nil {
				return nil, fmt.Errorf("reading a patch in the audit log: %w", err)
			}
			if ask := body.Metadata.Annotations["bench/ask"]; ask != nil {
				asked[*ask] = r.Done
			}
			if answer := body.Metadata.Annotations["bench/answer"]; answer != nil && !asked[*answer].IsZero() {
				answered, answers = append(answered, r.Done.Sub(asked[*answer])), append(answers, r.Done.Sub(r.Received))
			}
		}
	}
	if len(took) == 0 || len(answered) == 0 {
		return nil, fmt.Errorf("%d promotions in %d turns, and %d answers of the peer", len(took), l.turns, len(answered))
	}
	beyond, floor := percentile99(took)-percentile99(writes), percentile99(answered)-percentile99(answers)
	return [][]string{
		{fmt.Sprintf("%s: %d turns ended in %v", l.name, l.turns, to.Sub(from).Round(time.Second)), "", "", "", "", ""},
		{"from a host's write to the promotion that it allows", fmt.Sprint(len(took)), millis(median(took)), millis(percentile99(took)), "", ""},
		{"the API server's own time for a write of the coordinator", fmt.Sprint(len(writes)), millis(median(writes)), millis(percentile99(writes)), "", ""},
		{"with " + l.name + ", what the coordinator adds to it", "", millis(median(took) - median(writes)), millis(beyond), millis(aimBusy), times(float64(beyond), float64(aimBusy))},
		{"with " + l.name + ", what the peer adds to its own", fmt.Sprint(len(answered)), millis(median(answered) - median(answers)), millis(floor), millis(aimBusy), times(float64(floor), float64(aimBusy))},
	}, nil
}

const (
	asking   = "bench-asks" // a Node that no host has
	askEvery = 300 * time.Millisecond
)

// ask makes the peer answer a Node every 300 ms, which is the least that a controller does. end stops both, and deletes the Node.
func (b *bench) ask(ctx context.Context, p *players) (end func(), err error) {
	kubeconfig, err := b.cp.Kubeconfig("bench-peer", "system:masters")
	if err != nil {
		return nil, err
	}
	nodes := b.cp.Client().CoreV1().Nodes()
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: asking}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var peer *child
	var asks sync.WaitGroup
	end = func() {
		stop()
		asks.Wait()
		if peer != nil {
			peer.end()
		}
		_ = nodes.Delete(context.WithoutCancel(ctx), asking, metav1.DeleteOptions{})
	}
	if peer, err = b.launch(ctx, []string{b.peer, "--answer", kubeconfig, asking}, nil); err != nil {
		end()
		return nil, err
	}
	if _, err := peer.hear("READY=1"); err != nil {
		end()
		return nil, fmt.Errorf("the peer: %w", err)
	}
	asks.Go(func() {
		for i := 0; pause(ctx, askEvery) == nil; i++ {
			_, err := nodes.Patch(ctx, asking, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"bench/ask":"%d"}}}`, i), metav1.PatchOptions{})
			if err != nil && ctx.Err() == nil {
				p.fail(fmt.Errorf("asking the peer: %w", err))
				return
			}
		}
	})
	return end, nil
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

// fail ends the playing with the first error.
func (p *players) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
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
			if err != nil && ctx.Err() == nil {
				p.fail(fmt.Errorf("playing %s: %w", n.Name, err))
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended++
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
