package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	Since     time.Time
}

// MaxSkew is how far a leader's clock may be off the API server's: time-outs
// and not-before are judged by it.
const MaxSkew = 30 * time.Second

const credentialEvery = 5 * time.Second // how often a missing credential is looked for

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
	stamp  string // of the file that client was made from

	mu   sync.Mutex
	last Status
}

// say reports, and logs what is new.
func (c *candidate) say(s Status) {
	c.mu.Lock()
	changed := s.Candidate != c.last.Candidate || s.Leader != c.last.Leader || s.Why != c.last.Why || s.Epoch != c.last.Epoch
	if changed {
		s.Since = time.Now()
		c.last = s
	}
	c.mu.Unlock()
	if !changed {
		return
	}
	switch {
	case s.Leader:
		c.log.Info("coordinates", "epoch", s.Epoch)
	case s.Why != "":
		c.log.Info("does not coordinate: " + s.Why)
	}
	if c.Report != nil {
		c.Report(s)
	}
}

// connect makes a client of the credential, again if the file was replaced.
func (c *candidate) connect() error {
	info, err := os.Stat(c.Kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		c.client = nil
		return fmt.Errorf("no coordinator's kubeconfig at %s", c.Kubeconfig)
	}
	if err != nil {
		return err
	}
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if c.client != nil && c.stamp == stamp {
		return nil
	}
	// 50 requests a second: a leader's decisions are one write each.
	client, err := object.Connect(c.Kubeconfig, "coordinator", c.Version, 50, 100)
	if err != nil {
		return err
	}
	c.client, c.stamp = client, stamp
	return nil
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
	if apierrors.IsNotFound(err) {
		return c.RetryPeriod, fmt.Errorf("there is no Lease %s/%s, which is a stop; apply the manifests to go on", c.LeaseNamespace, c.LeaseName)
	}
	if err != nil {
		return c.RetryPeriod, fmt.Errorf("reading lease %s/%s: %w", c.LeaseNamespace, c.LeaseName, err)
	}
	if err := skewed(c.client); err != nil {
		return credentialEvery, err
	}
	c.say(Status{Candidate: true, Why: "another instance may coordinate; this one stands by"})
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

	lock := &termLock{
		identity: epoch,
		over:     func(why error) { stopElector(why); release() },
		inner: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: c.LeaseName},
			Client:     c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: epoch},
		},
	}
	var leading sync.WaitGroup
	var mu sync.Mutex
	began, closed := false, false
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
					c.lead(electorCtx, elected, node, epoch, stopElector)
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
	elector.Run(runCtx)
	stopElector(errTermOver)
	mu.Lock()
	closed = true // a callback that comes later begins nothing
	mu.Unlock()
	leading.Wait()
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
