package client

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/node/effect"
	hoststep "lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// fleetHost drains one node, as a host does: with package effect, and with a list from the quorum at the end.
type fleetHost struct {
	f     *fleet
	plan  *fleetPlan
	node  string
	proxy *faultproxy.Proxy
	drain *effect.Drain
	wake  chan struct{}
	force chan struct{} // closed: the drain is overdue, and its policy says Force
	done  chan struct{} // closed when the node is empty

	mu       sync.Mutex
	empty    bool // no pod may be bound to the node any more
	stage    effect.Stage
	eviction hoststep.Eviction
	faults   int
	hit      map[types.UID]int // faults by pod
	later    []retryAfter
	refused  map[types.UID]time.Time // when the API server first refused to evict the pod, in this run
	unread   time.Time               // the time of the last fault of a list or a watch
	runs     []hostRun
}

// hostRun is one run of the host's drain.
type hostRun struct {
	began   time.Time
	started time.Time // the run before has ended, and this one may have sent requests already; zero: not yet
	stopped time.Time // zero: it ended by itself
	force   bool
}

func newFleetHost(f *fleet, node string) (*fleetHost, error) {
	h := &fleetHost{
		f: f, plan: f.plan, node: node, wake: make(chan struct{}, 1), force: make(chan struct{}), done: make(chan struct{}),
		faults: f.plan.faults, hit: map[types.UID]int{}, refused: map[types.UID]time.Time{},
		eviction: hoststep.Eviction{Rules: f.plan.rules},
	}
	identity, err := drainPlane().NodeConfig(node)
	if err != nil {
		return nil, err
	}
	h.proxy, err = faultproxy.Start(faultproxy.Options{Name: node, Config: identity, Dir: f.t.TempDir(), Label: labelWrite, Record: h.answered})
	if err != nil {
		return nil, err
	}
	h.proxy.Add(h.fault)
	config, err := clientcmd.BuildConfigFromFlags("", h.proxy.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	wake := func() {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
	h.drain = effect.NewDrain(client, node, slog.New(slog.DiscardHandler), wake, h.deleted, func(context.Context) {})
	return h, nil
}

// asked judges a request when it arrives.
func (h *fleetHost) asked(r *faultproxy.Request) {
	if g := h.f.judge.groupNamed(r.Name); r.Is("create", "pods/eviction") && g != nil && g.critical() {
		h.f.judge.critical(h, r)
	}
}

// answered notes from when the API server has refused to evict a pod.
func (h *fleetHost) answered(rec faultproxy.Record) {
	if !rec.Is("create", "pods/eviction") || rec.Code/100 == 2 || noAnswer(&rec) {
		return
	}
	uid, _ := targetOf(rec.Label)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.refused[uid]; !ok {
		h.refused[uid] = rec.Time
	}
}

// deleted takes what a forced drain reports.
func (h *fleetHost) deleted(_ string, p corev1.ObjectReference, refusal string) {
	if refusal == "" || p.UID == "" {
		h.f.judge.breaks("a forced deletion was reported without the refusal or the UID: %+v, %q", p, refusal)
	}
}

// run drains the node, and returns when it is empty or the fleet ends.
func (h *fleetHost) run(ctx context.Context) {
	defer h.drain.Stop()
	var abort <-chan time.Time
	if h.plan.onTimeout == v1alpha1.OnTimeoutAbort {
		abort = time.After(h.plan.abortAfter)
	}
	force := h.force
	h.start(ctx, false)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-tick.C:
		case <-abort: // the turn is backed out, and the next one begins a little later
			abort = nil
			h.stop()
			pauseFor(ctx, h.plan.abortAfter)
			h.start(ctx, false)
		case <-force:
			force = nil
			h.mu.Lock()
			h.eviction.Force = true
			h.mu.Unlock()
			h.start(ctx, true)
		}
		if h.drain.Work(h.stage).Complete && h.isEmpty(ctx) {
			close(h.done)
			return
		}
	}
}

