package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/kube"
)

// connect uses the credential's current client. It is a new client if the server, its
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

// disconnect drops the client and stops the watch that uses it.
func (c *candidate) disconnect() {
	if c.client != nil {
		c.unlook()
	}
	c.client, c.lease, c.unlook = nil, nil, nil
}

// endWithCredential ends the campaign, and the term if it was won, when the host's credential
// is removed or replaced, until the caller calls stop.
func endWithCredential(client *kube.Client, over context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(client.Context(), func() { over(context.Cause(client.Context())) })
}

// errFreed ends a campaign, for another one that tries at once.
var errFreed = errors.New("the Lease was released")

// endWhenFreed ends a campaign that waits for its next try when the Lease is released.
// The next campaign tries at once. So the successor of a leader that stops in an orderly
// way leads within a second, and not within twice the retry period. It returns when ctx
// ends.
func endWhenFreed(ctx context.Context, lease *leaseWatch, lock *termLock, over context.CancelCauseFunc) {
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
			// An attempt to take the Lease is under way, and may fail.
			if pause(ctx, scatter/10) != nil {
				return
			}
		}
	}
}

// standsBy reports what a candidate that does not hold the Lease has read.
func (c *candidate) standsBy(holder string, err error) {
	s := Status{Candidate: true, Why: "standby; no instance holds the Lease now"}
	c.mu.Lock()
	blockedBy := c.blockedBy
	c.mu.Unlock()
	switch {
	case kube.NoLease(err, c.LeaseName):
		s.Why, s.Blocked = c.noLease().Error(), true
	case err != nil:
		s.Why, s.Blocked = c.unreadable(err).Error(), apierrors.IsForbidden(err)
	case holder != "":
		s.Why = "standby; " + holder + " holds the Lease"
	case blockedBy != "":
		s.Why, s.Blocked = blockedBy, true // until a campaign ends differently
	}
	c.say(s)
}

func (c *candidate) noLease() error {
	return fmt.Errorf("there is no Lease %s/%s, which is a stop; to continue: lockkeeper init", c.LeaseNamespace, c.LeaseName)
}

// unreadable explains why the Lease cannot be read. The text of client-go's error may contain the port of a connection: it
// would differ at each try, and say would log each.
func (c *candidate) unreadable(err error) error {
	if apierrors.IsUnauthorized(err) {
		s := c.Credential.State()
		if text, fails := s.Problem(time.Now()); fails {
			return errors.New(text)
		}
	}
	return fmt.Errorf("reading lease %s/%s: %w", c.LeaseNamespace, c.LeaseName, c.client.Explain(err))
}

// A blocker is an error that keeps a host from coordinating until a user fixes it.
type blocker struct{ error }

// Unwrap returns the error itself.
func (b blocker) Unwrap() error { return b.error }

// campaign campaigns for one term, and leads it if it wins. It returns how long
// to wait before the next one.
func (c *candidate) campaign(ctx context.Context) (again time.Duration, err error) {
	if err := c.connect(); err != nil {
		if _, absent := errors.AsType[kube.AbsentError](err); absent {
			return credentialEvery, err
		}
		return credentialEvery, blocker{err}
	}
	getCtx, cancel := context.WithTimeout(ctx, kube.Timeout)
	lease, err := c.client.CoordinationV1().Leases(c.LeaseNamespace).Get(getCtx, c.LeaseName, metav1.GetOptions{})
	err = kube.VerifyLease(lease, err, c.LeaseName)
	cancel()
	if kube.NoLease(err, c.LeaseName) {
		return c.RetryPeriod, blocker{c.noLease()}
	}
	if apierrors.IsForbidden(err) {
		return c.RetryPeriod, blocker{c.unreadable(err)}
	}
	if err != nil {
		return c.RetryPeriod, c.unreadable(err) // not a blocker: the API server does not answer
	}
	lease = c.freeLastTerm(ctx, lease)
	node := c.NodeName()
	if node == "" {
		return time.Second, errors.New("this host's Node is not known yet")
	}
	if err := skewed(c.client); err != nil {
		return skewPause, blocker{err}
	}
	c.lease.read(lease)
	err = c.term(ctx, node)
	if errors.Is(err, errRewound) {
		c.wentBack()
	}
	c.recordBlocker(err)
	if !errors.Is(err, errFreed) {
		return c.RetryPeriod, err
	}
	return mathrand.N(scatter), nil
}

