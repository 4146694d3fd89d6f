package referee

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Cluster is the control plane to watch.
type Cluster interface {
	// EtcdEndpoint is where its etcd serves clients: "unix:///path" or "http://host:port".
	EtcdEndpoint() string
}

// Options say what to hold the run against.
type Options struct {
	// Budget is how many nodes may be disturbed at once; 0 is 1. See [Referee.SetBudget].
	Budget int
	// Policies are what each of several policies allows, within Budget. These do not change in a run.
	Policies []PolicyBudget
	// Lag is by how much the run's own faults may hold back a request or a watch of a host's or a leader's: a proxy that delays, an
	// API server that is away. It is added to every bound in time; 0 is 5 s, for a busy machine.
	Lag time.Duration
	// LeaseNamespace and LeaseName are those of lockkeeper's Lease; "" is the default.
	LeaseNamespace, LeaseName string
	// Admins are beginnings of the field managers whose cordons are a person's; nil is "kubectl".
	Admins []string
	// Skip says which pods a drain leaves on a node next to those of DaemonSets, the kubelet's own and finished ones; nil: none. It has to
	// be quick and must not call the Referee.
	Skip func(*corev1.Pod) bool
	// OnEvent gets one readable line for each transition, from one goroutine at a time, in order. It must not call the Referee.
	OnEvent func(text string)
}

// PolicyBudget is what one policy allows of its own nodes.
type PolicyBudget struct {
	// Policy is its name, for people.
	Policy string
	// Labels tell its nodes: each of them carries all of these, for the whole run, and no other node does.
	Labels map[string]string
	// Budget is how many of them may be disturbed at once.
	Budget int
}

// Declaration is what a test is going to break on purpose, in the part of a person. It covers one violation of the rule on the
// node; with Rule "", all that one write to the node breaks.
type Declaration struct {
	Rule Rule
	Node string
	Why  string
}

// A Referee follows one cluster from Start to Close. Its methods may be called by several goroutines.
type Referee struct {
	opts  Options
	store *store
	mark  string // the key of its marks

	mu     sync.Mutex // guards what follows
	engine *engine
	last   int64 // the revision up to which everything was seen
	known  map[string]int64
	marks  map[int64]*mark // sent and not seen again, by number
	number int64
	latest time.Time // when the last mark that was seen again was sent
	dead   bool      // a gap: nothing more is followed
	opens  int
	closed bool

	wake   chan struct{} // there is a mark to send
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	once   sync.Once
	final  Report
	finErr error
}

// mark is a write of the referee's own in the stream. Its number tells it apart; when it was first sent is the earliest time of
// what comes after it, and everything written before it was sent comes before it.
type mark struct {
	number int64
	sent   time.Time // zero: not yet
	put    time.Time // when the store had it; zero: not yet
	window *window   // to be settled when it is seen
	seen   chan struct{}
}

const (
	// markEvery is how often a mark is put into the stream.
	markEvery = 500 * time.Millisecond
	// stuckAfter is after how long a mark that the store has but the watch does not show means that the watch is dead.
	stuckAfter = 5 * time.Second
	// closeWithin bounds the wait for the last mark.
	closeWithin = 2 * time.Minute
)