func (h *fleetHost) start(ctx context.Context, ran bool) {
	h.mu.Lock()
	if !ran {
		h.stage = effect.Stage{Turn: fmt.Sprint("turn-", len(h.runs)), State: v1alpha1.StateDraining}
	}
	h.runs = append(h.runs, hostRun{began: time.Now(), force: h.eviction.Force})
	clear(h.refused)
	e := h.eviction
	h.mu.Unlock()
	h.drain.Start(ctx, h.stage, e, ran)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[len(h.runs)-1].started = time.Now()
}

func (h *fleetHost) stop() {
	h.drain.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[len(h.runs)-1].stopped = time.Now()
}

// isEmpty lists the node's pods from the quorum, and drains again if there are some. No pod is bound to the node meanwhile.
func (h *fleetHost) isEmpty(ctx context.Context) bool {
	h.f.binding.Lock()
	left, err := h.drain.Remaining(ctx, h.eviction)
	empty := err == nil && len(left) == 0
	h.mu.Lock()
	h.empty = empty
	h.mu.Unlock()
	h.f.binding.Unlock()
	if err == nil && !empty {
		h.f.judge.early(h, left)
		h.start(ctx, false)
	}
	return empty
}

// blockers describes what the drain reports.
func (h *fleetHost) blockers() (all []string) {
	for _, b := range h.drain.Progress().Blockers {
		all = append(all, fmt.Sprintf("%s %s since %s: %s", b.Name, b.Reason, b.Since.Format(time.TimeOnly), b.Message))
	}
	return all
}

func (h *fleetHost) isDone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.empty
}

// stoppedAt reports whether a run was stopped before t and none was started until t.
func (h *fleetHost) stoppedAt(t time.Time) bool {
	stopped := false
	for _, r := range h.runs {
		if r.began.After(t) {
			break
		}
		stopped = !r.stopped.IsZero() && r.stopped.Before(t)
	}
	return stopped
}

func (h *fleetHost) forcedAt(t time.Time) bool {
	return slices.ContainsFunc(h.runs, func(r hostRun) bool { return r.force && r.began.Before(t) })
}

// restarted reports whether a run may have begun between the two times.
func (h *fleetHost) restarted(from, to time.Time) bool {
	return slices.ContainsFunc(h.runs, func(r hostRun) bool { return r.started.After(from) && r.began.Before(to) })
}

// fleet is the pods of one plan, and what happens to them.
type fleet struct {
	t      *testing.T
	w      *world
	plan   *fleetPlan
	judge  *fleetJudge
	hosts  []*fleetHost
	others []string // nodes that are not drained

	ctx          context.Context
	begun, ended atomic.Bool
	slowest      atomic.Int64 // the longest answer to probe
	tasks        sync.WaitGroup
	binding      sync.Mutex // held while a pod is bound to a drained node, or a host lists its pods for the last time

	mu     sync.Mutex
	rng    *rand.Rand
	placed map[*group]int
	held   map[*group]bool // the obstacle is there
	lateG  *group
}

// random returns a number below n for what is not part of the plan.
func (f *fleet) random(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

func (f *fleet) hostOf(node string) *fleetHost {
	for _, h := range f.hosts {
		if h.node == node {
			return h
		}
	}
	return nil
}

func (f *fleet) groupOf(p *corev1.Pod) *group {
	name := p.Labels["group"]
	if name == "" {
		name, _, _ = strings.Cut(p.Name, "-")
	}
	if f.lateG.name == name {
		return f.lateG
	}
	for _, g := range f.plan.groups {
		if g.name == name {
			return g
		}
	}
	return nil
}

// holds reports whether the group's obstacle is there.
func (f *fleet) holds(g *group) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[g]
}

func (f *fleet) hold(g *group, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[g] = on
}

