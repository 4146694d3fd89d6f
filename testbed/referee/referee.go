package referee

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// Cluster is the control plane to watch.
type Cluster interface {
	// EtcdEndpoint is the client endpoint of its etcd: "unix:///path" or "http://host:port".
	EtcdEndpoint() string
}

// Options are the limits that the run must keep.
type Options struct {
	// Budget is how many nodes may be disturbed at once; 0 means 1. See [Referee.SetBudget].
	Budget int
	// Policies are the budgets of the individual policies, within Budget. They do not change in a run.
	Policies []PolicyBudget
	// Lag is the longest delay that the run's own faults may cause for a request or a watch of a host or a leader, such as a proxy that delays or an
	// API server that is down. The referee adds it to every time limit. 0 means 5 s, for a busy machine.
	Lag time.Duration
	// Late is how long a leader may take to call a turn overdue, or to notice that nothing stops its clock any more. 0: only what is overdue too early
	// is judged, for runs in which a leader may be unable to write for longer than any limit.
	Late time.Duration
	// Admins are prefixes of the field managers whose cordons count as an admin's; nil means "kubectl".
	Admins []string
	// OnEvent receives one readable line for each transition, in order and from one goroutine at a time. It must not call the Referee.
	OnEvent func(text string)
}

// PolicyBudget is the number of its own nodes that one policy allows to be disturbed.
type PolicyBudget struct {
	// Policy is the policy's name, for messages.
	Policy string
	// Labels select the policy's nodes. During the whole run, each of its nodes has all of these labels, and no other node does.
	Labels map[string]string
	// Budget is how many of them may be disturbed at once.
	Budget int
}

// Declaration announces a violation that a test causes on purpose, as an admin would. It covers one violation of the rule on the node. If
// Rule is "", it covers everything that one write to the node breaks.
type Declaration struct {
	Rule Rule
	Node string
	Why  string
}

// Referee follows one cluster from Start to Close. Its methods are safe for concurrent use.
type Referee struct {
	store *store
	mark  string // the key of its marks

	mu     sync.Mutex // guards the fields below
	engine *engine
	last   int64 // everything up to this revision was seen
	known  map[string]int64
	marks  map[int64]*mark // by number: sent but not delivered yet
	number int64
	latest time.Time // when the last delivered mark was sent
	dead   bool      // after a gap: the referee follows nothing more
	opens  int
	closed bool

	wake   chan struct{} // signals that there is a mark to send
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	once   sync.Once
	final  Report
	finErr error
}

// mark is a key that the referee itself writes, to order the stream in time. Everything written before the mark was first sent comes before the mark,
// and everything after the mark is later than that time. The number identifies the mark.
type mark struct {
	number int64
	sent   time.Time // zero: not sent yet
	put    time.Time // when the store had it; zero: not yet
	window *window   // settle it when the mark is delivered
	seen   chan struct{}
}

const (
	// markEvery is the interval between marks.
	markEvery = 500 * time.Millisecond
	// stuckAfter is how long the watch may take to deliver a mark that the store has. After that the referee treats the watch as dead.
	stuckAfter = 5 * time.Second
	// closeWithin limits the wait for the last mark.
	closeWithin = 2 * time.Minute
)

// withDefaults returns the options with the default of each that is not set.
func (o Options) withDefaults() Options {
	o.Budget, o.Lag = cmp.Or(o.Budget, 1), cmp.Or(o.Lag, 5*time.Second)
	if o.Admins == nil {
		o.Admins = []string{"kubectl"}
	}
	return o
}

// config returns the configuration of the engine.
func (o Options) config() config {
	c := config{budget: o.Budget, policies: o.Policies, lag: o.Lag, late: o.Late, admins: o.Admins}
	if o.OnEvent != nil {
		c.line = func(at time.Time, node, text string) {
			o.OnEvent(fmt.Sprintf("%s %-10s %s", at.Format(time.TimeOnly), node, text))
		}
	}
	return c
}

