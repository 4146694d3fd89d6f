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

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/kube"
)

// A candidate is a coordinator that runs in a test, with its own wire.
type candidate struct {
	t    *testing.T
	w    *wire
	opts coordinator.Options

	kubeconfig string // its path; "" is one for the wire

	mu       sync.Mutex
	statuses []coordinator.Status

	end  context.CancelFunc
	done chan struct{}
}

// stand starts a candidate that renews every half second a Lease that a busy machine does not make it lose. edit may change what it
// is made of.
func stand(t *testing.T, name string, edit func(*candidate)) *candidate {
	t.Helper()
	c := &candidate{t: t, w: coordinatorWire(t), done: make(chan struct{})}
	c.opts = coordinator.Options{
		Version: "test", NodeName: func() string { return name },
		LeaseNamespace: leaseSpace, LeaseName: leaseName,
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 500 * time.Millisecond,
		Log: logger(t, name), Report: c.told,
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

// stop ends the candidate in good order.
func (c *candidate) stop() {
	c.end()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Error("the candidate does not end")
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

// epochs are the terms that it has led, in order.
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

// leads waits for the candidate's nth term and returns its epoch.
func (c *candidate) leads(n int) string {
	c.t.Helper()
	until(c.t, fmt.Sprintf("term %d (epochs %v, %+v)", n, c.epochs(), c.status()), func() bool { return len(c.epochs()) >= n && c.status().Leader })
	return c.epochs()[n-1]
}

// says waits until the candidate, which does not lead, gives that as the reason.
func (c *candidate) says(text string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%q", text), func() bool { s := c.status(); return !s.Leader && strings.Contains(s.Why, text) })
}

// leaseWrites are the writes of the Lease that name the epoch and came after at.
func (w *wire) leaseWrites(epoch string, at time.Time) []request {
	var found []request
	for _, r := range w.requests("PUT lease", "PATCH lease", "POST leases") {
		if strings.Contains(r.body, epoch) && r.at.After(at) {
			found = append(found, r)
		}
	}
	return found
}

// Whatever is done to the Lease under a leader ends its term, and the identity is never used again: a successor may have come
// and gone in between.
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
		// A renewal in between finds it gone.
		"deleted and made again": {cause: "over|gone", harm: func(t *testing.T) {
			must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
			must(t, cp(t).ApplyLockkeeper(t.Context()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			freshLease(t)
			l := stand(t, "n1", nil)
			first := l.leads(1)
			if got := holder(t); got != first {
				t.Fatalf("the Lease is %q's, want %q", got, first)
			}
			c.harm(t)
			harmed := time.Now()
			if c.gone {
				l.says("no Lease lockkeeper/lockkeeper, which is a stop")
				never(t, "leads without a Lease", 2*time.Second, func() bool { return l.status().Leader })
				must(t, cp(t).ApplyLockkeeper(t.Context()))
			}
			second := l.leads(2)
			if first == second {
				t.Errorf("two terms under %s", first)
			}
			// One may have been on its way, after a Get of before the harm. It is refused, in whatever words.
			for i, late := range l.w.leaseWrites(first, harmed) {
				if i > 0 || late.status < 400 {
					t.Errorf("write %d of the Lease by the term that was over, %v after the harm, was answered %d", i+1, late.at.Sub(harmed), late.status)
				}
			}
			if made := l.w.requests("POST leases"); len(made) > 0 {
				t.Error("it tried to make a Lease")
			}
			if log := l.said(); !slices.ContainsFunc(strings.Split(c.cause, "|"), func(cause string) bool { return strings.Contains(log, cause) }) {
				t.Errorf("it gave as reasons %q, want one with %q", log, c.cause)
			}
		})
	}
}

// said is every reason that it has given, one a line.
func (c *candidate) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, s := range c.statuses {
		all = append(all, s.Why)
	}
	return strings.Join(all, "\n")
}

// The emergency stop is an annotation on the Lease: it neither ends the term nor is lost in a renewal.
func TestAnnotationsOnTheLeaseLive(t *testing.T) {
	freshLease(t)
	l := stand(t, "n1", nil)
	epoch := l.leads(1)
	stop(t)
	set := time.Now()
	until(t, "four renewals", func() bool { return len(l.w.leaseWrites(epoch, set)) >= 4 })
	if got := getLease(t).Annotations["lockkeeper.dev/paused"]; got != "a test" {
		t.Errorf("the stop is %q after four renewals", got)
	}
	if holder(t) != epoch || len(l.epochs()) != 1 {
		t.Errorf("the Lease is %q's, epochs %v", holder(t), l.epochs())
	}
}

func TestNoCampaignWithoutALease(t *testing.T) {
	freshLease(t)
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	l := stand(t, "n1", nil)
	l.says("apply the manifests")
	if s := l.status(); !s.Candidate {
		t.Errorf("status %+v, want that of a candidate", s)
	}
	never(t, "it leads, or makes a Lease", 2*time.Second, func() bool {
		return l.status().Leader || l.w.count("POST leases") > 0 || l.w.count("PUT lease") > 0
	})
	must(t, cp(t).ApplyLockkeeper(t.Context()))
	l.leads(1)
}

// One that stands by says what it sees, also when that changes.
func TestStandByTellsTheTruth(t *testing.T) {
	freshLease(t)
	far := fmt.Sprintf(`{"spec":{"holderIdentity":"other_1","leaseDurationSeconds":3600,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	patchLease(t, far)
	l := stand(t, "n1", nil)
	l.says("standby; other_1 holds the Lease")
	must(t, cp(t).Client().CoordinationV1().Leases(leaseSpace).Delete(t.Context(), leaseName, deleteNow))
	l.says("no Lease lockkeeper/lockkeeper")
	must(t, cp(t).ApplyLockkeeper(t.Context()))
	l.leads(1)
}

// A term that ends in good order hands over at once, and releases no Lease that is another's.
func TestReleaseHandsOver(t *testing.T) {
	freshLease(t)
	// The watch brings the news: by itself a candidate would try again after this retry period, in which the test does not wait.
	const retry = 2 * patience
	long := func(c *candidate) {
		c.opts.LeaseDuration, c.opts.RenewDeadline, c.opts.RetryPeriod = 20*time.Minute, 3*retry, retry
	}
	a := stand(t, "a", long)
	first := a.leads(1)
	b := stand(t, "b", long)
	b.says("standby; " + first)
	ended := time.Now()
	a.stop()
	second := b.leads(1)
	t.Logf("handed over in %v", time.Since(ended))
	if holder(t) != second {
		t.Errorf("the Lease is %q's, want %q", holder(t), second)
	}

	patchLease(t, `{"spec":{"holderIdentity":"somebody_1"}}`)
	b.stop()
	if got := holder(t); got != "somebody_1" {
		t.Errorf("after the end of a term that was over the Lease is %q's, want somebody_1's", got)
	}
}

// One that stands by is told by its watch what there is to know, and asks nothing.
func TestStandByAsksNothing(t *testing.T) {
	freshLease(t)
	a := stand(t, "a", nil)
	first := a.leads(1)
	b := stand(t, "b", nil)
	b.says("standby; " + first)
	until(t, "its watch", func() bool { return b.w.count("WATCH leases") > 0 })
	until(t, "the end of the try that began before the watch stood", func() bool {
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
			t.Errorf("a watch of %q s, want half an hour to an hour", r.query.Get("timeoutSeconds"))
		}
	}
}

// A watch that shows nothing more lets the Lease seem to have run out. It is not taken by that.
func TestSilentWatchTakesNothing(t *testing.T) {
	freshLease(t)
	short := func(c *candidate) { c.opts.LeaseDuration, c.opts.RenewDeadline = 10*time.Second, 8*time.Second }
	a := stand(t, "a", short)
	first := a.leads(1)
	b := stand(t, "b", func(c *candidate) {
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
	// It reads the Lease when its time has come by what it sees, and finds it renewed.
	until(t, "three looks after the Lease had run out to its eyes", func() bool { return b.w.count("GET lease") >= 4 })
	if n := b.w.count("PUT lease"); n > 0 || holder(t) != first || len(a.epochs()) != 1 {
		t.Errorf("%d writes of the Lease, held by %q, terms of a: %v", n, holder(t), a.epochs())
	}
	// When it has run out indeed, it is taken all the same.
	a.w.on(func(context.Context, request, func() (*http.Response, error)) (*http.Response, error) {
		return nil, errCut
	})
	b.leads(1)
}

// The credential makes the candidate: it comes, is replaced and goes without a restart.
func TestCredentialComesAndGoes(t *testing.T) {
	freshLease(t)
	path := t.TempDir() + "/coordinator.kubeconfig"
	l := stand(t, "n1", func(c *candidate) { c.kubeconfig = path })
	l.says("no coordinator's kubeconfig at " + path)
	if s := l.status(); s.Candidate || l.w.count() > 0 {
		t.Errorf("status %+v and %d requests without a credential", s, l.w.count())
	}
	writeFile(t, path, l.w.kubeconfig())
	first := l.leads(1)

	writeFile(t, path, l.w.kubeconfig()) // the same again: nothing happens
	never(t, "a new term for the same credential", 2*time.Second, func() bool { return len(l.epochs()) > 1 || !l.status().Leader })

	writeFile(t, path, l.w.kubeconfig()[:100])
	never(t, "a new term for a file that is half written", 2*time.Second, func() bool { return len(l.epochs()) > 1 || !l.status().Leader })

	writeFile(t, path, strings.Replace(l.w.kubeconfig(), "user: {}", "user: {token: another}", 1))
	second := l.leads(2)
	if first == second {
		t.Error("the same epoch again")
	}
	removeFile(t, path)
	l.says("no coordinator's kubeconfig")
	until(t, "its end as a candidate", func() bool { return !l.status().Candidate })
	until(t, "the Lease to be released", func() bool { return holder(t) == "" })
	count := l.w.count()
	never(t, "requests without a credential", 2*time.Second, func() bool { return l.w.count() > count })

	writeFile(t, path, "clusters: 5\n")
	until(t, "a word on the broken file", func() bool {
		s := l.status()
		return strings.Contains(s.Why, path) && !s.Candidate && !strings.Contains(s.Why, "no coord")
	})
	writeFile(t, path, l.w.kubeconfig())
	l.leads(3)
}

// The same while another instance leads: then the elector alone is at work.
func TestCredentialGoesFromAStandBy(t *testing.T) {
	freshLease(t)
	patchLease(t, fmt.Sprintf(`{"spec":{"holderIdentity":"other_1","leaseDurationSeconds":3600,"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
	path := t.TempDir() + "/coordinator.kubeconfig"
	l := stand(t, "n1", func(c *candidate) {
		writeFile(t, path, c.w.kubeconfig())
		c.kubeconfig = path
	})
	l.says("standby; other_1")
	removeFile(t, path)
	l.says("no coordinator's kubeconfig")
	patchLease(t, `{"spec":{"holderIdentity":""}}`)
	never(t, "a host without a credential leads", 3*time.Second, func() bool { return holder(t) != "" })
}