// place binds a pod without a node, as a scheduler does: the first ones of a group, and those that return, to drained nodes.
func (f *fleet) place(ctx context.Context, p *corev1.Pod, s *seenPod) {
	g := s.group
	f.mu.Lock()
	n := f.placed[g]
	f.placed[g]++
	wait := time.Duration(f.rng.IntN(800)) * time.Millisecond
	node := f.others[f.rng.IntN(len(f.others))]
	f.mu.Unlock()
	back := n >= int(g.replicas) && n-int(g.replicas) < g.returns
	host := f.hosts[n%len(f.hosts)]
	if g.kind == daemon {
		host = f.hosts[0]
	}
	if n < int(g.replicas) {
		wait = 0
	}
	f.tasks.Go(func() {
		pauseFor(ctx, wait)
		f.binding.Lock()
		defer f.binding.Unlock()
		if n < g.here || back && !host.isDone() {
			node = host.node
		}
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		if err := f.w.admin.CoreV1().Pods(p.Namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil && ctx.Err() == nil && !f.ended.Load() {
			f.judge.breaks("binding pod %s: %v", p.Name, err)
		}
	})
}

// endPod ends a pod that is being deleted, after its time, as its kubelet does: by its UID. KWOK would delete by name, and hit a
// successor of the same name.
func (f *fleet) endPod(ctx context.Context, s seenPod) {
	if s.node == "" || s.group == nil || s.group.obstacle == deadKubelet {
		return
	}
	f.tasks.Go(func() {
		pauseFor(ctx, s.group.stops)
		o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.uid)), GracePeriodSeconds: new(int64)}
		err := f.w.admin.CoreV1().Pods(f.w.space).Delete(ctx, s.name, o)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			f.judge.breaks("ending pod %s: %v", s.name, err)
		}
	})
}

// pauseFor waits, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// play drains the fleet's nodes.
func (f *fleet) play() {
	const limit = 5 * time.Minute
	drains, cancel := context.WithTimeout(f.ctx, limit)
	defer cancel()
	for _, g := range f.plan.groups {
		if g.kind == leaving {
			f.userDeletes(g)
		}
	}
	f.begun.Store(true)
	for _, h := range f.hosts {
		f.tasks.Go(func() { h.run(drains) })
	}
	for range f.plan.late {
		f.tasks.Go(func() { f.late(drains) })
	}
	f.tasks.Go(func() { f.move(drains) })
	f.tasks.Go(func() { f.probe(drains) })
	worst := f.obstacles(drains)
	// The stated bound: from the end of the last obstacle on, as long as the drain may pause before its next attempt, then the grace
	// periods of both groups, and 20 s for faults and the controllers.
	bound := time.After(worst + 20*time.Second + f.slack())
	for _, h := range f.hosts {
		select {
		case <-h.done:
		case <-bound:
			f.judge.breaks("the drain of %s does not end within %v although all obstacles are gone: left are %s; blockers %q", h.node,
				(worst + 20*time.Second).Round(time.Second), f.judge.left(h), h.blockers())
			return
		case <-drains.Done():
			f.judge.breaks("the drain of %s does not end within %v: left are %s; blockers %q", h.node, limit, f.judge.left(h), h.blockers())
			return
		}
	}
	if err := f.judge.waitMarker(drains); err != nil {
		f.judge.breaks("%v", err)
	}
	f.ended.Store(true)
	for _, h := range f.hosts {
		f.judge.end(h)
	}
}

// probe measures how slow the machine is: how long the API server takes for a small request.
func (f *fleet) probe(ctx context.Context) {
	for ctx.Err() == nil && !f.ended.Load() {
		began := time.Now()
		_, _ = f.w.admin.CoreV1().Namespaces().Get(ctx, f.w.space, metav1.GetOptions{})
		if took := int64(time.Since(began)); took > f.slowest.Load() {
			f.slowest.Store(took)
		}
		pauseFor(ctx, 200*time.Millisecond)
	}
}

// slack is what a slow machine adds to each bound. A request takes some 10 ms on one that is not.
func (f *fleet) slack() time.Duration { return 10 * time.Duration(f.slowest.Load()) }

