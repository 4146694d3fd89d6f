package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
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
func (s *Source) Follow(ctx context.Context, show func(r report.Report, away error) error) error {
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
	nodes := kube.WatchNodes(s.Client, wake, nil)
	policies := s.WatchPolicies(wake)
	lease := kube.WatchLease(s.Client, s.Namespace, s.LeaseName, wake, nil)
	wg.Go(func() { nodes.Run(ctx) })
	wg.Go(func() { policies.Run(ctx) })
	wg.Go(func() { lease.Run(ctx) })

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
		leaseErr := lease.Err()
		if Away(leaseErr) {
			leaseErr = nil // what was read before still counts
		}
		policiesErr := policies.Err()
		switch {
		case policies.Listed():
			policiesErr = nil // what was read before still counts
		case !denied(policiesErr):
			continue // [Source.Read] answered before; this takes a moment
		}
		if !nodes.Listed() || !lease.Listed() && leaseErr == nil {
			continue
		}
		r := report.Build(s.input(nodes.All(), policies, policiesErr, lease.Get(s.Namespace+"/"+s.LeaseName), leaseErr))
		s.addUpdates(ctx, &r)
		if err := show(r, nodes.Err()); err != nil {
			return err
		}
	}
}

// ErrTimeout is the cause with which a context ends that bounds [Source.Wait].
var ErrTimeout = errors.New("the time is over")

// Wait waits until the fleet, or one node if node is not "", is as g wants it. It
// reads once, so that a caller who may not read learns of it, and then follows three
// watches; while they fail it goes on waiting, because what was seen before may be
// out of date. say receives a line whenever what it waits for has changed. The error
// is the cause of ctx if that ends, and otherwise about reading or a node that is
// not there.
func (s *Source) Wait(ctx context.Context, g report.Goal, node string, say func(line string)) error {
	w := report.Waiter{Goal: g, Node: node, Say: say}
	r, err := s.Read(ctx)
	if err == nil {
		err = w.Show(r, nil)
	}
	if err == nil {
		err = s.Follow(ctx, w.Show)
	}
	switch {
	case errors.Is(err, report.ErrReached):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}
