// Package coordinator is what the elected instance does. It campaigns for the Lease.
// While it holds the Lease, it watches all Nodes, asks package rollout for a verdict on
// each, and writes what the verdicts say.
//
// Two leaders cannot harm each other:
//   - A leader that cannot renew the Lease sends no write after its renew deadline. No
//     other instance may take the Lease before that.
//   - A leader that releases the Lease has sent its last write before.
//   - No identity ever leads two terms.
//
// A write that was sent in time and arrives late cannot be prevented by any of this. The
// protocol makes it harmless: its epoch is not the Lease's, so no host commits by it, and
// the successor counts the turn and takes it over or backs it out.
//
// The package decides nothing about a node. It must not know how a host does what its
// state asks for.
package coordinator

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Options are what a Candidate is made of.
type Options struct {
	Version string
	// Credential is the coordinator's identity; the caller runs it. While there is no
	// kubeconfig this host does not campaign.
	Credential *kube.Credential
	// NodeName returns this host's Node, "" while it is not known. It goes
	// into the epoch, for people, and comes last in a rollout.
	NodeName func() string

	LeaseNamespace, LeaseName string
	// LeaseDuration > RenewDeadline > RetryPeriod; see client-go's
	// tools/leaderelection.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	// PrometheusURL and PrometheusTokenFile are where, and with what token,
	// policies' gates are asked; see [gate.Options].
	PrometheusURL, PrometheusTokenFile string

	// Notify is where and when a leader sends notifications; its Version and Log
	// are the candidate's.
	Notify notify.Options

	Log *slog.Logger
	// Liveness receives a sign of life in each round of the loop; may be nil.
	Liveness *systemd.Liveness
	// Report receives each new Status; may be nil.
	Report func(Status)
	// Decided receives each decision of a leader, and how long it took. It must not
	// block, or keep its arguments. It may be nil.
	Decided func(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome)
}

// Status is what a candidate does, for people.
type Status struct {
	Candidate bool   // it has a credential and campaigns
	Leader    bool   // it holds the Lease
	Why       string // why it does not stand, or what it waits for
	Blocked   bool   // Why is something that a user has to fix
	Epoch     string // its present term, when Leader
	Since     time.Time
}

// MaxSkew is how far a leader's clock may be off the API server's: timeouts
// and not-before depend on it.
const MaxSkew = 30 * time.Second

const (
	// credentialEvery is how long a host without a usable credential waits, unless
	// the credential changes.
	credentialEvery = time.Minute
	skewEvery       = 5 * time.Second // how often a candidate's clock is checked
	// scatter is within what time the candidates try that saw the Lease let
	// go, so that all but one find that it is taken by a Get, not by a conflict.
	scatter = 300 * time.Millisecond
)

// QPS and Burst are the limits of the coordinator's client, in requests a second and
// at once. A leader's writes follow one another, so what paces them is the API
// server's answers; what may come in masses, the reasons in held, has a pace of its
// own (see heldPace) of a sixtieth of the fleet a second, 84 for five thousand nodes.
// The limits are above that, so that a promotion never waits for them, and below what
// a loop gone wrong would send.
const (
	QPS   = 200
	Burst = 200
)

// Run campaigns for the Lease until ctx ends, term after term. On return the
// Lease is released if it was held.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Liveness == nil {
		o.Liveness = systemd.NewLiveness()
	}
	c := &candidate{Options: o, log: o.Log}
	defer c.disconnect()
	o.Notify.Version, o.Notify.Log = o.Version, o.Log
	c.sender = notify.New(o.Notify)
	var sending sync.WaitGroup
	defer sending.Wait()
	// It sends what a term left behind, also while another instance leads.
	sending.Go(func() { c.sender.Run(ctx) })
	for {
		changed := o.Credential.Changed()
		again, err := c.campaign(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			_, blocked := errors.AsType[blocker](err)
			c.say(Status{Candidate: c.client != nil, Why: err.Error(), Blocked: blocked})
		}
		t := time.NewTimer(again - again/10 + mathrand.N(again/5+1))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

type candidate struct {
	Options
	log    *slog.Logger
	sender *notify.Sender // nil if there is no receiver

	client *kube.Client
	lease  *leaseWatch // by client
	unlook func()      // ends it

	mu      sync.Mutex
	last    Status
	rewound time.Time // when the API server's store was last found to have gone back in time; zero: it was not
	barred  string    // what blocks it, as the last campaign found; mu guards it
}

// say reports, and logs what is new.
func (c *candidate) say(s Status) {
	c.mu.Lock()
	changed := s.Candidate != c.last.Candidate || s.Leader != c.last.Leader || s.Why != c.last.Why ||
		s.Blocked != c.last.Blocked || s.Epoch != c.last.Epoch
	if changed {
		s.Since = time.Now()
	}
	was := c.last
	if changed {
		c.last = s
	}
	c.mu.Unlock()
	if !changed {
		return
	}
	attrs := []any{}
	if c.NodeName != nil && c.NodeName() != "" {
		attrs = append(attrs, "node", c.NodeName())
	}
	switch {
	case s.Leader && s.Blocked:
		systemd.LogEvent(c.log, slog.LevelWarn, v1alpha1.MessageTrouble, "coordinates, and cannot decide", append(attrs, "epoch", s.Epoch, "err", s.Why)...)
	case s.Leader:
		systemd.LogEvent(c.log, slog.LevelInfo, v1alpha1.MessageElected, "coordinates", append(attrs, "epoch", s.Epoch)...)
	case was.Leader:
		systemd.LogEvent(c.log, slog.LevelInfo, v1alpha1.MessageTermOver, "does not coordinate any more: "+s.Why, append(attrs, "epoch", was.Epoch, "why", s.Why)...)
	case s.Why != "":
		level := slog.LevelInfo
		if s.Blocked {
			level = slog.LevelWarn
		}
		systemd.LogEvent(c.log, level, v1alpha1.MessageStandsBy, "does not coordinate: "+s.Why, append(attrs, "why", s.Why)...)
	}
	if c.Report != nil {
		c.Report(s)
	}
}
