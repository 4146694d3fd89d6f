package referee

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Keys under which the API server stores its objects, and the key of the referee's marks.
const (
	everything = "/"
	nodePrefix = "/registry/minions/"
	leaseKey   = "/registry/leases/" + v1alpha1.DefaultLeaseNamespace + "/" + v1alpha1.DefaultLeaseName
	podPrefix  = "/registry/pods/"
	markPrefix = "/lockkeeper-testbed/referee/"
)

// retryAfter is the delay before the referee calls etcd again after a failure.
const retryAfter = 50 * time.Millisecond

// list reads the initial state: all objects at one revision.
func (r *Referee) list(ctx context.Context) error {
	r.latest = time.Now()
	r.engine.first = true
	defer func() { r.engine.first = false }()
	leases, rev, err := r.store.list(ctx, leaseKey, 0)
	if err != nil {
		return fmt.Errorf("listing the Lease: %w", err)
	}
	r.last = rev
	found := false
	for _, kv := range leases {
		if string(kv.Key) == leaseKey {
			found = true
			if err := r.apply(event{KV: kv}); err != nil {
				return err
			}
		}
	}
	if !found {
		r.engine.onLease(r.now(), nil)
	}
	for _, prefix := range []string{podPrefix, nodePrefix} {
		kvs, _, err := r.store.list(ctx, prefix, rev)
		if err != nil {
			return fmt.Errorf("listing %s: %w", prefix, err)
		}
		for _, kv := range kvs {
			if err := r.apply(event{KV: kv}); err != nil {
				return err
			}
		}
	}
	r.last = rev
	return nil
}

// follow watches until ctx ends or a gap is certain. When the watch breaks, follow resumes it after the last revision that it has seen.
func (r *Referee) follow(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		r.tasks.Go(func() { r.guard(watching, cancel) })
		err := r.store.watch(watching, everything, r.next(), r.opened, r.take)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		if errors.Is(err, errCompacted) || errors.Is(err, errMissed) {
			r.gap("%v", err)
		}
		dead := r.dead
		r.mu.Unlock()
		if dead {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

func (r *Referee) next() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last + 1
}

// opened fails the run if the store's revision is older than what the referee has seen. Such a store has lost its history, and the watch would wait
// for revisions of a different history.
func (r *Referee) opened(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opens++
	if rev < r.last && !r.dead {
		r.gap("etcd is at revision %d, %d was seen before", rev, r.last)
	}
}

// guard ends a watch that does not deliver a mark that the store has.
func (r *Referee) guard(ctx context.Context, cancel context.CancelFunc) {
	tick := time.NewTicker(stuckAfter / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.mu.Lock()
			stuck := r.dead
			for _, m := range r.marks {
				stuck = stuck || !m.put.IsZero() && time.Since(m.put) > stuckAfter
			}
			r.mu.Unlock()
			if stuck {
				cancel()
				return
			}
		}
	}
}

// errMissed means that the watch did not deliver a write.
var errMissed = errors.New("a write was missed")

// take passes the events of the watch to the engine.
func (r *Referee) take(events []event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range events {
		if r.dead {
			return errMissed
		}
		if ev.KV.ModRevision < r.last {
			return fmt.Errorf("%w: revision %d came after %d", errMissed, ev.KV.ModRevision, r.last)
		}
		r.last = ev.KV.ModRevision
		if err := r.apply(ev); err != nil {
			return err
		}
	}
	return nil
}

// apply passes one write to the engine. It also handles the first list.
func (r *Referee) apply(ev event) error {
	key := string(ev.KV.Key)
	ours := strings.HasPrefix(key, nodePrefix) || strings.HasPrefix(key, podPrefix) || key == leaseKey
	switch {
	case key == r.mark:
		r.marked(ev)
		return nil
	case !ours:
		return nil
	}
	if err := r.count(key, ev); err != nil {
		return err
	}
	m := r.now()
	m.rev = ev.KV.ModRevision
	gone := ev.Type == "DELETE"
	switch name, isNode := strings.CutPrefix(key, nodePrefix); {
	case isNode:
		obj, err := decode[corev1.Node](ev.KV, gone)
		if err != nil {
			return err
		}
		r.engine.onNode(m, name, obj)
	case key == leaseKey:
		obj, err := decode[coordinationv1.Lease](ev.KV, gone)
		if err != nil {
			return err
		}
		r.engine.onLease(m, obj)
	default:
		obj, err := decode[corev1.Pod](ev.KV, gone)
		if err != nil {
			return err
		}
		r.engine.onPod(m, strings.TrimPrefix(key, podPrefix), obj)
	}
	return nil
}

// count compares each write with etcd's version of its key: 1 for a creation, and one more than the last version for each other write. A deletion has
// no version, but the key must have existed.
func (r *Referee) count(key string, ev event) error {
	had, known := r.known[key]
	switch {
	case ev.Type == "DELETE":
		if !known {
			return fmt.Errorf("%w: %s was deleted, its creation was never seen", errMissed, key)
		}
		delete(r.known, key)
		return nil
	case r.engine.first:
	case ev.KV.Version != had+1:
		return fmt.Errorf("%w: write %d of %s came after write %d", errMissed, ev.KV.Version, key, had)
	}
	r.known[key] = ev.KV.Version
	return nil
}

func decode[T any](kv keyValue, gone bool) (*T, error) {
	if gone {
		return nil, nil
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(kv.Value, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: decoding %s: %w", errMissed, kv.Key, err)
	}
	t, ok := obj.(any).(*T)
	if !ok {
		return nil, fmt.Errorf("%w: %s holds a %T", errMissed, kv.Key, obj)
	}
	return t, nil
}

// newMark queues a mark. The caller must hold r.mu. If the run is already over, the mark counts as seen.
func (r *Referee) newMark(w *window) *mark {
	r.number++
	m := &mark{number: r.number, window: w, seen: make(chan struct{})}
	if r.dead || r.closed {
		close(m.seen)
		return m
	}
	r.marks[m.number] = m
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return m
}

// marked handles a mark that the watch delivered: the referee has now seen everything written before the mark was sent. Marks are sent in the order
// of their numbers. A mark is sent twice if the first request got no answer; its first delivery counts.
func (r *Referee) marked(ev event) {
	number, err := strconv.ParseInt(string(ev.KV.Value), 10, 64)
	m := r.marks[number]
	if err != nil || m == nil {
		return
	}
	delete(r.marks, number)
	r.latest = m.sent
	if m.window != nil {
		r.engine.settle(r.now(), m.window)
	}
	close(m.seen)
}

// putMarks writes a mark to the store every half second, and whenever a caller asks for one.
func (r *Referee) putMarks(ctx context.Context) {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.mu.Lock()
			if len(r.marks) == 0 {
				r.newMark(nil)
			}
			r.mu.Unlock()
		case <-r.wake:
		}
		for m := r.unsent(); m != nil && ctx.Err() == nil; m = r.unsent() {
			_, err := r.store.put(ctx, r.mark, strconv.AppendInt(nil, m.number, 10))
			r.mu.Lock()
			if err == nil {
				m.put = time.Now()
			}
			r.mu.Unlock()
			if err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(retryAfter):
				}
			}
		}
	}
}

// unsent returns the mark with the lowest number that the store does not have yet.
func (r *Referee) unsent() *mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *mark
	for _, m := range r.marks {
		if m.put.IsZero() && (first == nil || m.number < first.number) {
			first = m
		}
	}
	if first != nil && first.sent.IsZero() {
		first.sent = time.Now()
	}
	return first
}
