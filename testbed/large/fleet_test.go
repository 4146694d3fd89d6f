package large

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// What `make bench PARTS=scale,decide` measured. The simulation has no network, and delivers watch events at once.
const (
	// writeMedian and writeP99 are the API server's time for a write of the coordinator, on a busy machine.
	writeMedian, writeP99 = 17 * time.Millisecond, 65 * time.Millisecond
	readTime              = 5 * time.Millisecond
	// decideTime is the time for a decision, for each Node, if all Nodes wait for a few in a turn.
	decideTime = 1800 * time.Nanosecond
)

const (
	userCoordinator, userHost, userAdmin = "lockkeeper-coordinator", "host", "admin"

	inTurn = 50 // nodes at the same time
	turns  = 200
	// Hosts drain and boot for shortestStage to longestStage each.
	shortestStage, longestStage = 10 * time.Second, 30 * time.Second
)

// fleet is an API server in memory with many Nodes, and what its one coordinator has written.
type fleet struct {
	t       *testing.T
	ctx     context.Context // of the coordinator and the hosts
	cancel  context.CancelFunc
	running sync.WaitGroup
	server  *apiserver.Server
	nodes   int
	admin   *kube.Client
	host    Host
	policy  *v1alpha1.DisruptionPolicy

	mu       sync.Mutex
	states   map[v1alpha1.State]int
	held     map[v1alpha1.Reason]int
	playing  map[string]chan v1alpha1.State // by Node
	ended    int                            // turns
	said     map[string]time.Time           // when the host of a Node last wrote, unless it was promoted since
	promoted []time.Duration                // from there to the promotion
	reasons  map[int]int                    // how many were written, by the second after from
	from     time.Time
	grants   int // since from
}

// link is a way to the API server that takes as long as a real one.
type link struct {
	next   http.RoundTripper
	mu     sync.Mutex
	random *rand.Rand
}

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	took := readTime
	if r.Method != http.MethodGet {
		took = l.write()
	} else if r.URL.Query().Get("watch") != "" {
		took = 0
	}
	time.Sleep(took / 2)
	resp, err := l.next.RoundTrip(r)
	time.Sleep(took / 2)
	return resp, err
}

// write returns a time whose logarithm is normally distributed.
func (l *link) write() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	const of99 = 2.326 // the normal distribution's
	spread := math.Log(float64(writeP99)/float64(writeMedian)) / of99
	return time.Duration(float64(writeMedian) * math.Exp(spread*l.random.NormFloat64()))
}

// TestLargeFleet runs a coordinator with many Nodes that all want a reboot, in virtual time: it adopts them, holds them, and rolls fifty at
// a time. `make soak` runs it with 50,000, by LOCKKEEPER_NODES.
func TestLargeFleet(t *testing.T) {
	nodes := int(rig.Number(t, "LOCKKEEPER_NODES", 1000))
	if nodes > 10_000 {
		defer debug.SetGCPercent(debug.SetGCPercent(400)) // memory is cheaper than time
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nodes)
		defer f.running.Wait()
		defer f.cancel()
		f.coordinate(file)

		// A round adopts 25 Nodes, four at a time. A write takes 1.2 medians on average, and the slowest of four 1.8.
		const mean, four, slack = writeMedian * 12 / 10, writeMedian * 18 / 10, 10 * time.Second
		decision := time.Duration(nodes) * decideTime
		adopted := time.Duration(nodes) / 25 * (21*mean/4 + four + decision)
		// While turns begin and end, a decision may come after every four reasons.
		told := max(time.Minute, time.Duration(nodes)/4*(four+decision)) + slack

		f.reset()
		f.until("all Nodes to be adopted", adopted*5/4+slack, func() bool { return f.states[v1alpha1.StateIdle] == nodes })
		f.until("all Nodes to be held by the pause", adopted+told, func() bool { return f.held[v1alpha1.ReasonPaused] == nodes })

		f.reset()
		f.setPolicy(func(s *v1alpha1.DisruptionPolicySpec) { s.Paused = false })
		f.until(fmt.Sprintf("%d grants", inTurn), 2*inTurn*writeMedian+time.Second+3*decision, func() bool { return f.grants >= inTurn })
		f.until("no reason of the pause to be left", told, func() bool { return f.held[v1alpha1.ReasonPaused] == 0 })
		f.until(fmt.Sprintf("%d turns to end", turns), time.Hour, func() bool { return f.ended >= turns })
		f.mu.Lock()
		promoted := slices.Sorted(slices.Values(f.promoted))
		f.mu.Unlock()
		// A report waits for the rest of a decision, for a pause or four reasons, for another decision, and for its write.
		bound := 3*decision + four + writeP99 + 20*time.Millisecond
		p99 := promoted[len(promoted)*99/100]
		t.Logf("%d Nodes: from a host's write to the promotion that it allows, of %d: median %v, p99 %v of at most %v",
			nodes, len(promoted), promoted[len(promoted)/2].Round(time.Millisecond), p99.Round(time.Millisecond), bound)
		if p99 > bound {
			t.Errorf("p99 is %v, expected at most %v", p99, bound)
		}

		f.reset()
		f.stop()
		f.until("no other reason than the stop to be left", told, func() bool { return f.held[v1alpha1.ReasonBudget] == 0 })
	})
}