// obstacles waits until the obstacles are named, and removes them. It returns how long the drains may take from then on.
func (f *fleet) obstacles(ctx context.Context) time.Duration {
	var mu sync.Mutex
	var worst time.Duration
	var named, over sync.WaitGroup
	together := make(chan struct{})
	for _, g := range f.plan.groups {
		if g.obstacle == nil {
			continue
		}
		named.Add(1)
		over.Go(func() {
			began := time.Now()
			ok := f.named(ctx, g)
			named.Done()
			if !ok {
				return
			}
			if f.plan.together {
				<-together
			} else {
				pauseFor(ctx, time.Duration(f.random(1000))*time.Millisecond)
			}
			f.lift(ctx, g)
			lifted := time.Now()
			again := 3*time.Second + time.Duration(g.grace+1)*time.Second
			if g.obstacle.asked {
				again += 10*time.Second + time.Since(began)/5
			}
			mu.Lock()
			worst = max(worst, again)
			mu.Unlock()
			f.gone(ctx, g, lifted, again+15*time.Second)
		})
	}
	named.Wait()
	if f.plan.together {
		f.steady(ctx)
		pauseFor(ctx, f.plan.stubborn)
	}
	if f.plan.onTimeout == v1alpha1.OnTimeoutForce {
		for _, g := range f.plan.groups {
			f.judge.keep(g, -1)
		}
		for _, h := range f.hosts {
			close(h.force)
		}
	}
	close(together)
	over.Wait()
	return worst
}

// steady checks, while all obstacles are there, that each pod that is left is named or about to leave.
func (f *fleet) steady(ctx context.Context) {
	for _, h := range f.hosts {
		var left []string
		for end := time.Now().Add(15*time.Second + f.slack()); time.Now().Before(end) && ctx.Err() == nil; pauseFor(ctx, 50*time.Millisecond) {
			if left = f.judge.unnamed(h); h.isDone() || len(left) == 0 {
				left = nil
				break
			}
		}
		if len(left) > 0 && ctx.Err() == nil {
			f.judge.breaks("pods %v are left on %s, and no blocker names them: %q", left, h.node, h.blockers())
		}
	}
}

// named waits until the drains have named each pod of the group as the obstacle demands. No pod may leave before.
func (f *fleet) named(ctx context.Context, g *group) bool {
	const patience = 40 * time.Second // faults, the 30 s for critical pods or the 10 s after a grace period
	o := g.obstacle
	message := strings.ReplaceAll(o.message, "BUDGET", g.name)
	ok := map[types.UID]bool{}
	began := time.Now()
	if g.critical() {
		began = began.Add(30 * time.Second)
	}
	for ctx.Err() == nil {
		missing := 0
		for _, s := range f.judge.on(g) {
			h := f.hostOf(s.node)
			ok[s.uid] = ok[s.uid] || slices.ContainsFunc(h.drain.Progress().Blockers, func(b drain.Blocker) bool {
				return b.UID == s.uid && b.Reason == o.reason && strings.Contains(b.Message, message) && (!o.budget || b.Budget == f.w.space+"/"+g.name)
			})
			if !ok[s.uid] {
				missing++
			}
		}
		if missing == 0 {
			if len(ok) < g.here {
				f.judge.breaks("%d of %d pods were named, and the others are gone (%s)", len(ok), g.here, g)
				return false
			}
			return true
		}
		if time.Since(began) > patience+f.slack() {
			var said []string
			for _, h := range f.hosts {
				said = append(said, h.blockers()...)
			}
			f.judge.breaks("%d pods are not named as %s, %q within %v (%s): %q", missing, o.reason, message, patience, g, said)
			return false
		}
		pauseFor(ctx, 25*time.Millisecond)
	}
	return false
}

// gone waits until the group's pods have left the drained nodes.
func (f *fleet) gone(ctx context.Context, g *group, since time.Time, within time.Duration) {
	if g.critical() {
		return // they wait for others; the bound of the whole drain counts
	}
	for ctx.Err() == nil && len(f.judge.on(g)) > 0 {
		if time.Since(since) > within+f.slack() {
			f.judge.breaks("%v after the end of %s, %d pods are left (%s)", within.Round(time.Second), g.obstacle.name, len(f.judge.on(g)), g)
			return
		}
		pauseFor(ctx, 25*time.Millisecond)
	}
}
