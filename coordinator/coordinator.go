package coordinator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/object"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Options are what a Candidate is made of.
type Options struct {
	Version string
	// Kubeconfig is the coordinator's identity. While the file is not there
	// this host does not campaign.
	Kubeconfig string
	// NodeName returns this host's Node, "" while it is not known. It goes
	// into the epoch, for people, and comes last in a rollout.
	NodeName func() string

	LeaseNamespace, LeaseName string
	// LeaseDuration > RenewDeadline > RetryPeriod; see client-go's
	// tools/leaderelection.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Policy policy.Policy
	Log    *slog.Logger
	// Liveness is told that the loop goes round; nil is fine.
	Liveness *systemd.Liveness
	// Report is told what became of the candidature; nil is fine.
	Report func(Status)
}

// Status is how a candidate stands, for people.
type Status struct {
	Candidate bool   // it has a credential and stands
	Leader    bool   // it holds the Lease
	Why       string // why it does not stand, or what it waits for
	Epoch     string // its present term, when Leader
	// Refused is since when the API server has not taken the credential; zero
	// while it does, or has not been asked.
	Refused time.Time
	Since   time.Time
}

// MaxSkew is how far a leader's clock may be off the API server's: time-outs
// and not-before are judged by it.
const MaxSkew = 30 * time.Second

const (
	credentialEvery = 5 * time.Second // how often the credential is looked at
	maxKubeconfig   = 1 << 20         // bytes of it that are looked at
)

// Run stands for the Lease until ctx ends, term after term. On return the
// Lease is released if it was held.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Liveness == nil {
		o.Liveness = systemd.NewLiveness(o.Log)
	}
	c := &candidate{Options: o, log: o.Log}
	for {
		again, err := c.campaign(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.say(Status{Candidate: c.client != nil, Why: err.Error()})
		}
		if err := pause(ctx, again-again/10+mathrand.N(again/5+1)); err != nil {
			return err
		}
	}
}

type candidate struct {
	Options
	log *slog.Logger

	client *object.Client
	stamp  [sha256.Size]byte // of the file that client was made from
	bearer *bearer           // the client's token; nil if it has none

	mu      sync.Mutex
	last    Status
	refused time.Time // see Status
}

// say reports, and logs what is new.
func (c *candidate) say(s Status) {
	c.mu.Lock()
	s.Refused = c.refused
	changed := s.Refused != c.last.Refused || s.Candidate != c.last.Candidate || s.Leader != c.last.Leader || s.Why != c.last.Why || s.Epoch != c.last.Epoch
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
	case s.Leader:
		systemd.Tell(c.log, slog.LevelInfo, v1alpha1.MessageElected, "coordinates", append(attrs, "epoch", s.Epoch)...)
	case was.Leader:
		systemd.Tell(c.log, slog.LevelInfo, v1alpha1.MessageTermOver, "does not coordinate any more: "+s.Why, append(attrs, "epoch", was.Epoch, "why", s.Why)...)
	case s.Why != "":
		systemd.Tell(c.log, slog.LevelInfo, v1alpha1.MessageStandsBy, "does not coordinate: "+s.Why, append(attrs, "why", s.Why)...)
	}
	if c.Report != nil {
		c.Report(s)
	}
}

// connect makes a client of the credential, again if the file was replaced.
func (c *candidate) connect() error {
	stamp, err := c.credential()
	if err == nil && c.client != nil && c.stamp == stamp {
		return nil
	}
	c.client = nil
	c.taken(nil) // nothing was said of this one
	if err != nil {
		return err
	}
	client, bearer, err := c.dial()
	if err != nil {
		return fmt.Errorf("the coordinator's kubeconfig: %w", err)
	}
	c.client, c.stamp, c.bearer = client, stamp, bearer
	return nil
}

// credential tells one content of the coordinator's kubeconfig from another.
// Its time stamps would not do: tools that keep files as they are to be write
// the same content again and again.
func (c *candidate) credential() (stamp [sha256.Size]byte, err error) {
	f, err := os.Open(c.Kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return stamp, fmt.Errorf("no coordinator's kubeconfig at %s", c.Kubeconfig)
	}
	if err != nil {
		return stamp, fmt.Errorf("the coordinator's kubeconfig: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKubeconfig))
	if err != nil {
		return stamp, fmt.Errorf("the coordinator's kubeconfig: %w", err)
	}
	return sha256.Sum256(text), nil
}

// stand ends the campaign, and the term if it was won, when this host is not
// to stand any more: its credential has gone or is another one, or its clock
// is off. It returns when ctx ends.
func (c *candidate) stand(ctx context.Context, client *object.Client, stamp [sha256.Size]byte, over context.CancelCauseFunc) {
	for pause(ctx, credentialEvery) == nil {
		now, err := c.credential()
		switch {
		case err != nil || now == stamp:
		case c.bearer.follow(c.Kubeconfig):
			c.log.Info("the coordinator's credential was renewed; the term goes on", "file", c.Kubeconfig)
			stamp, c.stamp = now, now // campaign waits for this loop before it reads c.stamp
		default:
			err = errors.New("the coordinator's kubeconfig was replaced")
		}
		if err == nil {
			err = skewed(client)
		}
		if err != nil {
			over(err)
			return
		}
	}
}

// standsBy says what a candidate sees that does not hold the Lease.
func (c *candidate) standsBy(holder string, err error) {
	c.taken(err)
	s := Status{Candidate: true, Why: "stands by; nobody holds the Lease at present"}
	switch {
	case apierrors.IsNotFound(err):
		s.Why = c.noLease().Error()
	case err != nil:
		s.Why = c.unreadable(err).Error()
	case holder != "":
		s.Why = "stands by; " + holder + " holds the Lease"
	}
	c.say(s)
}

func (c *candidate) noLease() error {
	return fmt.Errorf("there is no Lease %s/%s, which is a stop; apply the manifests to go on", c.LeaseNamespace, c.LeaseName)
}

func (c *candidate) unreadable(err error) error {
	if apierrors.IsUnauthorized(err) {
		return c.refusal()
	}
	return fmt.Errorf("reading lease %s/%s: %w", c.LeaseNamespace, c.LeaseName, err)
}

// campaign stands for one term, and leads it if it wins. It returns how long
// to wait before the next one.
func (c *candidate) campaign(ctx context.Context) (again time.Duration, err error) {
	if err := c.connect(); err != nil {
		return credentialEvery, err
	}
	node := c.NodeName()
	if node == "" {
		return time.Second, errors.New("this host's Node is not known yet")
	}
	lookCtx, cancel := context.WithTimeout(ctx, object.Timeout)
	_, err = c.client.CoordinationV1().Leases(c.LeaseNamespace).Get(lookCtx, c.LeaseName, metav1.GetOptions{})
	cancel()
	c.taken(err)
	if apierrors.IsNotFound(err) {
		return c.RetryPeriod, c.noLease()
	}
	if err != nil {
		return c.RetryPeriod, c.unreadable(err)
	}
	if err := skewed(c.client); err != nil {
		return credentialEvery, err
	}
	return c.RetryPeriod, c.term(ctx, node)
}

func skewed(client *object.Client) error {
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
	lock := &termLock{
		identity: epoch,
		over:     func(why error) { stopElector(why); release() },
		quiet:    quiet,
		saw:      c.standsBy,
		inner: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: c.LeaseName},
			Client:     c.client.CoordinationV1(),
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
	client, stamp := c.client, c.stamp
	standing.Go(func() { c.stand(electorCtx, client, stamp, stopElector) })
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