// Start lists Nodes, the Lease and pods and follows them from there on until Close. It returns when the first list was read.
// What it finds on the Nodes then is a fact to begin with; what is written afterwards is judged.
func Start(ctx context.Context, cluster Cluster, opts Options) (*Referee, error) {
	if opts.Budget == 0 {
		opts.Budget = 1
	}
	if opts.Lag == 0 {
		opts.Lag = 5 * time.Second
	}
	if opts.LeaseNamespace == "" {
		opts.LeaseNamespace = v1alpha1.DefaultLeaseNamespace
	}
	if opts.LeaseName == "" {
		opts.LeaseName = v1alpha1.DefaultLeaseName
	}
	if opts.Admins == nil {
		opts.Admins = []string{"kubectl"}
	}
	s, err := newStore(cluster.EtcdEndpoint())
	if err != nil {
		return nil, fmt.Errorf("starting the referee: %w", err)
	}
	c := config{budget: opts.Budget, policies: opts.Policies, lag: opts.Lag, admins: opts.Admins, skip: opts.Skip}
	if opts.OnEvent != nil {
		c.line = func(at time.Time, node, text string) {
			opts.OnEvent(fmt.Sprintf("%s %-10s %s", at.Format(time.TimeOnly), node, text))
		}
	}
	r := &Referee{
		opts: opts, store: s, mark: markPrefix + string(uuid.NewUUID()), engine: newEngine(c),
		known: map[string]int64{}, marks: map[int64]*mark{}, wake: make(chan struct{}, 1),
	}
	if err := r.list(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("starting the referee: %w", err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	r.tasks.Go(func() { r.follow(life) })
	r.tasks.Go(func() { r.putMarks(life) })
	return r, nil
}

// HostEvent takes what a host's simulation tells. It returns at once, except for a reboot: there it waits until everything written
// before the call can be told from what comes after it, two seconds at most.
func (r *Referee) HostEvent(ev HostEvent) {
	if m := r.tell(ev); m != nil {
		wait, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		select {
		case <-m.seen:
		case <-wait.Done():
		}
	}
}

func (r *Referee) tell(ev HostEvent) *mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	w := r.engine.hostEvent(r.now(), ev)
	if w == nil {
		return nil
	}
	return r.newMark(w)
}

// WantCancelled says that the host's last want is taken back at its source now; from then on no reboot is to be called, apart from
// one that was about to be. Call it when the source shows it.
func (r *Referee) WantCancelled(host string) {
	r.HostEvent(HostEvent{Time: time.Now(), Host: host, Kind: WantCancelled})
}

// WantMade says that there will be a want again. Call it before the source shows it.
func (r *Referee) WantMade(host string) {
	r.HostEvent(HostEvent{Time: time.Now(), Host: host, Kind: WantMade})
}

// SetBudget says that the policy's budget changes now. A turn that began under the old one may end under it.
func (r *Referee) SetBudget(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine.setBudget(r.now(), n)
}

// Declare says that the caller is about to break a rule in the part of a person. Call it before.
func (r *Referee) Declare(d Declaration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine.declared = append(r.engine.declared, d)
}

// AdminCordon declares that a person is about to cordon the node.
func (r *Referee) AdminCordon(node string) { r.Declare(Declaration{Cordon, node, "a person cordons"}) }

// AdminUncordon declares that a person is about to uncordon the node, whoever cordoned it.
func (r *Referee) AdminUncordon(node string) {
	r.Declare(Declaration{Uncordon, node, "a person uncordons"})
}

// AdminEvict declares that someone is about to evict one pod from the node.
func (r *Referee) AdminEvict(node string) { r.Declare(Declaration{Evict, node, "a person evicts"}) }

// AdminEdit declares that a person is about to edit lockkeeper's keys on the node, in one write.
func (r *Referee) AdminEdit(node string) { r.Declare(Declaration{"", node, "a person edits"}) }

// Withdraw takes back every declaration that nothing came of: left standing, it would excuse something else later. Call it after
// [Referee.Sync]. It returns how many there were.
func (r *Referee) Withdraw() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.engine.declared)
	r.engine.declared = nil
	return n
}

// Report is what was counted so far.
func (r *Referee) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.engine.snapshot()
	rep.Reconnects = max(0, r.opens-1)
	return rep
}

// Sync waits until everything that was written before the call has been seen, or ctx ends.
func (r *Referee) Sync(ctx context.Context) error {
	r.mu.Lock()
	m := r.newMark(nil)
	r.mu.Unlock()
	select {
	case <-m.seen:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the referee to have seen everything: %w", context.Cause(ctx))
	}
}

// Close waits until everything that was written before the call has been seen, thirty seconds at most, and gives the verdict. The
// error says that there were violations, a [Gap] among them if not everything was seen. Called again it says the same.
func (r *Referee) Close() (Report, error) {
	r.once.Do(func() {
		wait, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		err := r.Sync(wait)
		r.mu.Lock()
		if err != nil && !r.dead {
			r.gap("the end of the run was not seen: %v", err)
		}
		r.closed = true
		r.engine.end(r.now())
		r.mu.Unlock()
		r.stop()
		r.tasks.Wait()
		_ = r.store.remove(wait, r.mark) // a key of our own, in a store that goes with the run
		r.store.close()
		r.final = r.Report()
		if n := r.final.Count(); n > 0 {
			r.finErr = fmt.Errorf("the referee saw %d violations, first %s", n, r.final.Violations[0])
		}
	})
	return r.final, r.finErr
}

// now is where in the history we are; r.mu is held.
func (r *Referee) now() moment { return moment{rev: r.last, after: r.latest, by: time.Now()} }

// gap fails the run; r.mu is held.
func (r *Referee) gap(format string, args ...any) {
	r.dead = true
	r.engine.now = r.now()
	r.engine.breaks(Gap, "", format, args...)
	for _, m := range r.marks {
		if m.window == nil {
			continue
		}
		delete(r.engine.windows, m.window) // it cannot be judged any more
	}
	for number, m := range r.marks {
		close(m.seen)
		delete(r.marks, number)
	}
}
