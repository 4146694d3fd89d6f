// Package drain empties one node: it evicts the node's pods through the eviction API until
// none is left, or until its context ends. Critical pods are evicted last.
//
// It costs the API server one LIST, one WATCH, one LIST of a single pod (see [kube.Watch]) and
// about one POST for each pod, however long the drain takes. It asks for nothing that the
// kubelet's identity (system:node:<name>) may not do: it never reads a DaemonSet, a
// PodDisruptionBudget or another node's pod.
//
// The package must not know why a node is drained. Turns, states, leases, pauses and
// timeouts belong to its caller, which ends the context and calls Run again as often as it
// likes. Between two runs the package keeps nothing: the facts are on the API server, and
// the same facts lead to the same next eviction.
//
// A pod without a controller is evicted like any other, although nothing creates it again: a
// node that reboots loses it anyway, and an update that waits indefinitely for a forgotten
// debug pod is worse. A [Policy] changes that where it has to be changed.
package drain

import (
	"cmp"
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
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// Pod names one pod. The UID distinguishes it from a pod of the same name that was
// created later.
type Pod struct {
	Namespace string
	Name      string
	UID       types.UID
}

// String returns namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

const (
	// DefaultConcurrency is how many evictions are under way at once.
	DefaultConcurrency = 8
	// defaultProgressInterval is the shortest time between two calls of the progress
	// function.
	defaultProgressInterval = time.Second
)

// Client is what a drain needs of a client of the API server.
type Client interface {
	CoreV1() typed.CoreV1Interface
}

// Drainer drains one node. It holds no state of a drain; its methods may be called by several
// goroutines.
type Drainer struct {
	// Client should have no rate limit of its own: Concurrency and the API server's answers set
	// the pace. client-go's default of 5 requests a second makes a drain slower.
	Client Client
	Node   string // its name
	// Policy may overrule what happens to single pods; nil overrules nothing.
	Policy Policy
	// Force deletes a pod if the API server refuses to evict it, because of a
	// PodDisruptionBudget or a webhook, say. The drain still waits for pods that Policy blocks.
	Force bool
	// Deleted is called for each pod that Force deleted, with the API server's refusal to evict
	// it. It is called from several goroutines at once, must not block, and may be nil.
	Deleted func(p Pod, refusal string)
	Log     *slog.Logger // nil: nothing is logged
	// Concurrency is how many evictions may be under way at once; 0 is DefaultConcurrency. They
	// are fewer while the API server answers that it is busy, or does not answer.
	Concurrency int
	// ProgressInterval is the shortest time between two calls of the progress function; 0
	// is one second.
	ProgressInterval time.Duration
}

// Run evicts the node's pods and waits until they are gone. It returns nil once its watch
// shows none that is left to evict or to wait for; more may come afterwards (see
// [Drainer.Remaining]). Otherwise it continues, also while the API server is away, until ctx
// ends, and returns ctx's error, wrapped. When ctx ends, Run begins no new eviction. It waits
// up to 2 s for the answers to those under way, and sends none after it has returned.
//
// progress may be nil. Run calls it from its own goroutine and waits for it: first when the
// pods are known, then only when something has changed and at most once in each progress
// interval, and in any case once before Run returns nil.
func (d *Drainer) Run(ctx context.Context, progress func(Progress)) error {
	if d.Node == "" {
		return errors.New("draining: no node name was given")
	}
	log := cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	pods := d.watchPods(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { pods.Run(klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))) })
	defer wg.Wait()
	defer stop()

	l := &loop{
		changed: changed,
		pods: func() (s snapshot) {
			s.pods, s.synced, s.err = pods.Snapshot()
			return s
		},
		evictor:  apiEvictor{client: d.Client, force: d.Force, deleted: d.Deleted},
		schedule: newSchedule(cmp.Or(d.Concurrency, DefaultConcurrency), rand.Float64),
		reporter: reporter{send: progress, every: cmp.Or(d.ProgressInterval, defaultProgressInterval)},
		logger:   log,
	}
	if err := l.run(ctx); err != nil {
		return fmt.Errorf("draining node %s: %w", d.Node, err)
	}
	return nil
}

// Left is a pod that is left on the node, and what Run does about it.
type Left struct {
	Pod
	Verdict Verdict
}

// Blocker returns the Blocker of a pod whose verdict is [Block], without a Since.
func (l Left) Blocker() Blocker {
	return Blocker{Pod: l.Pod, Reason: l.Verdict.Reason, Message: blockMessage(l.Verdict.Reason)}
}

// Remaining asks the API server, past every cache, which pods of the node Run would still
// evict or wait for, sorted by namespace and name. It is the last read before a cordon and
// before a reboot: an empty list means that the node is drained. A request without an answer is
// an error, never an empty list.
func (d *Drainer) Remaining(ctx context.Context) ([]Left, error) {
	if d.Node == "" {
		return nil, errors.New("listing pods: no node name was given")
	}
	var left []Left
	err := d.eachPod(ctx, func(p *corev1.Pod) {
		if v := d.Policy.Judge(p); v.Class != Leave {
			left = append(left, Left{identify(p), v})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", d.Node, err)
	}
	slices.SortFunc(left, func(a, b Left) int { return comparePods(a.Pod, b.Pod) })
	return left, nil
}
