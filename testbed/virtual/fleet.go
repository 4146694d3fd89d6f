package virtual

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// Options configure a fleet.
type Options struct {
	// Hosts is the number of hosts; they are called n1, n2 and so on.
	Hosts int
	// Candidates is how many of them campaign for the Lease; 0 means all.
	Candidates int
	// ControlPlane is how many of them are control-plane nodes, counted from n1.
	ControlPlane int
	// Workloads is how many deployments of two pods each run; each has a budget of one unavailable pod.
	Workloads int
	// Policy changes the defaults of the only policy; nil leaves them.
	Policy func(*v1alpha1.DisruptionPolicySpec)
	// Hooks are how long the hook unit of each stage takes on each host; a stage that is not in it has no unit.
	Hooks map[v1alpha1.State]time.Duration
	// Apply are the actions of a rule for the files of each host's service; nil: no rule.
	Apply []v1alpha1.Action
	// Canary is how long n1, which then has a policy of its own, has to run an OS version before the other hosts may get it; 0: all hosts
	// have one policy, and wait for no other.
	Canary time.Duration
	// Pool is how many of the hosts, the last ones, have a policy of their own with a budget of one. Canary is 0 then.
	Pool int
	// Blackout is a time in which no policy grants a turn, from the start of the fleet on; zero: none.
	Blackout span
	// Blocks are the pods that the policy blocks.
	Blocks blockRules
	// Clients are the hosts, counted from 0, that a FleetLock client updates and reboots, and not update_engine and lockkeeper.
	Clients []int
	// ClientsAsk is how often a client asks again after a refusal; 0: as often as Zincati.
	ClientsAsk time.Duration
	// Forces is set if Policy lets an overdue drain delete the pods that it cannot evict.
	Forces bool
	// Clears is how often an admin clears turns that failed while the plan lasts; 0: never. A failure stops all turns.
	Clears time.Duration
	// Config is added to each host's lockkeeper.toml.
	Config string
	// Lag is the longest delay that the run's own faults may cause; see [referee.Options].
	Lag time.Duration
	// Late is how late a leader may call a turn overdue; see [referee.Options].
	Late time.Duration
	// Before is called when everything is there, and lockkeeper does not run yet; it may be nil.
	Before func(*Fleet)
	// Plan is what goes wrong; see [Fleet.Start].
	Plan Plan
	// Log receives what the fleet does, one line at a time; nil discards.
	Log func(text string)
}

// spec returns the spec of the fleet's policy.
func (o *Options) spec() v1alpha1.DisruptionPolicySpec {
	spec := v1alpha1.DefaultPolicySpec()
	if o.Blackout != (span{}) {
		spec.Rollout.Blackouts = []v1alpha1.Blackout{o.blackout()}
	}
	if o.Policy != nil {
		o.Policy(&spec)
	}
	o.Blocks.set(&spec)
	if o.Apply != nil {
		spec.Rules = append(spec.Rules, v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: confDir, Actions: o.Apply})
	}
	return spec
}

// Fleet is a cluster with its hosts. It lives in the bubble in which [New] was called.
type Fleet struct {
	Server *apiserver.Server
	Judge  *referee.Judge
	// Admin is a client of an admin with all rights; no fault concerns it.
	Admin *kube.Client

	opts  Options
	exec  *executor
	trace *trace
	dir   string
	began time.Time
	hosts []*Machine
	ahead canary

	ctx   context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup
	kick  chan struct{} // wakes the controllers

	forced       atomic.Bool // the policy of all hosts has let them delete the pods that they cannot evict
	canaryForced atomic.Bool // the policy of canaryHost has let that one do so
	canaried     atomic.Bool // the policy of canaryHost exists
	led          atomic.Bool // a process leads, or has led

	mu          sync.Mutex
	attack      referee.Attack // what attackers have
	pods        int            // that the controllers have created
	problems    []string
	rewound     time.Time // when the store was set back last
	leader      leading
	nodes       map[string]turn.Node // as of the last write
	set         map[exclusion]bool   // the exclusions that hosts have set
	left        map[exclusion]string // the others, as admins have left them
	blocks      blocks
	past        past
	budgets     map[string]int      // of the policies
	policyHolds []policyHold        // since the store was set back last, in the order of their versions
	evicted     map[string]accepted // the evictions of which a host knows that they were accepted, by the pod's UID
}

