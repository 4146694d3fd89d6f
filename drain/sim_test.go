package drain

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sent is an eviction that reached the simulated API server.
type sent struct {
	at  time.Duration // since the start
	pod string
}

// sim is a simulated API server inside a synctest bubble. It answers evictions and shows their effect in its snapshots.
type sim struct {
	changed chan struct{}
	drainer *Drainer // judges the pods
	synced  bool     // the first list has arrived
	err     error    // the error of the list or the watch
	start   time.Time
	latency time.Duration
	grace   time.Duration
	// say answers the n-th eviction of the pod, with n from 1; nil accepts.
	say func(pod string, n int) answer
	// ignore accepts evictions without deleting the pods.
	ignore bool

	mu       sync.Mutex
	pods     map[string]*corev1.Pod
	counts   map[string]int
	sent     []sent
	inFlight int
	most     int
}

func newSim(pods ...*corev1.Pod) *sim {
	s := &sim{
		changed: make(chan struct{}, 1),
		drainer: &Drainer{Node: testNode},
		synced:  true,
		start:   time.Now(),
		latency: 10 * time.Millisecond,
		grace:   2 * time.Second,
		pods:    map[string]*corev1.Pod{},
		counts:  map[string]int{},
	}
	for _, p := range pods {
		s.pods[p.Name] = p
	}
	s.wake()
	return s
}

func (s *sim) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// snapshot returns what a watch shows.
func (s *sim) snapshot() snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := snapshot{synced: s.synced, err: s.err}
	for _, p := range s.pods {
		if f, ok := s.drainer.keep(p); ok {
			seen.pods = append(seen.pods, f)
		}
	}
	return seen
}

func (s *sim) add(p *corev1.Pod) {
	s.mu.Lock()
	s.pods[p.Name] = p
	s.mu.Unlock()
	s.wake()
}

func (s *sim) remove(name string) {
	s.mu.Lock()
	delete(s.pods, name)
	s.mu.Unlock()
	s.wake()
}

func (s *sim) evict(ctx context.Context, f facts) answer {
	p := f.Pod
	if ctx.Err() != nil {
		return answer{kind: later, reason: Unreachable}
	}
	s.mu.Lock()
	s.sent = append(s.sent, sent{time.Since(s.start), p.Name})
	s.counts[p.Name]++
	n := s.counts[p.Name]
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inFlight--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(s.latency):
	case <-ctx.Done():
		return answer{kind: later, reason: Unreachable}
	}
	if s.say != nil {
		if a := s.say(p.Name, n); a.kind != accepted {
			return a
		}
	}
	if !s.ignore {
		s.delete(p)
	}
	return answer{kind: accepted}
}

func (s *sim) delete(p Pod) {
	s.mu.Lock()
	pod := s.pods[p.Name]
	s.mu.Unlock()
	if pod == nil || pod.UID != p.UID {
		return
	}
	leaving := pod.DeepCopy()
	end := metav1.NewTime(time.Now().Add(s.grace))
	leaving.DeletionTimestamp = &end
	s.add(leaving)
	time.AfterFunc(s.grace, func() { s.remove(p.Name) })
}

func (s *sim) loop(concurrency int, progress func(Progress)) *loop {
	return &loop{
		changed:  s.changed,
		pods:     s.snapshot,
		evictor:  s,
		schedule: newSchedule(concurrency, func() float64 { return 0.5 }),
		reporter: reporter{send: progress, every: time.Second},
		logger:   slog.New(slog.DiscardHandler),
	}
}

// times returns when the pod's evictions were sent.
func (s *sim) times(pod string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []time.Duration
	for _, e := range s.sent {
		if e.pod == pod {
			at = append(at, e.at)
		}
	}
	return at
}

func (s *sim) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.sent {
		names = append(names, e.pod)
	}
	return names
}

// full is the answer of a budget that allows no eviction now.
func full(string, int) answer {
	return answer{kind: later, reason: PodDisruptionBudget, budget: "db", message: "The disruption budget db needs 3 healthy pods and has 3 currently"}
}

func gaps(at []time.Duration) []time.Duration {
	var g []time.Duration
	for i := 1; i < len(at); i++ {
		g = append(g, at[i]-at[i-1])
	}
	return g
}
