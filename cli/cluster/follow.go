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
	// followTick is how often a Report is made although nothing changed: no event announces a
	// coordinator that is gone or a time that has come.
	followTick = 5 * time.Second
	// followPause lets changes that arrive together give one Report.
	followPause = 100 * time.Millisecond
)

// Follow makes a Report whenever something changed, and every few seconds, and
// passes it to show until ctx ends or show returns an error. away is why the API server cannot be
// watched at present, nil if it can; the Report then has the last known state. Follow uses three
// watches and does not poll.
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
	nodes := kube.FollowNodes(s.Client, wake)
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
			leaseErr = nil // the last known state still counts
		}
		policiesErr := policies.Err()
		switch {
		case policies.Listed():
			policiesErr = nil // the last known state still counts
		case !denied(policiesErr):
			continue // [Source.Read] succeeded, so the watch soon will
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

// ErrTimeout is the cause of a context that ends [Source.Wait] after its time limit.
var ErrTimeout = errors.New("timed out")

// Wait waits until the fleet, or one node if node is not "", has reached the goal. It reads once,
// so that a caller without permission gets an error, and then follows. While the watches fail it
// keeps waiting, because the last known state may be out of date. say receives a line whenever
// what it waits for has changed. The error is the cause of ctx if that ends, and otherwise about
// reading, or about a node that does not exist.
func (s *Source) Wait(ctx context.Context, g report.Goal, node string, say func(line string)) error {
	w := report.Waiter{Goal: g, Node: node, Say: say}
	return s.followUntilReached(ctx, w.Show)
}

// followUntilReached is Follow after one read, whose error it returns. It returns nil if show returns [report.ErrReached], and the cause
// of ctx if that ends.
func (s *Source) followUntilReached(ctx context.Context, show func(r report.Report, away error) error) error {
	r, err := s.Read(ctx)
	if err == nil {
		err = show(r, nil)
	}
	if err == nil {
		err = s.Follow(ctx, show)
	}
	switch {
	case errors.Is(err, report.ErrReached):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}
