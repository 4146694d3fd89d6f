// Package coordinator runs the elected instance. It campaigns for the Lease. While it holds
// the Lease, it watches all Nodes, gets a verdict on each from package rollout, and carries
// out the verdicts.
//
// Two leaders cannot harm each other:
//   - A leader that cannot renew the Lease sends no write after its renew deadline. No
//     other instance may take the Lease before that.
//   - A leader that releases the Lease has sent its last write before.
//   - No identity ever leads two terms.
//
// None of this prevents that a write is sent in time and arrives late. The protocol makes
// such a write harmless: its epoch is not the Lease's, so no host commits by it, and the
// successor counts the turn and takes it over or backs it out.
//
// The package decides nothing about a node. It must not know how a host does what its
// state asks for.
package coordinator

import (
	"cmp"
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

// Options configures [Run].
type Options struct {
	Version string
	// Credential is the coordinator's identity; the caller runs it. Without a kubeconfig,
	// this host does not campaign.
	Credential *kube.Credential
	// NodeName returns the name of this host's Node, or "" if it is not known yet. The
	// epoch contains it, so that users see who leads. The Node comes last in a rollout.
	NodeName func() string

	// LastEpoch is the last epoch of the process before this one on this host, if that process is
	// known to be dead; otherwise "". If the Lease still has it, Run frees the Lease, so that no
	// candidate has to wait until it expires. No process continues a term of another one.
	LastEpoch string
	// RecordEpoch records the epoch of a campaign before the Lease can have it, for the process
	// after this one. It may be nil.
	RecordEpoch func(epoch string) error

	LeaseNamespace, LeaseName string
	// LeaseDuration > RenewDeadline > RetryPeriod; see client-go's
	// tools/leaderelection.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	// PrometheusURL and PrometheusTokenFile configure the queries of the policies' gates;
	// see [gate.Options].
	PrometheusURL, PrometheusTokenFile string

	// Notify configures the notifications of a leader. Run sets its Version and Log.
	Notify notify.Options

	Log *slog.Logger
	// Liveness receives a heartbeat in each round of the leader's loop. It may be nil.
	Liveness *systemd.Liveness
	// Report receives each new Status. It may be nil.
	Report func(Status)
	// Decided receives each decision of a leader, and how long it took. It must not
	// block, or keep its arguments. It may be nil.
	Decided func(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome)
}

// Status tells users what this host does as a candidate.
type Status struct {
	Candidate bool   // the host has a credential and campaigns
	Leader    bool   // the host holds the Lease
	Why       string // why it does not campaign or lead, or what keeps a leader from deciding or granting
	Blocked   bool   // a user has to fix Why
	Epoch     string // the current term, if Leader
}

// MaxSkew is how far a leader's clock may be off the API server's: timeouts
// and not-before depend on it.
const MaxSkew = 30 * time.Second

const (
	// credentialEvery is how long a host without a usable credential waits, unless
	// the credential changes. The credential reads its files itself, as often as they
	// have to be read.
	credentialEvery = time.Hour
	// skewPause is the pause before the next campaign of a host whose clock is off.
	skewPause = 5 * time.Second
	// scatter spreads the tries of the candidates after the Lease was released, so that
	// all but one find with a Get, instead of a conflict, that it is taken.
	scatter = 300 * time.Millisecond
)

// QPS and Burst limit the requests of the coordinator's client, per second and at once. A
// leader has at most four writes under way at the same time, so the API server's answers pace
// them. The reasons in held can change on all nodes at once, so heldPace limits them to a sixtieth
// of the fleet per second: 84 for five thousand nodes. QPS and Burst are higher than that,
// so that a promotion never waits for them, but low enough to stop a runaway loop.
const (
	QPS   = 200
	Burst = 200
)

// Run campaigns for the Lease until ctx ends, term after term. On return the
// Lease is released if it was held.
func Run(ctx context.Context, o Options) error {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Liveness = cmp.Or(o.Liveness, systemd.NewLiveness())
	c := &candidate{Options: o}
	defer c.disconnect()
	o.Notify.Version, o.Notify.Log = o.Version, o.Log
	c.sender = notify.New(o.Notify)
	var sending sync.WaitGroup
	defer sending.Wait()
	// The sender also sends what is still queued after a term has ended.
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
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(again - again/10 + mathrand.N(again/5+1)):
		}
	}
}

type candidate struct {
	Options
	sender *notify.Sender // nil if there is no receiver

	client *kube.Client
	lease  *leaseWatch // uses client; nil without one
	unlook func()      // stops lease

	mu        sync.Mutex
	last      Status
	rewound   time.Time // when this process last noticed that the API server's store went back in time; zero: never
	blockedBy string    // what blocked the last campaign, or ""
}

// say reports and logs the status if it has changed.
func (c *candidate) say(s Status) {
	c.mu.Lock()
	was := c.last
	c.last = s
	c.mu.Unlock()
	if s == was {
		return
	}
	attrs := []any{}
	if c.NodeName != nil && c.NodeName() != "" {
		attrs = append(attrs, "node", c.NodeName())
	}
	switch {
	case s.Leader && s.Blocked:
		systemd.LogEvent(c.Log, slog.LevelWarn, v1alpha1.MessageTrouble, "coordinates, with a problem: "+s.Why, append(attrs, "epoch", s.Epoch, "err", s.Why)...)
	case s.Leader:
		systemd.LogEvent(c.Log, slog.LevelInfo, v1alpha1.MessageElected, "coordinates", append(attrs, "epoch", s.Epoch)...)
	case was.Leader:
		systemd.LogEvent(c.Log, slog.LevelInfo, v1alpha1.MessageTermOver, "no longer coordinates: "+s.Why, append(attrs, "epoch", was.Epoch, "why", s.Why)...)
	case s.Why != "":
		level := slog.LevelInfo
		if s.Blocked {
			level = slog.LevelWarn
		}
		systemd.LogEvent(c.Log, level, v1alpha1.MessageStandsBy, "does not coordinate: "+s.Why, append(attrs, "why", s.Why)...)
	}
	if c.Report != nil {
		c.Report(s)
	}
}