// maxObject is how many bytes an object may take. It is less than etcd's limit, because a fleet with a Node of that size is slow.
const maxObject = 400 << 10

const (
	userCoordinator = "system:serviceaccount:" + v1alpha1.DefaultLeaseNamespace + ":lockkeeper-coordinator"
	userAdmin       = "kubectl"
)

// New starts a fleet: all hosts have booted, and their agents run. Its files are below dir. It must be called in a bubble,
// and closed there.
func New(dir string, o Options) *Fleet {
	o.Candidates = cmp.Or(o.Candidates, o.Hosts)
	f := &Fleet{Server: apiserver.New(), opts: o, dir: dir, began: time.Now(), kick: make(chan struct{}, 1), evicted: map[string]accepted{}, past: newPast(),
		nodes: map[string]turn.Node{}, set: map[exclusion]bool{}, left: map[exclusion]string{},
		blocks: blocks{map[types.UID]blocker{}, map[string]time.Time{}}}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.trace = newTrace()
	f.exec = newExecutor(o.Plan, f.trace)
	spec := o.spec()
	f.Judge = referee.NewJudge(referee.Options{
		Budget: spec.Rollout.MaxUnavailable.IntValue(), Policies: o.policyBudgets(spec.Rollout.MaxUnavailable.IntValue()), Lag: o.Lag, Late: o.Late, Admins: []string{userAdmin},
		OnEvent: func(text string) { f.logf("%s", text) },
	})
	f.setAttack(o.Plan.attack())
	f.Server.Observe(f.wrote)
	f.Server.LimitPages(daemons)
	f.Server.LimitSize(maxObject)
	f.Admin = f.client(f.Server.Client(userAdmin), "kubectl")
	f.apply()
	f.tasks.Go(f.runControllers)
	f.tasks.Go(func() { f.Server.RunBudgets(f.ctx, 100*time.Millisecond) })
	for i := range o.Hosts {
		f.hosts = append(f.hosts, f.newMachine(i))
	}
	for _, m := range f.hosts {
		m.powerOn(false)
	}
	if _ = pause(f.ctx, 2*kubeletStarts); len(f.Server.List("nodes")) < o.Hosts {
		f.problem("%d Nodes, expected %d: kubelets have not registered theirs", len(f.Server.List("nodes")), o.Hosts)
	}
	f.Judge.Begin()
	if o.Before != nil {
		o.Before(f)
	}
	for _, m := range f.hosts {
		m.startAgent()
	}
	return f
}

// Close ends the fleet. It returns when no goroutine of it is left.
func (f *Fleet) Close() {
	f.end()
	for _, m := range f.hosts {
		m.powerOff()
	}
	f.exec.Close()
	f.tasks.Wait()
}

// Start begins the plan. The channel is closed when every fault has ended.
func (f *Fleet) Start() (calm <-chan struct{}) {
	f.exec.Start(f)
	return f.exec.Calm()
}

// logLevel is that of the agents.
func (f *Fleet) logLevel() string {
	if f.opts.Log == nil {
		return "error"
	}
	return "debug"
}

func (f *Fleet) logf(format string, args ...any) {
	if f.opts.Log != nil {
		f.opts.Log(fmt.Sprintf("%9s ", time.Since(f.began).Truncate(10*time.Millisecond)) + fmt.Sprintf(format, args...))
	}
}

