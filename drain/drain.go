// Package drain empties one node: it evicts the node's pods through the
// eviction API until none is left, or until its context ends.
//
// It costs the API server one LIST, one WATCH and about one POST for each pod,
// however long the drain takes, and it asks for nothing that the kubelet's
// identity (system:node:<name>) may not do: no DaemonSet, PodDisruptionBudget
// or other pod is ever read.
//
// The room must not know why a node is drained. Turns, states, leases, pauses
// and timeouts belong to its caller, who ends the context and calls Run again
// as often as he likes: nothing is kept between two runs but the facts on the
// API server, and the same facts lead to the same next eviction.
//
// Drain means drain. A pod without a controller is evicted like any other,
// although nobody will create it anew: a node that is to be rebooted loses it
// anyway, and an update that waits indefinitely for somebody's forgotten debug pod
// is worse. A [Policy] changes that where it must be changed.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Pod names one pod. The UID tells it from a pod of the same name that was
// created later.
type Pod struct {
	Namespace string
	Name      string
	UID       types.UID
}

// String gives namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Bounds and their defaults.
const (
	// DefaultConcurrency is how many evictions are under way at once.
	DefaultConcurrency = 8
	// MaxConcurrency is the most that WithConcurrency accepts.
	MaxConcurrency = 64
	// DefaultProgressInterval is the shortest time between two calls of the
	// progress function.
	DefaultProgressInterval = time.Second
)

// Drainer drains one node. It holds no state of a drain; its methods may be
// called by several goroutines.
type Drainer struct {
	client        kubernetes.Interface
	node          string
	policy        Policy
	force         bool
	logger        *slog.Logger
	concurrency   int
	progressEvery time.Duration
}

// Option changes a Drainer that is being made.
type Option func(*Drainer)

// WithLogger hands in where to log to. Without it nothing is logged.
func WithLogger(l *slog.Logger) Option { return func(d *Drainer) { d.logger = l } }

// WithPolicy hands in a say on single pods, see [Policy].
func WithPolicy(p Policy) Option { return func(d *Drainer) { d.policy = p } }

// WithForce has pods deleted instead of evicted: PodDisruptionBudgets are not
// asked. Pods that a [Policy] blocks are still waited for.
func WithForce() Option { return func(d *Drainer) { d.force = true } }

// WithConcurrency sets how many evictions may be under way at once, 1 to
// MaxConcurrency; numbers outside are cut to the range.
func WithConcurrency(n int) Option {
	return func(d *Drainer) { d.concurrency = min(max(n, 1), MaxConcurrency) }
}

// WithProgressInterval sets the shortest time between two calls of the
// progress function; at least 10 ms.
func WithProgressInterval(every time.Duration) Option {
	return func(d *Drainer) { d.progressEvery = max(every, 10*time.Millisecond) }
}

// New returns a Drainer for the node of that name. The client's own rate
// limit should leave room for about 20 requests a second; client-go's default
// of 5 only makes a drain slower.
func New(client kubernetes.Interface, node string, opts ...Option) *Drainer {
	d := &Drainer{
		client:        client,
		node:          node,
		logger:        slog.New(slog.DiscardHandler),
		concurrency:   DefaultConcurrency,
		progressEvery: DefaultProgressInterval,
	}
	for _, o := range opts {
		o(d)
	}
	return d
}

// Run evicts the node's pods and waits for them to go. It returns nil once a
// moment came in which its watch showed none left to evict or to
// wait for; more may come afterwards (see [Drainer.Remaining]). Otherwise it
// goes on, through an API server that is away as well, until ctx ends and
// returns ctx's error, wrapped. When ctx ends no new eviction is begun; those
// under way have 2 s to be answered, then they are abandoned, and none is sent
// after Run has returned.
//
// progress may be nil. It is called from Run's own goroutine, first when the
// pods are known, then only when something changed and no oftener than the
// progress interval (but always once before Run returns nil). Run waits for it.
func (d *Drainer) Run(ctx context.Context, progress func(Progress)) error {
	if d.node == "" {
		return errors.New("draining: no node name was given")
	}
	ctx, stop := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	pods := d.watchPods(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { pods.Run(klog.NewContext(ctx, logr.FromSlogHandler(d.logger.Handler()))) })
	defer wg.Wait()
	defer stop()

	l := &loop{
		changed:  changed,
		pods:     func() snapshot { return snapshotOf(pods) },
		evictor:  apiEvictor{client: d.client, force: d.force},
		schedule: newSchedule(d.concurrency, rand.Float64),
		reporter: reporter{send: progress, every: d.progressEvery},
		logger:   d.logger,
	}
	if err := l.run(ctx); err != nil {
		return fmt.Errorf("draining node %s: %w", d.node, err)
	}
	return nil
}

// Remaining asks the API server, past every cache, which pods of the node Run
// would still evict or wait for, sorted by namespace and name. It is what to
// look at last before a reboot: empty means drained. A request without an
// answer is an error, never an empty list.
func (d *Drainer) Remaining(ctx context.Context) ([]Pod, error) {
	if d.node == "" {
		return nil, errors.New("listing pods: no node name was given")
	}
	var left []Pod
	err := d.eachPod(ctx, func(p *corev1.Pod) {
		if d.verdict(p).Class != Leave {
			left = append(left, identify(p))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", d.node, err)
	}
	slices.SortFunc(left, comparePods)
	return left, nil
}

// verdict is Classify with the policy's say.
func (d *Drainer) verdict(p *corev1.Pod) Verdict { return d.policy.judge(p, Classify(p)) }
