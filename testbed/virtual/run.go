package virtual

import (
	"context"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// executor carries a plan out on a fleet. The fleet creates it first, because the processes' Transports need it, and then calls Start. Its
// methods are safe for concurrent use.
type executor struct {
	plan   Plan
	trace  *trace
	fleet  target
	people *people

	life   context.Context // ends with Close
	end    context.CancelFunc
	ending context.Context // ends when the quiet period begins, and with it every fault that lasts
	quiet  context.CancelFunc
	calm   chan struct{}
	tasks  sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	transports []*Transport
	pending    []*waiting
	lasting    map[hold]*lasting
	outage     string                     // the mode of the one under way, or ""
	policy     *v1alpha1.DisruptionPolicy // as it was before the plan changed it; nil if it has not
	snapshots  []snapshot
	fired      map[Kind]int
	answered   map[string]time.Time // since when the API server answers a host again; "" is all hosts
}

// waiting is a fault whose trigger counts requests.
type waiting struct {
	Fault
	seen int
	by   string // the process that has sent the N-th request, if the fault waits for its next one
}

// hold is what can last only once at a time: a kind on a host, or a variant of it.
type hold struct {
	kind Kind
	on   string
	what string
}

// lasting is how many faults of one kind last at one place.
type lasting struct {
	n    int
	turn chan struct{} // holds a token while the first begins or the last ends
}

// snapshot is a state of the store.
type snapshot struct {
	at    time.Time
	state any
}

// act is what the executor does for a kind of fault that is not a request's.
type act struct {
	begin func(*executor, Fault)
	// end ends what lasts for Fault.For, or until the quiet period begins. It is nil if nothing lasts.
	end func(*executor, Fault)
	// what distinguishes faults of one kind on one host that last independently; nil if they do not.
	what func(Fault) string
}

// snapshotEvery is how often the executor takes a snapshot, if the plan has a rewind; it keeps the last ones for as long as a rewind may reach.
const snapshotEvery = 20 * time.Second

func newExecutor(p Plan, log *trace) *executor {
	e := &executor{plan: p, trace: log, calm: make(chan struct{}), lasting: map[hold]*lasting{}, fired: map[Kind]int{}, answered: map[string]time.Time{}}
	e.life, e.end = context.WithCancel(context.Background())
	e.ending, e.quiet = context.WithCancel(e.life)
	return e
}

// Transport returns the way to the API server of one process with one of its identities. Faults apply from Start on.
func (e *executor) Transport(process string, by role, next http.RoundTripper) *Transport {
	t := newTransport(process, by, next, e, e.trace)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.transports = append(slices.DeleteFunc(e.transports, (*Transport).over), t)
	return t
}

// Start begins the plan. The fleet's processes may run already.
func (e *executor) Start(fleet target) {
	e.mu.Lock()
	e.fleet, e.people = fleet, &people{fleet, e.trace}
	for _, f := range e.plan.Faults {
		switch {
		case f.At.N > 0:
			e.pending = append(e.pending, &waiting{Fault: f})
		case f.Kind.spec().request: // to the next request
			e.pending = append(e.pending, &waiting{Fault: f})
		default:
			e.startLocked(func() {
				if pause(e.ending, f.At.After) == nil {
					e.act(f)
				}
			})
		}
	}
	e.startLocked(e.conclude)
	rewinds := slices.ContainsFunc(e.plan.Faults, func(f Fault) bool { return f.Kind == kindRewind })
	if rewinds {
		e.startLocked(e.takeSnapshots)
	}
	e.mu.Unlock()
}

// conclude ends all faults when their time is over.
func (e *executor) conclude() {
	if pause(e.life, e.plan.Length) != nil {
		return
	}
	e.mu.Lock()
	e.pending = nil
	e.mu.Unlock()
	e.quiet()
	// Every fault that lasts ends now, in its own goroutine. What is under way in the network arrives within two minutes.
	for e.life.Err() == nil && e.busy() {
		_ = pause(e.life, time.Second)
	}
	for _, t := range e.running() {
		t.eachWatch("", func(w *watch) { w.lag, w.hung = 0, false })
	}
	e.trace.note("", "the quiet period begins")
	close(e.calm)
}

// busy reports whether a fault lasts.
func (e *executor) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.lasting) > 0
}