// newFleet creates the Nodes, the Lease and a policy that is paused.
func newFleet(t *testing.T, nodes int) *fleet {
	f := &fleet{t: t, server: apiserver.New(), nodes: nodes, states: map[v1alpha1.State]int{}, held: map[v1alpha1.Reason]int{},
		playing: map[string]chan v1alpha1.State{}, said: map[string]time.Time{}}
	f.ctx, f.cancel = context.WithCancel(t.Context())
	f.admin = f.client(userAdmin)
	_, err := f.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultLeaseNamespace}}, metav1.CreateOptions{})
	f.must(err)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.DefaultLeaseNamespace, Name: v1alpha1.DefaultLeaseName}}
	_, err = f.admin.CoordinationV1().Leases(lease.Namespace).Create(t.Context(), lease, metav1.CreateOptions{})
	f.must(err)
	f.policy = &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultPolicyName}, Spec: v1alpha1.DefaultPolicySpec()}
	f.policy.Spec.Priority, f.policy.Spec.Paused = v1alpha1.MinPriority, true
	f.policy.Spec.Rollout.MaxUnavailable, f.policy.Spec.Rollout.Settle = intstr.FromInt32(inTurn), metav1.Duration{}
	kinds, err := f.admin.OwnKinds()
	f.must(err)
	f.must(kinds.Post().Resource("disruptionpolicies").Body(f.policy).Do(t.Context()).Into(f.policy))
	for i := range nodes {
		n, err := f.admin.CoreV1().Nodes().Create(t.Context(), node(i), metav1.CreateOptions{})
		f.must(err)
		n.Annotations = map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(host(n))}
		_, err = f.admin.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		f.must(err)
	}
	f.host = Host{Nodes: f.client(userHost).CoreV1().Nodes(), Stage: stage, Await: f.await}
	f.server.Observe(f.wrote)
	return f
}

// node returns a Node of a host that wants to reboot, as its kubelet has registered it.
func node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%05d", i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3), v1alpha1.LabelWants: string(v1alpha1.WantsReboot)},
		},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: name},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// host returns the host's own record of its Node.
func host(n *corev1.Node) v1alpha1.Host {
	booted := time.Now().Add(-24 * time.Hour).Truncate(time.Second)
	return v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "v1", NodeUID: string(n.UID), BootID: n.Name, BootTime: booted, Started: booted, Managed: true, OSVersion: "4.1.0",
		Drains: true, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}},
	}
}

// client returns a client of this user.
func (f *fleet) client(user string) *kube.Client {
	cfg := &rest.Config{Host: "https://api.invalid"}
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return f.server.Client(user) })
	c, err := kube.ConnectConfig(cfg, user, "test", 1e6, 1e6)
	f.must(err)
	return c
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// coordinate runs the coordinator until cancel. file is the path of its kubeconfig.
func (f *fleet) coordinate(file string) {
	kubeconfig := `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "https://api.invalid"}}],
		users: [{name: c, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: c}}]}`
	f.must(os.WriteFile(file, []byte(kubeconfig), 0o600))
	way := &link{next: f.server.Client(userCoordinator), random: rand.New(rand.NewPCG(1, 2))}
	o := coordinator.Options{
		Version: "v1", NodeName: func() string { return "node-00000" },
		LeaseNamespace: v1alpha1.DefaultLeaseNamespace, LeaseName: v1alpha1.DefaultLeaseName,
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second,
		Credential: kube.New(kube.Options{
			Identity: v1alpha1.IdentityCoordinator, Paths: []string{file}, Version: "v1", QPS: coordinator.QPS, Burst: coordinator.Burst,
			Wrap: func(http.RoundTripper) http.RoundTripper { return way },
		}),
		// The virtual clock stands still while a decision is made.
		Decided: func(_ time.Duration, s *rollout.Snapshot, _ *rollout.Outcome) {
			time.Sleep(time.Duration(len(s.Nodes)) * decideTime)
		},
	}
	f.running.Go(func() { coordinator.Run(f.ctx, o) })
}

