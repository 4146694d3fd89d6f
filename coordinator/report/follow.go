package report

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"lockkeeper.dev/lockkeeper/node/object"
)

const (
	// followTick is how often a Report is made although nothing changed: a
	// coordinator that is gone, or a time that has come, is no event.
	followTick = 5 * time.Second
	// followPause gathers what comes at once.
	followPause = 100 * time.Millisecond
)

// Follow makes a Report whenever something changed, and every few seconds, and
// hands it to show until ctx ends or show returns an error. away is why the API
// server cannot be watched at present, nil if it can; the Report is then of what
// was last seen. Three watches, no polling.
func (s *Source) Follow(ctx context.Context, show func(r Report, away error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	kick := make(chan struct{}, 1)
	wake := func() {
		select {
		case kick <- struct{}{}:
		default:
		}
	}
	nodes := object.NewView(s.Client, "", wake)
	policies := s.WatchPolicies(wake)
	lease := &leaseView{source: s, wake: wake}
	wg.Go(func() { nodes.Run(ctx) })
	wg.Go(func() { policies.Run(ctx) })
	wg.Go(func() { lease.run(ctx) })

	tick := time.NewTicker(followTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-kick:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(followPause):
			}
		}
		l, leaseErr, read := lease.get()
		policiesErr := policies.Err()
		switch {
		case policies.Listed():
			policiesErr = nil // what was read before stands
		case !denied(policiesErr):
			continue // [Source.Read] answered before; this takes a moment
		}
		if !nodes.Listed() || !read {
			continue
		}
		r := Build(s.input(nodes.Nodes(), policies, policiesErr, l, leaseErr))
		s.addUpdates(ctx, &r)
		if err := show(r, nodes.Err()); err != nil {
			return err
		}
	}
}

// leaseView is the one Lease, kept up by a watch.
type leaseView struct {
	source *Source
	wake   func()

	mu    sync.Mutex
	lease *coordinationv1.Lease
	err   error
	read  bool
}

func (v *leaseView) get() (lease *coordinationv1.Lease, err error, read bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err != nil && !Away(v.err) {
		return nil, v.err, true // it may not be read; the nodes still may
	}
	return v.lease, nil, v.read
}

func (v *leaseView) set(lease *coordinationv1.Lease) {
	v.mu.Lock()
	v.lease, v.read = lease, true
	v.mu.Unlock()
	v.wake()
}

func (v *leaseView) answered(err error) {
	v.mu.Lock()
	v.err = err
	v.mu.Unlock()
	if err != nil {
		v.wake()
	}
}

func (v *leaseView) run(ctx context.Context) {
	leases := v.source.Client.CoordinationV1().Leases(v.source.Namespace)
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, v.source.LeaseName).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			list, err := leases.List(ctx, o)
			v.answered(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			w, err := leases.Watch(ctx, o)
			v.answered(err)
			return w, err
		},
	}
	cache.NewReflectorWithOptions(listOnly{lw}, &coordinationv1.Lease{}, leaseStore{v}, cache.ReflectorOptions{Name: "lease"}).RunWithContext(ctx)
}

// listOnly keeps the reflector to LIST and WATCH, whose errors are seen above.
type listOnly struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is asked by the reflector.
func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// leaseStore is the Lease as the reflector fills it.
type leaseStore struct{ v *leaseView }

func (s leaseStore) Add(obj any) error {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		s.v.set(lease)
	}
	return nil
}

func (s leaseStore) Update(obj any) error { return s.Add(obj) }

func (s leaseStore) Delete(any) error {
	s.v.set(nil)
	return nil
}

func (s leaseStore) Replace(objs []any, _ string) error {
	if len(objs) == 0 {
		s.v.set(nil)
		return nil
	}
	return s.Add(objs[0])
}

func (leaseStore) Resync() error { return nil }