// Calm returns a channel that is closed when the quiet period has begun: every fault that lasted has ended.
func (e *executor) Calm() <-chan struct{} { return e.calm }

// Fired returns how many faults of each kind have happened.
func (e *executor) Fired() map[Kind]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.fired)
}

// Close ends all goroutines of the executor and its Transports, and waits for them.
func (e *executor) Close() {
	e.mu.Lock()
	e.closed = true
	transports := e.transports
	e.mu.Unlock()
	e.end()
	for _, t := range transports {
		t.Close()
	}
	e.tasks.Wait()
}

// start runs f in a goroutine that Close waits for.
func (e *executor) start(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.startLocked(f)
}

func (e *executor) startLocked(f func()) {
	if !e.closed {
		e.tasks.Go(f)
	}
}

// running returns the Transports of all processes.
func (e *executor) running() []*Transport {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.transports)
}

// of returns the Transports of the host's processes.
func (e *executor) of(host string) []*Transport {
	return slices.DeleteFunc(e.running(), func(t *Transport) bool { return t.process != host })
}

// decide implements [controller].
func (e *executor) decide(r *request) []Fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	var due []Fault
	if e.outage != "" {
		due = append(due, Fault{Kind: kindLost, Mode: e.outage})
	}
	for _, mode := range deniedModes {
		if refusal, class, _ := strings.Cut(mode, ":"); e.lasting[hold{kindDenied, r.Process, mode}] != nil && matches(class, r.Class) {
			due = append(due, Fault{Kind: kindRefuse, Mode: refusal})
		}
	}
	return append(due, e.triggered(r.Process, r.Class)...)
}

// triggered returns the faults that are due at this request or event, and counts it.
func (e *executor) triggered(process, class string) []Fault {
	var due []Fault
	now := time.Since(e.trace.start)
	e.pending = slices.DeleteFunc(e.pending, func(w *waiting) bool {
		t := w.At
		if t.N == 0 { // the next request of the host after a time
			if now < t.After || w.On != "" && w.On != process {
				return false
			}
		} else if w.by != "" {
			if w.by != process || !matches(t.Next, class) {
				return false
			}
		} else if t.Process != "*" && t.Process != process || !matches(t.Class, class) {
			return false
		}
		w.seen++
		times, first := max(w.Times, 1), max(t.N, 1)
		if !w.Kind.spec().request {
			times = 1
		}
		if t.Next != "" {
			if first++; w.seen == t.N {
				w.by = process
			}
		}
		if w.seen >= first {
			f := w.Fault
			if s := f.Kind.spec(); f.On == "" && !s.cluster && !s.request {
				f.On = process
			}
			due = append(due, f)
			if w.Kind.spec().request {
				e.fired[w.Kind]++
			}
			return w.seen >= first+times-1
		}
		return false
	})
	return due
}

// Happened reports an event that is no request, such as "hook,before-drain" when a unit of a hook stage begins on the host. It returns when
// the faults that it triggers have begun, so that they happen during the event, or when ctx ends: that of the process that the event happens in.
func (e *executor) Happened(ctx context.Context, host, class string) {
	e.mu.Lock()
	due := e.triggered(host, class)
	e.mu.Unlock()
	for _, f := range due {
		select {
		case <-e.act(f):
		case <-ctx.Done():
		}
	}
}

// act implements [controller].
func (e *executor) act(f Fault) <-chan struct{} {
	if f.At.N == 0 || f.At.After == 0 {
		return e.begin(f)
	}
	e.start(func() {
		if pause(e.ending, f.At.After) == nil {
			e.begin(f)
		}
	})
	begun := make(chan struct{})
	close(begun) // the request does not wait for it
	return begun
}