// Start lists Nodes, the Lease and pods, and follows them until Close. It returns after the first list. The referee does not judge what the first
// list contains, only what is written later.
func Start(ctx context.Context, cluster Cluster, opts Options) (*Referee, error) {
	s, err := newStore(cluster.EtcdEndpoint())
	if err != nil {
		return nil, fmt.Errorf("starting the referee: %w", err)
	}
	r := &Referee{
		store: s, mark: markPrefix + string(uuid.NewUUID()), engine: newEngine(opts.withDefaults().config()),
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

// HostEvent takes an event of a simulated host. It returns at once, except for a reboot. For a reboot it waits for at most two seconds, until the
// referee can distinguish what was written before the call from what was written after it.
func (r *Referee) HostEvent(ev HostEvent) {
	if m := r.feedHostEvent(ev); m != nil {
		wait, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		select {
		case <-m.seen:
		case <-wait.Done():
		}
	}
}

func (r *Referee) feedHostEvent(ev HostEvent) *mark {
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

// WantCancelled reports that the source of the host's last want withdraws the want now. From then on no host may call for a reboot, except
// one that was about to. Call WantCancelled when the source shows the change.
func (r *Referee) WantCancelled(host string) {
	r.HostEvent(HostEvent{Time: time.Now(), Host: host, Kind: WantCancelled})
}

// WantMade reports that the host will have a want again. Call it before the source shows the want.
func (r *Referee) WantMade(host string) {
	r.HostEvent(HostEvent{Time: time.Now(), Host: host, Kind: WantMade})
}

// SetBudget changes the policy's budget. A turn that began under the old budget may end under it.
func (r *Referee) SetBudget(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine.setBudget(r.now(), n)
}

// Declare announces that the caller is about to break a rule, as an admin would. Call it before the act.
func (r *Referee) Declare(d Declaration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine.declared = append(r.engine.declared, d)
}

// AdminCordon declares that an admin is about to cordon the node.
func (r *Referee) AdminCordon(node string) { r.Declare(Declaration{Cordon, node, "a person cordons"}) }

// AdminUncordon declares that an admin is about to uncordon the node, no matter who cordoned it.
func (r *Referee) AdminUncordon(node string) {
	r.Declare(Declaration{Uncordon, node, "a person uncordons"})
}

// AdminEvict declares that an admin is about to evict one pod from the node.
func (r *Referee) AdminEvict(node string) { r.Declare(Declaration{Evict, node, "a person evicts"}) }

// AdminEdit declares that an admin is about to edit lockkeeper's keys on the node, in one write.
func (r *Referee) AdminEdit(node string) { r.Declare(Declaration{"", node, "a person edits"}) }

// Withdraw removes every unused declaration, which could otherwise excuse a later violation. It returns how many it removed. Call it after
// [Referee.Sync].
func (r *Referee) Withdraw() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.engine.declared)
	r.engine.declared = nil
	return n
}

// Report returns the counts up to now.
func (r *Referee) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.engine.snapshot()
	rep.Reconnects = max(0, r.opens-1)
	return rep
}

// Sync waits until the referee has seen everything that was written before the call, or ctx ends.
func (r *Referee) Sync(ctx context.Context) error {
	r.mu.Lock()
	m := r.newMark(nil)
	r.mu.Unlock()
	select {
	case <-m.seen:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the referee to process all writes: %w", context.Cause(ctx))
	}
}

// Close waits until the referee has seen everything that was written before the call, for at most closeWithin, and returns the verdict. The error
// lists the violations, with a [Gap] among them if the referee did not see everything. A second call returns the same.
func (r *Referee) Close() (Report, error) {
	r.once.Do(func() {
		wait, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		err := r.Sync(wait)
		r.mu.Lock()
		if err != nil && !r.dead {
			r.gap("the referee did not see the end of the run: %v", err)
		}
		r.closed = true
		r.engine.end(r.now())
		r.mu.Unlock()
		r.stop()
		r.tasks.Wait()
		_ = r.store.remove(wait, r.mark) // an extra key in a store that is deleted after the run
		r.store.close()
		r.final = r.Report()
		if n := r.final.Count(); n > 0 {
			r.finErr = fmt.Errorf("the referee saw %d violations, first %s", n, r.final.Violations[0])
		}
	})
	return r.final, r.finErr
}

// now returns the current position in the history. The caller must hold r.mu.
func (r *Referee) now() moment { return moment{rev: r.last, after: r.latest, by: time.Now()} }

// gap fails the run. The caller must hold r.mu.
func (r *Referee) gap(format string, args ...any) {
	r.dead = true
	r.engine.now = r.now()
	r.engine.breaks(Gap, "", format, args...)
	for _, m := range r.marks {
		if m.window == nil {
			continue
		}
		delete(r.engine.windows, m.window) // it can no longer be judged
	}
	for number, m := range r.marks {
		close(m.seen)
		delete(r.marks, number)
	}
}