// client returns a client with that way to the API server.
func (f *Fleet) client(way http.RoundTripper, manager string) *kube.Client {
	cfg := &rest.Config{Host: "https://api.invalid", UserAgent: manager}
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return way })
	c, err := kube.ConnectConfig(cfg, manager, "test", 1e6, 1e6)
	if err != nil {
		panic(err) // the configuration is a constant
	}
	return c
}

// problem records what must not happen in any run.
func (f *Fleet) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.logf("PROBLEM: %s", text)
	f.trace.note("", "PROBLEM: %s", text)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, text)
}

// must records an error of a part that is not lockkeeper's.
func (f *Fleet) must(err error) {
	if err != nil && f.ctx.Err() == nil {
		f.problem("a part of the test bed failed: %v", err)
	}
}

// mustOr is must, except for errors that are expected.
func (f *Fleet) mustOr(err error, expected func(error) bool) {
	if err != nil && !expected(err) {
		f.must(err)
	}
}

// Verdict returns what was wrong in the run until now, or "".
func (f *Fleet) Verdict() string {
	f.mu.Lock()
	lines := slices.Clone(f.problems)
	f.mu.Unlock()
	report, _ := f.Judge.End()
	for _, v := range report.Violations {
		lines = append(lines, v.String())
	}
	return strings.Join(lines, "\n")
}

// apply creates what `lockkeeper manifests` prints, as far as the API server in memory needs it.
func (f *Fleet) apply() {
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultLeaseNamespace}}
	_, err := f.Admin.CoreV1().Namespaces().Create(f.ctx, own, metav1.CreateOptions{})
	f.must(err)
	f.createLease()
	f.createPolicy()
}

func (f *Fleet) createLease() {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.DefaultLeaseNamespace, Name: v1alpha1.DefaultLeaseName}}
	_, err := f.Admin.CoordinationV1().Leases(lease.Namespace).Create(f.ctx, lease, metav1.CreateOptions{})
	f.must(err)
}

func (f *Fleet) createPolicy() {
	kinds, err := f.Admin.OwnKinds()
	f.must(err)
	p := &v1alpha1.DisruptionPolicy{Spec: f.opts.spec()}
	p.Name, p.Spec.Priority = v1alpha1.DefaultPolicyName, v1alpha1.MinPriority
	policies := []*v1alpha1.DisruptionPolicy{p}
	if f.opts.Canary > 0 {
		policies = append(policies, f.splitCanary(p)) // after p, which has the total of both
	}
	if f.opts.Pool > 0 {
		policies = append([]*v1alpha1.DisruptionPolicy{splitPool(p)}, policies...) // before p, under which the pool is as long as it has none
	}
	for _, p := range policies {
		f.must(kinds.Post().Resource("disruptionpolicies").Body(p).Do(f.ctx).Error())
	}
}

// rewind sets the store back, and the judge with it.
func (f *Fleet) rewind(s *apiserver.Snapshot) {
	f.Server.Restore(s)
	f.mu.Lock()
	clear(f.evicted) // those pods may be back
	f.rewound = time.Now()
	f.mu.Unlock()
	f.restoredExclusions()
	f.restoredBlocks()
	f.restoredHolds()
	f.restoredPast()
	for _, m := range f.hosts {
		obj := f.Node(m.name)
		m.restoredHooks(obj)
		m.restoredHeld(obj)
		m.judgePermission(obj, true)
		m.restoredApply(obj)
	}
	f.Judge.Rewind(time.Now(), func() {
		var rev int64 // of no write
		now := time.Now()
		lease, _ := f.Server.Get("leases", v1alpha1.DefaultLeaseNamespace, v1alpha1.DefaultLeaseName).(*coordinationv1.Lease)
		f.Judge.Lease(rev, now, v1alpha1.DefaultLeaseNamespace, v1alpha1.DefaultLeaseName, lease)
		for _, obj := range f.Server.List("pods") {
			p := obj.(*corev1.Pod)
			f.Judge.Pod(rev, now, p.Namespace, p.Name, p)
		}
		for _, obj := range f.Server.List("nodes") {
			n := obj.(*corev1.Node)
			f.Judge.Node(rev, now, n.Name, n)
		}
	})
}

