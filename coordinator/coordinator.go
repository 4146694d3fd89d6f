package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

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
	// Liveness is told that the loop goes round; nil is fine.
	Liveness *systemd.Liveness
	// Report is told what became of the candidature; nil is fine.
	Report func(Status)
	// Decided is told of each decision of a leader, and how long it took; it
	// must not block, nor keep what it is given. nil is fine.
	Decided func(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome)
}

// Status is how a candidate stands, for people.
type Status struct {
	Candidate bool   // it has a credential and stands
	Leader    bool   // it holds the Lease
	Why       string // why it does not stand, or what it waits for
	Blocked   bool   // Why is something that a user has to fix
	Epoch     string // its present term, when Leader
	Since     time.Time
}

// MaxSkew is how far a leader's clock may be off the API server's: timeouts
// and not-before are judged by it.
const MaxSkew = 30 * time.Second

const (
	// credentialEvery is how long a host without a usable credential waits, unless
	// the credential changes.
	credentialEvery = time.Minute
	skewEvery       = 5 * time.Second // how often a candidate's clock is judged
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

// Run stands for the Lease until ctx ends, term after term. On return the
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

// connect takes the credential's client, which is another one if the server, its
// certificate authority or the account has changed.
func (c *candidate) connect() error {
	client, err := c.Credential.Client()
	if client != nil && client == c.client {
		return nil
	}
	c.disconnect()
	if err != nil {
		return err
	}
	c.client = client
	c.lease = newLeaseWatch(client, c.LeaseNamespace, c.LeaseName, c.wentBack)
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	looking.Go(func() { c.lease.Run(ctx) })
	c.unlook = func() {
		cancel()
		looking.Wait()
	}
	return nil
}

// disconnect forgets the client, and ends what watches through it.
func (c *candidate) disconnect() {
	if c.client != nil {
		c.unlook()
	}
	c.client, c.lease, c.unlook = nil, nil, nil
}

// stand ends the campaign, and the term if it was won, when this host must not stand
// any more: its credential is gone or is another one, or its clock is off. It returns
// when ctx ends.
func (c *candidate) stand(ctx context.Context, client *kube.Client, over context.CancelCauseFunc) {
	tick := time.NewTicker(skewEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-client.Context().Done():
			err = context.Cause(client.Context())
		case <-tick.C:
			err = skewed(client)
		}
		if err != nil {
			over(err)
			return
		}
	}
}

// errFreed ends a campaign, for another one that tries at once.
var errFreed = errors.New("the Lease was let go")

// hurry ends a campaign that waits for its next try when the Lease is let go:
// the next campaign tries at once, so that the successor of a leader that
// stops in good order is there within a second, and not within twice the
// retry period. It returns when ctx ends.
func hurry(ctx context.Context, lease *leaseWatch, lock *termLock, over context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-lease.freed:
		}
		for lease.free() && !lock.holds() {
			if lock.giveUp(errFreed) {
				over(errFreed)
				return
			}
			// It is being taken just now, perhaps in vain.
			if pause(ctx, scatter/10) != nil {
				return
			}
		}
	}
}

// standsBy says what a candidate sees that does not hold the Lease.
func (c *candidate) standsBy(holder string, err error) {
	s := Status{Candidate: true, Why: "stands by; nobody holds the Lease at present"}
	c.mu.Lock()
	barred := c.barred
	c.mu.Unlock()
	switch {
	case kube.NoLease(err, c.LeaseName):
		s.Why, s.Blocked = c.noLease().Error(), true
	case err != nil:
		s.Why, s.Blocked = c.unreadable(err).Error(), apierrors.IsForbidden(err)
	case holder != "":
		s.Why = "stands by; " + holder + " holds the Lease"
	case barred != "":
		s.Why, s.Blocked = barred, true // until a try comes to something else
	}
	c.say(s)
}

func (c *candidate) noLease() error {
	return fmt.Errorf("there is no Lease %s/%s, which is a stop; apply the manifests to go on", c.LeaseNamespace, c.LeaseName)
}

func (c *candidate) unreadable(err error) error {
	if apierrors.IsUnauthorized(err) {
		if s := c.Credential.State(); !s.Refused.IsZero() {
			return errors.New(s.RefusedText())
		}
	}
	return fmt.Errorf("reading lease %s/%s: %w", c.LeaseNamespace, c.LeaseName, err)
}

// A blocker keeps a host that is to coordinate from it until a user fixes it.
type blocker struct{ error }

// Unwrap returns what blocks.
func (h blocker) Unwrap() error { return h.error }