// freeLastTerm frees the Lease if it has the epoch of the process before this one, which is dead, and
// returns the Lease. That process's last writes may still arrive, as those of any leader whose term
// is over. The time of the last renewal stays: turns do not age while no instance leads.
func (c *candidate) freeLastTerm(ctx context.Context, lease *coordinationv1.Lease) *coordinationv1.Lease {
	dead := c.LastEpoch
	if dead == "" {
		return lease
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != dead {
		c.LastEpoch = "" // another term has begun, or none is left
		return lease
	}
	freed := lease.DeepCopy()
	freed.Spec.HolderIdentity, freed.Spec.LeaseDurationSeconds = new(""), new(int32(releasedLasts))
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	after, err := c.client.CoordinationV1().Leases(c.LeaseNamespace).Update(ctx, freed, metav1.UpdateOptions{})
	if err != nil {
		// A conflict means that the Lease has changed. Another error, that it may have. The next
		// campaign reads it again.
		c.Log.Info("cannot free the Lease that this host's earlier process held when it died; it expires by itself", "epoch", dead, "err", err)
		return lease
	}
	c.LastEpoch = ""
	c.Log.Info("freed the Lease that this host's earlier process held when it died", "epoch", dead)
	return after
}

// wentBack records that the API server's store went back in time, as etcd does
// when it is restored from a backup. Everything that this process wrote since that
// backup is lost, so a term that notices it ends. The next leader lists everything
// again, and grants nothing until the nodes have settled.
func (c *candidate) wentBack() {
	c.mu.Lock()
	c.rewound = time.Now()
	c.mu.Unlock()
	c.Log.Warn("the API server's store went back in time: it was restored from a backup, or a user restored an old Lease; " +
		"the next leader lists everything again and grants nothing until the nodes have settled")
}

func (c *candidate) rewoundAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rewound
}

// recordBlocker records what blocks this host, from the error with which a campaign ended.
func (c *candidate) recordBlocker(err error) {
	_, blocked := errors.AsType[blocker](err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blockedBy = ""
	if blocked {
		c.blockedBy = err.Error()
	}
}

func skewed(client *kube.Client) error {
	ahead, ok := client.Skew()
	if !ok || ahead.Abs() <= MaxSkew {
		return nil
	}
	which := "behind"
	if ahead < 0 {
		which = "ahead of"
	}
	return fmt.Errorf("this host's clock is %v %s the API server's, expected at most %v of difference", ahead.Abs().Round(time.Second), which, MaxSkew)
}

// term runs one campaign under a new identity. No identity is used twice, so the Lease's
// holderIdentity names exactly one term.
func (c *candidate) term(ctx context.Context, node string) error {
	epoch := newEpoch(node)
	if c.RecordEpoch != nil {
		if err := c.RecordEpoch(epoch); err != nil {
			c.Log.Warn("if this process dies while it leads, the Lease stays taken until it expires", "err", err)
		}
	}
	electorCtx, stopElector := context.WithCancelCause(ctx)
	defer stopElector(nil)
	// The elector outlives ctx by the time that the leader needs to end, so that the
	// Lease is released only after the leader's last write.
	runCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()

	client, lease := c.client, c.lease
	select {
	case <-lease.freed: // drop an old token: the elector tries at once anyway
	default:
	}
	var leading leading
	lock := c.newLock(epoch, stopElector)
	lock.over = func(why error) { stopElector(why); release() }
	lock.quiet = func() {
		stopElector(fmt.Errorf("%w: the Lease could not be renewed in time", errTermOver))
		leading.stop()
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
		ReleaseOnCancel: true, Name: c.LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(elected context.Context) {
				leading.start(electorCtx, func() {
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
	defer context.AfterFunc(electorCtx, func() {
		if !leading.hasBegun() {
			release() // there is no leader to wait for
		}
	})()
	defer endWithCredential(client, stopElector)()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { endWhenFreed(electorCtx, lease, lock, stopElector) })
	elector.Run(runCtx)
	lock.quiet()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return context.Cause(electorCtx)
}

// newEpoch returns the identity of a new term of this host: the Node's name and 60 random bits.
func newEpoch(node string) string { return node + "_" + strings.ToLower(rand.Text())[:12] }

// newLock returns the lock of a term. The caller sets over and quiet. unfit ends the campaign of a host whose clock is
// off: that shows in the API server's answers, and each try of the elector reads it.
func (c *candidate) newLock(epoch string, unfit func(error)) *termLock {
	client := c.client
	return &termLock{
		name:     c.LeaseName,
		identity: epoch,
		lasts:    c.LeaseDuration,
		shown:    c.lease.record,
		may:      func() error { return skewed(client) },
		saw: func(holder string, err error) {
			if skew := skewed(client); skew != nil {
				unfit(skew)
				return
			}
			c.standsBy(holder, err)
		},
		inner: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: c.LeaseName},
			Client:     reportingLeases{client.CoordinationV1(), c.lease.read},
			LockConfig: resourcelock.ResourceLockConfig{Identity: epoch},
		},
	}
}

// leading runs the leader of a term. The leader starts at most once, and not after stop.
type leading struct {
	running sync.WaitGroup

	mu             sync.Mutex
	began, stopped bool
}

// start starts the leader, unless ctx has ended.
func (l *leading) start(ctx context.Context, lead func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped && ctx.Err() == nil {
		l.began = true
		l.running.Go(lead)
	}
}

// stop waits until the leader has ended. The caller has canceled its context.
func (l *leading) stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.running.Wait()
}

func (l *leading) hasBegun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