// begin begins the fault now. It returns a channel that is closed when it has begun.
func (e *executor) begin(f Fault) <-chan struct{} {
	begun := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	a := acts[f.Kind]
	if e.closed || a.begin == nil || e.fleet == nil || e.ending.Err() != nil {
		close(begun)
		return begun
	}
	e.fired[f.Kind]++
	key := hold{f.Kind, f.On, ""}
	if a.what != nil {
		key.what = a.what(f)
	}
	if a.end == nil {
		e.startLocked(func() {
			e.trace.note(f.On, "fault: %v", f)
			a.begin(e, f)
			close(begun)
		})
		return begun
	}
	l := e.lasting[key]
	if l == nil {
		l = &lasting{turn: make(chan struct{}, 1)}
		e.lasting[key] = l
	}
	l.n++
	e.startLocked(func() {
		l.turn <- struct{}{}
		e.trace.note(f.On, "fault: %v", f)
		a.begin(e, f)
		<-l.turn
		close(begun)
		_ = pause(e.ending, f.For)
		l.turn <- struct{}{}
		e.finish(a, f, key)
		<-l.turn
	})
	return begun
}

// finish ends what lasted, unless another fault of the kind still lasts there. The caller has the token.
func (e *executor) finish(a act, f Fault, key hold) {
	e.mu.Lock()
	l := e.lasting[key]
	others := l.n > 1
	e.mu.Unlock()
	if !others && e.life.Err() == nil {
		a.end(e, f)
		e.trace.note(f.On, "over: %s", f.action())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.n--; l.n == 0 {
		delete(e.lasting, key)
	}
}

// answersAgain notes that a fault is over in which the API server did not answer the host's requests, or refused some. "" is all hosts.
func (e *executor) answersAgain(host string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered[host] = time.Now()
}

// sinceAnswered returns for how long no such fault has lasted; a year if there has been none.
func (e *executor) sinceAnswered(host string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	lasts := func(kind Kind, mode string) bool { return e.lasting[hold{kind, host, mode}] != nil }
	if e.outage != "" || lasts(kindCutOff, "") || slices.ContainsFunc(deniedModes, func(mode string) bool { return lasts(kindDenied, mode) }) {
		return 0
	}
	since := 365 * 24 * time.Hour
	for _, of := range []string{"", host} {
		if over, ok := e.answered[of]; ok {
			since = min(since, time.Since(over))
		}
	}
	return since
}

// cut implements [controller].
func (e *executor) cut(host string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lasting[hold{kindCutOff, host, ""}] != nil
}

// latency implements [controller]. It depends on the request and not on how goroutines are scheduled. Latencies that differ by microseconds put
// what would happen at one instant of virtual time into an order.
func (e *executor) latency(r *request) (there, back time.Duration) {
	h := fnv.New64a()
	for _, s := range []string{r.Process, r.Class, r.Name, r.Time.Format(time.RFC3339Nano)} {
		h.Write([]byte(s))
	}
	random := rand.New(rand.NewPCG(e.plan.Seed, h.Sum64()))
	one := func() time.Duration { return time.Duration(100+random.IntN(3000)) * time.Microsecond }
	return one(), one()
}

// takeSnapshots takes a snapshot of the store from time to time.
func (e *executor) takeSnapshots() {
	for {
		s := snapshot{time.Now(), e.fleet.Snapshot()}
		e.mu.Lock()
		e.snapshots = append(e.snapshots, s)
		reach := kinds[kindRewind].most + snapshotEvery
		e.snapshots = slices.DeleteFunc(e.snapshots, func(s snapshot) bool { return time.Since(s.at) > reach })
		e.mu.Unlock()
		if pause(e.ending, snapshotEvery) != nil {
			return
		}
	}
}

// rewind restores the latest snapshot that is old enough, and forgets those after it.
func (e *executor) rewind(f Fault) {
	e.mu.Lock()
	old := 0
	for old < len(e.snapshots) && time.Since(e.snapshots[old].at) >= f.For {
		old++
	}
	e.snapshots = e.snapshots[:old]
	var latest snapshot
	if old > 0 {
		latest = e.snapshots[old-1]
	}
	e.mu.Unlock()
	if old > 0 {
		e.fleet.Restore(latest.state)
	}
}
