package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
)

// candidate is a coordinator that runs in a test, with its own wire.
type candidate struct {
	t    *testing.T
	w    *wire
	opts coordinator.Options

	kubeconfig string // path; "" means a kubeconfig for the wire

	mu       sync.Mutex
	statuses []coordinator.Status
	decided  rollout.Snapshot // what it knew of itself and of the term before it at its last decision

	end  context.CancelFunc
	done chan struct{}
}

// startCandidate starts a candidate that renews its Lease every half second. The Lease is long enough for a busy
// machine. edit may change the options of the candidate.
func startCandidate(t *testing.T, name string, edit func(*candidate)) *candidate {
	t.Helper()
	c := &candidate{t: t, w: coordinatorWire(t), done: make(chan struct{})}
	c.opts = coordinator.Options{
		Version: "test", NodeName: func() string { return name },
		LeaseNamespace: leaseSpace, LeaseName: leaseName,
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 500 * time.Millisecond,
		Log: logger(t, name), Report: c.told,
		Decided: func(_ time.Duration, s *rollout.Snapshot, _ *rollout.Outcome) {
			c.mu.Lock()
			c.decided = rollout.Snapshot{Epoch: s.Epoch, LedBy: s.LedBy, LedUntil: s.LedUntil}
			c.mu.Unlock()
		},
	}
	if edit != nil {
		edit(c)
	}
	if c.kubeconfig == "" {
		c.kubeconfig = c.w.kubeconfigFile()
	}
	c.opts.Credential = kube.New(kube.Options{
		Identity: v1alpha1.IdentityCoordinator, Paths: []string{c.kubeconfig}, Absent: "no coordinator's kubeconfig at " + c.kubeconfig,
		Renewed: filepath.Join(t.TempDir(), "coordinator-token.json"), Version: "test", QPS: coordinator.QPS, Burst: coordinator.Burst, Log: c.opts.Log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go c.opts.Credential.Run(ctx)
	go func() {
		defer close(c.done)
		coordinator.Run(ctx, c.opts)
	}()
	t.Cleanup(c.stop)
	return c
}

// follows checks that a leader knows until when the Lease was led before it, by a leader that gave it back.
func (c *candidate) follows(led time.Time) {
	c.t.Helper()
	var s rollout.Snapshot
	until(c.t, "a decision", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		s = c.decided
		return s.Epoch != ""
	})
	if s.LedUntil.Sub(led).Abs() > patience {
		c.t.Errorf("it knows that there was a leader until %v, expected one that gave the Lease back at about %v", s.LedUntil, led)
	}
}

// stop stops the candidate gracefully.
func (c *candidate) stop() {
	c.end()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Error("the candidate does not stop")
	}
}

func (c *candidate) told(s coordinator.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses = append(c.statuses, s)
}

func (c *candidate) status() coordinator.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.statuses) == 0 {
		return coordinator.Status{}
	}
	return c.statuses[len(c.statuses)-1]
}

// epochs returns the terms that the candidate has led, in order.
func (c *candidate) epochs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, s := range c.statuses {
		if s.Leader && !slices.Contains(all, s.Epoch) {
			all = append(all, s.Epoch)
		}
	}
	return all
}

// leads waits for the candidate's nth term and returns the epoch of that term.
func (c *candidate) leads(n int) string {
	c.t.Helper()
	until(c.t, fmt.Sprintf("term %d (epochs %v, %+v)", n, c.epochs(), c.status()), func() bool { return len(c.epochs()) >= n && c.status().Leader })
	return c.epochs()[n-1]
}

// says waits until the candidate, which does not lead, reports this reason.
func (c *candidate) says(text string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%q", text), func() bool { s := c.status(); return !s.Leader && strings.Contains(s.Why, text) })
}

// leaseWrites returns the writes of the Lease that contain the epoch and arrived after at.
func (w *wire) leaseWrites(epoch string, at time.Time) []request {
	var found []request
	for _, r := range w.requests("PUT lease", "PATCH lease", "POST leases") {
		if strings.Contains(r.body, epoch) && r.at.After(at) {
			found = append(found, r)
		}
	}
	return found
}