// wasRewound reports whether the store was set back in this run.
func (f *Fleet) wasRewound() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.rewound.IsZero()
}

// wrote passes a write on to the judge and wakes the controllers. It runs under the server's lock. The judge gets the time by the
// hosts' clock, which reboots have too: a plan shifts the server's.
func (f *Fleet) wrote(w apiserver.Write) {
	switch w.Resource {
	case "nodes":
		obj, _ := w.Object.(*corev1.Node)
		if why := f.excuse(&w); why != "" {
			f.Judge.Declare(referee.Declaration{Node: w.Name, Why: why})
			defer f.Judge.Withdraw()
		}
		f.judgeExclusions(&w, f.excuse(&w) != "")
		f.followBlocks(obj)
		f.judgeTurns(&w, f.excuse(&w) != "")
		f.Judge.Node(w.Revision, time.Now(), w.Name, obj)
		if f.excuse(&w) == "" {
			f.judgeGrant(obj)
		}
		if m := f.machine(w.Name); m != nil {
			old, _ := w.Old.(*corev1.Node)
			m.judgeRequest(old, obj)
			m.judge(obj)
			m.judgePermission(obj, f.excuse(&w) != "")
		}
	case "disruptionpolicies":
		f.noteHold(&w)
		if w.Name == canaryPolicy {
			f.canaried.Store(w.Object != nil)
		}
		switch {
		case w.Name == brokenRules:
		case w.Object != nil:
			spec := f.specOf(w.Object)
			f.followSettle(&spec)
			if w.Name != canaryPolicy { // of this one, the other one's total is the limit
				f.Judge.SetBudget(time.Now(), f.sumOfBudgets(w.Name, &spec))
			}
			f.allowForce(w.Name, &spec)
		case w.Name != canaryPolicy && f.canaried.Load(): // and canaryHost waits for no turn of the others
			spec := f.specOf(w.Old)
			f.Judge.SetBudget(time.Now(), f.budget(&spec)+1)
		}
	case "leases":
		obj, _ := w.Object.(*coordinationv1.Lease)
		f.Judge.Lease(w.Revision, time.Now(), w.Namespace, w.Name, obj)
		f.judgeLeader(obj)
		return
	case "pods":
		obj, _ := w.Object.(*corev1.Pod)
		f.judgeDelay(&w)
		f.judgeEviction(&w)
		f.Judge.Pod(w.Revision, time.Now(), w.Namespace, w.Name, obj)
	default:
		return
	}
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// excuse returns why the judge does not judge a write to a Node, or "".
func (f *Fleet) excuse(w *apiserver.Write) string {
	switch w.User {
	case admin, userAdmin: // an admin means it
		return "an admin's write"
	case thiefUser:
		return "a thief's write"
	case "system:node:" + w.Name:
		if slices.Contains(f.attacks().Liars, w.Name) {
			return "its host lies"
		}
	}
	return ""
}

// specOf returns the spec of a policy.
func (f *Fleet) specOf(obj runtime.Object) v1alpha1.DisruptionPolicySpec {
	var p v1alpha1.DisruptionPolicy
	text, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	f.must(err)
	return p.Spec
}

// budget is how many nodes a policy lets be disturbed at once, of all policies if it has a limit for that.
func (f *Fleet) budget(spec *v1alpha1.DisruptionPolicySpec) int {
	limit := cmp.Or(spec.Rollout.MaxUnavailableTotal, &spec.Rollout.MaxUnavailable)
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, f.opts.Hosts, false)
	f.must(err)
	return max(1, n)
}

// Host returns the i-th host, counted from 0.
func (f *Fleet) Host(i int) *Machine { return f.hosts[i] }

// Node returns the present Node of a host, or nil.
func (f *Fleet) Node(name string) *corev1.Node {
	n, _ := f.Server.Get("nodes", "", name).(*corev1.Node)
	return n
}