// campaign stands for one term, and leads it if it wins. It returns how long
// to wait before the next one.
func (c *candidate) campaign(ctx context.Context) (again time.Duration, err error) {
	if err := c.connect(); err != nil {
		if _, absent := errors.AsType[kube.AbsentError](err); absent {
			return credentialEvery, err
		}
		return credentialEvery, blocker{err}
	}
	node := c.NodeName()
	if node == "" {
		return time.Second, errors.New("this host's Node is not known yet")
	}
	lookCtx, cancel := context.WithTimeout(ctx, kube.Timeout)
	lease, err := c.client.CoordinationV1().Leases(c.LeaseNamespace).Get(lookCtx, c.LeaseName, metav1.GetOptions{})
	cancel()
	if kube.NoLease(err, c.LeaseName) {
		return c.RetryPeriod, blocker{c.noLease()}
	}
	if apierrors.IsForbidden(err) {
		return c.RetryPeriod, blocker{c.unreadable(err)}
	}
	if err != nil {
		return c.RetryPeriod, c.unreadable(err) // the API server is away, as everybody notices
	}
	if err := skewed(c.client); err != nil {
		return skewEvery, blocker{err}
	}
	c.lease.read(lease)
	err = c.term(ctx, node)
	if errors.Is(err, errRewound) {
		c.wentBack()
	}
	c.bar(err)
	if !errors.Is(err, errFreed) {
		return c.RetryPeriod, err
	}
	return mathrand.N(scatter), nil
}

// wentBack records that the API server's store went back in time, as etcd does
// when it is restored from a backup. Everything that this process wrote since that
// backup is lost, so a term that notices it ends. The next leader lists everything
// again, and grants nothing until the nodes have settled.
func (c *candidate) wentBack() {
	c.mu.Lock()
	c.rewound = time.Now()
	c.mu.Unlock()
	systemd.LogEvent(c.log, slog.LevelWarn, v1alpha1.MessageTrouble, "the API server's store went back in time: it was restored from a backup, or a user restored an old Lease; "+
		"the next leader lists everything again and grants nothing until the nodes have settled")
}

func (c *candidate) rewoundAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rewound
}

// bar notes what a campaign came to that ended without a term, or with one in
// which nothing could be decided.
func (c *candidate) bar(err error) {
	_, blocked := errors.AsType[blocker](err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barred = ""
	if blocked {
		c.barred = err.Error()
	}
}

func skewed(client *kube.Client) error {
	if ahead, ok := client.Skew(); ok && (ahead > MaxSkew || ahead < -MaxSkew) {
		return fmt.Errorf("this host's clock is %v off the API server's, expected at most %v", ahead.Round(time.Second), MaxSkew)
	}
	return nil
}

// term is one campaign under one identity, which is never used again: the
// Lease's holderIdentity names one term.
func (c *candidate) term(ctx context.Context, node string) error {
	epoch := node + "_" + strings.ToLower(rand.Text())[:12]
	electorCtx, stopElector := context.WithCancelCause(ctx)
	defer stopElector(nil)
	// The elector outlives ctx by the time that the leader needs to come to an
	// end, so that the Lease is released only when nothing is written any more.
	runCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()

	var leading sync.WaitGroup
	var mu sync.Mutex
	began, closed := false, false
	quiet := func() {
		stopElector(fmt.Errorf("%w: the Lease could not be renewed in time", errTermOver))
		mu.Lock()
		closed = true // a callback that comes later begins nothing
		mu.Unlock()
		leading.Wait()
	}
	client, lease := c.client, c.lease
	select {
	case <-lease.freed: // the elector's first try sees that
	default:
	}
	lock := &termLock{
		name:     c.LeaseName,
		identity: epoch,
		lasts:    c.LeaseDuration,
		over:     func(why error) { stopElector(why); release() },
		quiet:    quiet,
		saw:      c.standsBy,
		shown:    c.lease.record,
		may:      func() error { return skewed(client) },
		inner: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: c.LeaseName},
			Client:     told{client.CoordinationV1(), lease.read},
			LockConfig: resourcelock.ResourceLockConfig{Identity: epoch},
		},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
		ReleaseOnCancel: true, Name: c.LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(elected context.Context) {
				mu.Lock()
				defer mu.Unlock()
				if closed || electorCtx.Err() != nil {
					return
				}
				began = true
				leading.Go(func() {
					defer release()
					c.lead(electorCtx, elected, node, lock, stopElector)
				})
			},
			OnStoppedLeading: func() { stopElector(errTermOver) },
		},
	})
	if err != nil {
		return fmt.Errorf("lease settings: %w", err)
	}
	stop := context.AfterFunc(electorCtx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !began {
			release() // nothing to wait for
		}
	})
	defer stop()
	var standing sync.WaitGroup
	defer standing.Wait()
	standing.Go(func() { c.stand(electorCtx, client, stopElector) })
	standing.Go(func() { hurry(electorCtx, lease, lock, stopElector) })
	elector.Run(runCtx)
	quiet()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return context.Cause(electorCtx)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