// TestOneTermIsOneTerm checks that each change of the Lease by others ends the leader's term. The epoch is never used
// again, because a successor may have come and gone in between.
func TestOneTermIsOneTerm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		harm  func(t *testing.T)
		gone  bool
		cause string
	}{
		"blanked":          {harm: func(t *testing.T) { patchLease(t, `{"spec":{"holderIdentity":""}}`) }, cause: "blanked"},
		"without a holder": {harm: func(t *testing.T) { patchLease(t, `{"spec":{"holderIdentity":null}}`) }, cause: "blanked"},
		"taken": {cause: "somebody_1's", harm: func(t *testing.T) {
			patchLease(t, fmt.Sprintf(`{"spec":{"holderIdentity":"somebody_1","leaseDurationSeconds":2,"renewTime":%q}}`,
				time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
		}},
		"deleted": {gone: true, cause: "gone", harm: func(t *testing.T) {
			must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
		}},
		// A renewal in between notices that the Lease is gone.
		"deleted and made again": {cause: "over|gone", harm: func(t *testing.T) {
			must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
			must(t, cp(t).ApplyLockkeeper(t.Context()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			freshLease(t)
			l := startCandidate(t, "n1", nil)
			first := l.leads(1)
			if got := holder(t); got != first {
				t.Fatalf("the Lease is held by %q, expected %q", got, first)
			}
			c.harm(t)
			harmed := time.Now()
			if c.gone {
				l.says("no Lease lockkeeper/lockkeeper, which is a stop")
				never(t, "the candidate leads without a Lease", 2*time.Second, func() bool { return l.status().Leader })
				must(t, cp(t).ApplyLockkeeper(t.Context()))
			}
			second := l.leads(2)
			if first == second {
				t.Errorf("two terms with the epoch %s", first)
			}
			// One write may have been in flight after a Get from before the change. The API server refuses it with
			// any error.
			for i, late := range l.w.leaseWrites(first, harmed) {
				if i > 0 || late.status < 400 {
					t.Errorf("write %d of the Lease by the old term, %v after the change, got status %d", i+1, late.at.Sub(harmed), late.status)
				}
			}
			if made := l.w.requests("POST leases"); len(made) > 0 {
				t.Error("the candidate tried to create a Lease")
			}
			if log := l.reasons(); !slices.ContainsFunc(strings.Split(c.cause, "|"), func(cause string) bool { return strings.Contains(log, cause) }) {
				t.Errorf("the reasons are %q, expected one with %q", log, c.cause)
			}
		})
	}
}

// reasons returns every reason that the candidate has reported, one a line.
func (c *candidate) reasons() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, s := range c.statuses {
		all = append(all, s.Why)
	}
	return strings.Join(all, "\n")
}

// TestAnnotationsOnTheLeaseLive checks that the emergency stop, an annotation on the Lease, neither ends the term nor
// gets lost in a renewal.
func TestAnnotationsOnTheLeaseLive(t *testing.T) {
	freshLease(t)
	l := startCandidate(t, "n1", nil)
	epoch := l.leads(1)
	stop(t)
	set := time.Now()
	until(t, "four renewals", func() bool { return len(l.w.leaseWrites(epoch, set)) >= 4 })
	if got := getLease(t).Annotations["lockkeeper.dev/paused"]; got != "a test" {
		t.Errorf("the stop is %q after four renewals", got)
	}
	if holder(t) != epoch || len(l.epochs()) != 1 {
		t.Errorf("the Lease is held by %q, epochs %v", holder(t), l.epochs())
	}
}

func TestNoCampaignWithoutALease(t *testing.T) {
	freshLease(t)
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	l := startCandidate(t, "n1", nil)
	l.says("lockkeeper init")
	if s := l.status(); !s.Candidate {
		t.Errorf("status %+v, expected a candidate", s)
	}
	never(t, "the candidate leads, or creates a Lease", 2*time.Second, func() bool {
		return l.status().Leader || l.w.count("POST leases") > 0 || l.w.count("PUT lease") > 0
	})
	must(t, cp(t).ApplyLockkeeper(t.Context()))
	l.leads(1)
}

// TestStandByTellsTheTruth checks that a standby reports what it sees, also after a change.
func TestStandByTellsTheTruth(t *testing.T) {
	freshLease(t)
	far := fmt.Sprintf(`{"spec":{"holderIdentity":"other_1","leaseDurationSeconds":3600,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	patchLease(t, far)
	l := startCandidate(t, "n1", nil)
	l.says("standby; other_1 holds the Lease")
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	l.says("no Lease lockkeeper/lockkeeper")
	must(t, cp(t).ApplyLockkeeper(t.Context()))
	l.leads(1)
}

// TestReleaseHandsOver checks that a term that ends gracefully hands over at once, and that a candidate releases only
// its own Lease.
func TestReleaseHandsOver(t *testing.T) {
	freshLease(t)
	// The watch must trigger the takeover: the retry period is longer than the test waits.
	const retry = 2 * patience
	long := func(c *candidate) {
		c.opts.LeaseDuration, c.opts.RenewDeadline, c.opts.RetryPeriod = 20*time.Minute, 3*retry, retry
	}
	a := startCandidate(t, "a", long)
	first := a.leads(1)
	b := startCandidate(t, "b", long)
	b.says("standby; " + first)
	ended := time.Now()
	a.stop()
	second := b.leads(1)
	t.Logf("handed over in %v", time.Since(ended))
	b.follows(ended)
	if holder(t) != second {
		t.Errorf("the Lease is held by %q, expected %q", holder(t), second)
	}

	patchLease(t, `{"spec":{"holderIdentity":"somebody_1"}}`)
	b.stop()
	if got := holder(t); got != "somebody_1" {
		t.Errorf("after the end of a lost term the Lease is held by %q, expected somebody_1", got)
	}
}

// TestStopWhileTakingReleases checks that a candidate that stops while it takes the Lease releases it. Otherwise there is no
// leader until the Lease expires, although its holder is gone.
func TestStopWhileTakingReleases(t *testing.T) {
	freshLease(t)
	taken, stopped := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a := startCandidate(t, "a", func(c *candidate) {
		c.w.on(func(ctx context.Context, r request, send func() (*http.Response, error)) (*http.Response, error) {
			if r.kind != "PUT lease "+leaseName {
				return nil, nil
			}
			answer, err := send()
			once.Do(func() {
				close(taken)
				<-stopped
				select { // the answer comes after the stop
				case <-ctx.Done():
					answer, err = nil, ctx.Err()
				case <-time.After(time.Second):
				}
			})
			return answer, err
		})
	})
	select {
	case <-taken:
	case <-time.After(patience):
		t.Error("the candidate does not take the Lease")
	}
	taker := holder(t)
	a.end()
	close(stopped)
	a.stop()
	if !strings.HasPrefix(taker, "a_") {
		t.Errorf("the Lease was %q's, expected a's", taker)
	}
	if got := holder(t); got != "" {
		t.Errorf("the Lease is still %q's", got)
	}
	if led := a.epochs(); len(led) > 0 {
		t.Errorf("it led as %q after its stop", led)
	}
}

// TestDeadLeadersLeaseIsFreed checks that a process frees the Lease of the process before it on its host, and then leads a term of
// its own, which it has recorded before.
func TestDeadLeadersLeaseIsFreed(t *testing.T) {
	freshLease(t)
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	patchLease(t, fmt.Sprintf(`{"metadata":{"annotations":{%q:"kept"}},"spec":{"holderIdentity":"n1_dead","leaseDurationSeconds":3600,"renewTime":%q,"leaseTransitions":7}}`, "example.com/a", now))
	var recorded []string
	var early error
	l := startCandidate(t, "n1", func(c *candidate) {
		c.opts.LastEpoch = "n1_dead"
		c.opts.RecordEpoch = func(epoch string) error {
			if holder(t) == epoch {
				early = fmt.Errorf("the Lease has the epoch %s before it is recorded", epoch)
			}
			recorded = append(recorded, epoch)
			return nil
		}
	})
	epoch := l.leads(1)
	if epoch == "n1_dead" || len(recorded) == 0 || recorded[len(recorded)-1] != epoch || early != nil {
		t.Errorf("it leads %s, recorded %q, %v", epoch, recorded, early)
	}
	renewed, err := time.Parse("2006-01-02T15:04:05.000000Z", now)
	must(t, err)
	l.follows(renewed)
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(l.w.requests("PUT lease")[0].body), nil, nil)
	must(t, err)
	freed, _ := obj.(*coordinationv1.Lease)
	if s := freed.Spec; s.HolderIdentity == nil || *s.HolderIdentity != "" || s.RenewTime.UTC().Format("2006-01-02T15:04:05.000000Z") != now || *s.LeaseTransitions != 7 || freed.Annotations["example.com/a"] != "kept" {
		t.Errorf("the Lease is freed by %+v, expected no holder, and the rest as it was", freed)
	}
}

// TestOthersLeaseIsNotFreed checks that a process frees no Lease but the one with the epoch of the process before it, and not a Lease
// that has changed since it was read.
func TestOthersLeaseIsNotFreed(t *testing.T) {
	freshLease(t)
	far := fmt.Sprintf(`{"spec":{"holderIdentity":"n1_other","leaseDurationSeconds":3600,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	patchLease(t, far)
	l := startCandidate(t, "n1", func(c *candidate) { c.opts.LastEpoch = "n1_dead" })
	l.says("standby; n1_other holds the Lease")
	// A user names the dead process again.
	patchLease(t, `{"spec":{"holderIdentity":"n1_dead"}}`)
	l.says("standby; n1_dead holds the Lease")
	if n := l.w.count("PUT lease"); n != 0 {
		t.Errorf("%d writes of the Lease, expected none", n)
	}
}

// TestStandByAsksNothing checks that a standby gets all it needs from its watch and sends no other request.
func TestStandByAsksNothing(t *testing.T) {
	freshLease(t)
	a := startCandidate(t, "a", nil)
	first := a.leads(1)
	b := startCandidate(t, "b", nil)
	b.says("standby; " + first)
	until(t, "its watch", func() bool { return b.w.count("WATCH leases") > 0 })
	until(t, "the end of the try that began before the watch was established", func() bool {
		before := len(b.w.kinds())
		time.Sleep(3 * b.opts.RetryPeriod)
		return len(b.w.kinds()) == before
	})
	before, from := b.w.kinds(), time.Now()
	until(t, "ten renewals", func() bool { return len(a.w.leaseWrites(first, from)) >= 10 })
	if after := b.w.kinds(); len(after) > len(before) || b.w.count("WATCH") > 1 {
		t.Errorf("requests %q in %v, and %d watches", after[len(before):], time.Since(from), b.w.count("WATCH leases"))
	}
	if s := b.status(); s.Leader || !strings.Contains(s.Why, first) {
		t.Errorf("status %+v", s)
	}
	for _, r := range b.w.requests("WATCH leases") {
		if r.query.Get("allowWatchBookmarks") != "true" || r.query.Get("fieldSelector") != "metadata.name="+leaseName {
			t.Errorf("watch with %v", r.query)
		}
		if s, err := strconv.Atoi(r.query.Get("timeoutSeconds")); err != nil || s < 1800 || s > 3600 {
			t.Errorf("a watch of %q s, expected half an hour to an hour", r.query.Get("timeoutSeconds"))
		}
	}
}

// TestSilentWatchTakesNothing checks that a candidate whose watch is silent does not take a Lease that only seems to
// have expired.
func TestSilentWatchTakesNothing(t *testing.T) {
	freshLease(t)
	short := func(c *candidate) { c.opts.LeaseDuration, c.opts.RenewDeadline = 10*time.Second, 8*time.Second }
	a := startCandidate(t, "a", short)
	first := a.leads(1)
	b := startCandidate(t, "b", func(c *candidate) {
		short(c)
		c.w.on(func(ctx context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
			if r.kind != "WATCH leases" {
				return nil, nil
			}
			body, end := io.Pipe()
			context.AfterFunc(ctx, func() { end.Close() })
			return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: body,
				Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf;stream=watch"}}}, nil
		})
	})
	b.says("standby; " + first)
	// When the Lease seems to have expired, the candidate reads it and finds it renewed.
	until(t, "three reads after the Lease seemed to have expired", func() bool { return b.w.count("GET lease") >= 4 })
	if n := b.w.count("PUT lease"); n > 0 || holder(t) != first || len(a.epochs()) != 1 {
		t.Errorf("%d writes of the Lease, held by %q, terms of a: %v", n, holder(t), a.epochs())
	}
	// When the Lease has really expired, the candidate takes it.
	a.w.on(func(context.Context, request, func() (*http.Response, error)) (*http.Response, error) {
		return nil, errCut
	})
	b.leads(1)
}

// TestCredentialComesAndGoes checks that a host is a candidate only while it has the credential, which may appear,
// change and disappear without a restart.
func TestCredentialComesAndGoes(t *testing.T) {
	freshLease(t)
	path := t.TempDir() + "/coordinator.kubeconfig"
	l := startCandidate(t, "n1", func(c *candidate) { c.kubeconfig = path })
	l.says("no coordinator's kubeconfig at " + path)
	if s := l.status(); s.Candidate || l.w.count() > 0 {
		t.Errorf("status %+v and %d requests without a credential", s, l.w.count())
	}
	writeFile(t, path, l.w.kubeconfig())
	first := l.leads(1)

	writeFile(t, path, l.w.kubeconfig()) // the same content, so nothing may happen
	never(t, "a new term for the same credential", 2*time.Second, func() bool { return len(l.epochs()) > 1 || !l.status().Leader })

	writeFile(t, path, l.w.kubeconfig()[:100])
	never(t, "a new term for a half-written file", 2*time.Second, func() bool { return len(l.epochs()) > 1 || !l.status().Leader })

	writeFile(t, path, strings.Replace(l.w.kubeconfig(), "user: {}", "user: {token: another}", 1))
	second := l.leads(2)
	if first == second {
		t.Error("the same epoch again")
	}
	removeFile(t, path)
	l.says("no coordinator's kubeconfig")
	until(t, "the candidate to withdraw", func() bool { return !l.status().Candidate })
	until(t, "the Lease to be released", func() bool { return holder(t) == "" })
	count := l.w.count()
	never(t, "requests without a credential", 2*time.Second, func() bool { return l.w.count() > count })

	writeFile(t, path, "clusters: 5\n")
	until(t, "an error about the broken file", func() bool {
		s := l.status()
		return strings.Contains(s.Why, path) && !s.Candidate && !strings.Contains(s.Why, "no coord")
	})
	writeFile(t, path, l.w.kubeconfig())
	l.leads(3)
}

// TestCredentialGoesFromAStandBy does the same while another instance leads, when only the elector runs.
func TestCredentialGoesFromAStandBy(t *testing.T) {
	freshLease(t)
	patchLease(t, fmt.Sprintf(`{"spec":{"holderIdentity":"other_1","leaseDurationSeconds":3600,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
	path := t.TempDir() + "/coordinator.kubeconfig"
	l := startCandidate(t, "n1", func(c *candidate) {
		writeFile(t, path, c.w.kubeconfig())
		c.kubeconfig = path
	})
	l.says("standby; other_1")
	removeFile(t, path)
	l.says("no coordinator's kubeconfig")
	patchLease(t, `{"spec":{"holderIdentity":""}}`)
	never(t, "a host without a credential leads", 3*time.Second, func() bool { return holder(t) != "" })
}