// wrote takes a write to the API server.
func (f *fleet) wrote(w apiserver.Write) {
	was, _ := w.Old.(*corev1.Node)
	is, _ := w.Object.(*corev1.Node)
	if was == nil || is == nil || w.Subresource != "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.User == userHost {
		f.said[w.Name] = time.Now()
		return
	}
	if w.User != userCoordinator {
		return
	}
	from, to := v1alpha1.State(was.Labels[v1alpha1.LabelState]), v1alpha1.State(is.Labels[v1alpha1.LabelState])
	f.states[from]--
	f.states[to]++
	if old, held := v1alpha1.Reason(was.Labels[v1alpha1.LabelHeld]), v1alpha1.Reason(is.Labels[v1alpha1.LabelHeld]); old != held {
		f.held[old]--
		f.held[held]++
		if from == to {
			f.reasons[int(time.Since(f.from)/time.Second)]++
		}
	}
	if from == to {
		return
	}
	if at, ok := f.said[w.Name]; ok {
		f.promoted = append(f.promoted, time.Since(at))
		delete(f.said, w.Name)
	}
	switch state := f.playing[w.Name]; {
	case state != nil:
		state <- to
	case to.InTurn():
		f.grants++
		f.playing[w.Name] = make(chan v1alpha1.State, 10)
		f.running.Go(func() { f.play(turn.FromNode(is)) })
	}
}

// play plays a turn of a node, or until the test ends.
func (f *fleet) play(n turn.Node) {
	if err := f.host.Turn(f.ctx, n); err != nil && f.ctx.Err() == nil {
		f.t.Errorf("%s: %v", n.Name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.playing, n.Name)
	f.ended++
}

// stage takes as long as a drain or a boot.
func stage(ctx context.Context) error {
	select {
	case <-time.After(shortestStage + rand.N(longestStage-shortestStage)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fleet) await(ctx context.Context, node string, state v1alpha1.State) error {
	f.mu.Lock()
	states := f.playing[node]
	f.mu.Unlock()
	for {
		select {
		case s := <-states:
			if s == state {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reset begins a measurement.
func (f *fleet) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from, f.reasons, f.grants = time.Now(), map[int]int{}, 0
}

// until waits until the condition is true, which it calls under the lock, and logs the time since reset. The test fails if that is longer than
// the bound.
func (f *fleet) until(what string, bound time.Duration, reached func() bool) {
	f.t.Helper()
	for {
		f.mu.Lock()
		ok, took := reached(), time.Since(f.from)
		most := 0
		for _, n := range f.reasons {
			most = max(most, n)
		}
		text := fmt.Sprintf("%d Nodes: %v of at most %v for %s; %d reasons in the busiest second", f.nodes, took, bound, what, most)
		if took > bound {
			text += fmt.Sprintf("; states %v, held %v, %d turns have ended", f.states, f.held, f.ended)
		}
		f.mu.Unlock()
		switch {
		case took > bound:
			f.t.Fatal(text)
		case ok:
			f.t.Log(text)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (f *fleet) setPolicy(edit func(*v1alpha1.DisruptionPolicySpec)) {
	kinds, err := f.admin.OwnKinds()
	f.must(err)
	p := &v1alpha1.DisruptionPolicy{}
	f.must(kinds.Get().Resource("disruptionpolicies").Name(f.policy.Name).Do(f.t.Context()).Into(p))
	edit(&p.Spec)
	f.must(kinds.Put().Resource("disruptionpolicies").Name(p.Name).Body(p).Do(f.t.Context()).Error())
}

// stop sets the emergency stop.
func (f *fleet) stop() {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"test"}}}`, v1alpha1.AnnotationStop)
	_, err := f.admin.CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Patch(f.t.Context(), v1alpha1.DefaultLeaseName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	f.must(err)
}
