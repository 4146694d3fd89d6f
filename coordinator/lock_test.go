package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is a Lease in memory behind a lock, with the results of Get and Update.
type lease struct {
	holder  string
	hands   int // how often the holder changed
	renewed time.Time
	lasts   int // in seconds
	getErr  error
	putErr  error
	slow    time.Duration // how long Update takes
	calls   []string
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.calls = append(l.calls, "get")
	if l.getErr != nil {
		return nil, nil, l.getErr
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: l.holder, LeaderTransitions: l.hands, RenewTime: metav1.NewTime(l.renewed), LeaseDurationSeconds: l.lasts}, []byte(l.holder), nil
}

func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.calls = append(l.calls, "put "+r.HolderIdentity)
	if err := pause(ctx, l.slow); err != nil {
		l.holder = r.HolderIdentity // it lands after its sender gave up
		return err
	}
	if l.putErr == nil {
		l.holder, l.renewed = r.HolderIdentity, r.RenewTime.Truncate(time.Microsecond) // the precision of a Lease
	}
	return l.putErr
}

func (l *lease) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	l.calls = append(l.calls, "create")
	return nil
}

func (*lease) RecordEvent(string) {}
func (*lease) Identity() string   { return "" }
func (*lease) Describe() string   { return "lease" }

type testLock struct {
	*termLock
	lease *lease
	over  []string
	quiet int
	saw   []string
}

func newTestLock() *testLock {
	t := &testLock{lease: &lease{}}
	t.termLock = &termLock{
		inner: t.lease, name: "lockkeeper", identity: "me_1", lasts: 30 * time.Second,
		over:  func(why error) { t.over = append(t.over, why.Error()) },
		quiet: func() { t.quiet++; t.lease.calls = append(t.lease.calls, "quiet") },
		saw:   func(holder string, err error) { t.saw = append(t.saw, holder) },
	}
	return t
}

func (t *testLock) put(holder string) error {
	return t.Update(context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: holder, RenewTime: metav1.Now()})
}

func (t *testLock) get() error {
	_, _, err := t.Get(context.Background())
	return err
}

func notFound() error {
	return apierrors.NewNotFound(coordinationv1.Resource("leases"), "lockkeeper")
}

// TestLockEndsItsTerm checks that a wrong Lease in the first Get ends the term, and that nothing is read or written for
// the term afterwards.
func TestLockEndsItsTerm(t *testing.T) {
	for name, harm := range map[string]func(*lease){
		"blanked": func(l *lease) { l.holder = "" },
		"taken":   func(l *lease) { l.holder = "other_1" },
		"gone":    func(l *lease) { l.getErr = notFound() },
	} {
		for _, renews := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := newTestLock()
				if err := errors.Join(l.get(), l.put("me_1"), l.put("me_1")); err != nil {
					t.Fatal(err)
				}
				harm(l.lease)
				l.lease.calls = nil
				act := l.get
				if renews {
					act = func() error { return l.put("me_1") }
				}
				if err := act(); !errors.Is(err, errTermOver) {
					t.Errorf("%s: %v, expected the end of the term", name, err)
				}
				// Everything looks normal again, so the elector would take the Lease now.
				l.lease.holder, l.lease.getErr = "", nil
				for range 2 {
					if !errors.Is(l.get(), errTermOver) || !errors.Is(l.put("me_1"), errTermOver) || !errors.Is(l.put(""), errTermOver) {
						t.Errorf("%s: the term continues", name)
					}
				}
				if slices.ContainsFunc(l.lease.calls, func(c string) bool { return strings.HasPrefix(c, "put") }) {
					t.Errorf("%s: %v", name, l.lease.calls)
				}
				synctest.Wait()
				if len(l.over) != 1 || l.fresh(time.Hour) {
					t.Errorf("%s: ended %q, fresh %t", name, l.over, l.fresh(time.Hour))
				}
			})
		}
	}
}

// TestLockEndsItsTermByItself checks that a term ends if its Lease had expired or changed hands, even if the Lease
// names the term again or still, because the leader may have missed what happened in between.
func TestLockEndsItsTermByItself(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(*lease)
		over bool
	}{
		"29 s":          {func(*lease) { time.Sleep(29 * time.Second) }, false},
		"30 s":          {func(*lease) { time.Sleep(30 * time.Second) }, true},
		"changed hands": {func(l *lease) { l.hands++ }, true},
	} {
		for _, renews := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := newTestLock()
				l.put("me_1")
				c.harm(l.lease)
				l.lease.calls = nil
				err := l.get()
				if renews {
					err = l.put("me_1")
				}
				if got := errors.Is(err, errTermOver); got != c.over {
					t.Errorf("%s: %v", name, err)
				}
				if c.over && (!errors.Is(l.put("me_1"), errTermOver) || slices.Contains(l.lease.calls, "put me_1") || l.fresh(time.Hour)) {
					t.Errorf("%s: the term continues: %v", name, l.lease.calls)
				}
				synctest.Wait()
				if (len(l.over) > 0) != c.over {
					t.Errorf("%s: ended %q", name, l.over)
				}
			})
		}
	}
}

// TestLockNoticesARewoundStore checks that a renewal in the Lease that is older than this term's last one means that
// the store went back in time.
func TestLockNoticesARewoundStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123456789 * time.Nanosecond) // a Lease stores microseconds
		l := newTestLock()
		l.put("me_1")
		before := l.lease.renewed
		time.Sleep(5 * time.Second)
		if err := errors.Join(l.put("me_1"), l.get()); err != nil {
			t.Fatal(err)
		}
		l.lease.renewed = before
		if err := l.get(); !errors.Is(err, errTermOver) || !errors.Is(err, errRewound) {
			t.Errorf("%v, expected the end of the term", err)
		}
		synctest.Wait()
	})
}

// TestLockKnowsTheLastRenewal checks that the successor knows how long the previous term lasted, if the Lease contains
// that.
func TestLockKnowsTheLastRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.get()
		l.put("me_1")
		if got := l.ledUntil(); !got.IsZero() {
			t.Errorf("a Lease without a holder has a last renewal: %v", got)
		}
		began := time.Now()
		l = newTestLock()
		l.lease.holder, l.lease.renewed = "other_1", began
		l.get()
		time.Sleep(time.Minute)
		l.put("me_1")
		time.Sleep(time.Minute)
		l.get()
		l.put("me_1")
		if got := l.ledUntil(); !got.Equal(began) || l.ledBy() != "other_1" {
			t.Errorf("last renewal %v by %q, expected %v by other_1", got, l.ledBy(), began)
		}
		for lasts, known := range map[int]bool{1: true, 30: false} { // released, and blanked by a person
			l = newTestLock()
			l.lease.renewed, l.lease.lasts = began, lasts
			l.get()
			l.put("me_1")
			if got := l.ledUntil(); got.Equal(began) != known || got.IsZero() == known || l.ledBy() != "" {
				t.Errorf("a Lease of %d s without a holder: last renewal %v by %q, known %t", lasts, got, l.ledBy(), known)
			}
			l = newTestLock()
			l.lease.holder, l.lease.renewed = "other_1", began
			l.get()
			l.lease.holder, l.lease.lasts = "", lasts
			l.get()
			l.put("me_1")
			if got := l.ledBy(); (got == "other_1") != known || (got == "") == known {
				t.Errorf("a Lease of %d s that has lost its holder: led by %q, known %t", lasts, got, known)
			}
		}
		synctest.Wait()
	})
}

// TestLockOutlivesAProxysPage checks that a proxy's 404 does not count as an answer of the API server: the Lease may
// exist.
func TestLockOutlivesAProxysPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.put("me_1")
		for _, page := range []error{
			apierrors.NewGenericServerResponse(404, "GET", coordinationv1.Resource("leases"), "lockkeeper", "<html>", 0, true),
			apierrors.NewNotFound(coordinationv1.Resource("leases"), "another"),
		} {
			l.lease.getErr = page
			if l.get() == nil {
				t.Error("no error")
			}
			l.lease.getErr = nil
			if err := errors.Join(l.get(), l.put("me_1")); err != nil {
				t.Errorf("after %v: %v", page, err)
			}
		}
		synctest.Wait()
	})
}

// TestLockOutlivesAnAPIServerThatIsAway checks that a missing answer changes nothing: the elector's own deadline ends a
// term that cannot be renewed.
func TestLockOutlivesAnAPIServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.put("me_1")
		l.lease.getErr = errors.New("connection refused")
		if l.get() == nil || l.put("me_1") == nil {
			t.Error("no error")
		}
		l.lease.getErr, l.lease.putErr = nil, errors.New("connection refused")
		if l.put("me_1") == nil {
			t.Error("no error")
		}
		l.lease.putErr = nil
		if err := errors.Join(l.get(), l.put("me_1")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(l.over) > 0 {
			t.Errorf("ended %q", l.over)
		}
	})
}

// TestLockTakesOnce checks that a term with an unknown outcome of its first write does not try again. A conflict is a
// certain refusal as soon as the Lease shows another holder.
func TestLockTakesOnce(t *testing.T) {
	modified := apierrors.NewConflict(coordinationv1.Resource("leases"), "lockkeeper", errors.New("modified"))
	for name, c := range map[string]struct {
		err    error
		holder string // the holder after that; "unreadable" means that the Lease cannot be read
		over   bool
	}{
		"no answer":     {errors.New("connection reset"), "", true},
		"a timeout":     {apierrors.NewTimeoutError("slow", 1), "", true},
		"a proxy's 403": {apierrors.NewGenericServerResponse(403, "PUT", coordinationv1.Resource("leases"), "lockkeeper", "<html>", 0, true), "", true},
		"a conflict":    {modified, "other_1", false},
		// A proxy repeated a write that had landed.
		"a conflict with itself":              {modified, "me_1", true},
		"a conflict that cannot be confirmed": {modified, "unreadable", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newTestLock()
			l.lease.putErr, l.lease.holder = c.err, c.holder
			if c.holder == "unreadable" {
				l.lease.getErr = errors.New("connection reset")
			}
			if l.put("me_1") == nil {
				t.Errorf("%s: no error", name)
			}
			l.lease.putErr, l.lease.getErr = nil, nil
			if got := errors.Is(l.put("me_1"), errTermOver); got != c.over {
				t.Errorf("%s: over is %t", name, got)
			}
			synctest.Wait()
			if (len(l.over) > 0) != c.over {
				t.Errorf("%s: ended %q", name, l.over)
			}
		})
	}
}

// TestLockFinishesTaking checks that a stop does not cut off the write that takes the Lease: the elector has to know of
// a Lease that it must release. The write has its own bound.
func TestLockFinishesTaking(t *testing.T) {
	for slow, taken := range map[time.Duration]bool{9 * time.Second: true, 11 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			l := newTestLock()
			l.lease.slow = slow
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, stop)
			err := l.Update(ctx, resourcelock.LeaderElectionRecord{HolderIdentity: "me_1", RenewTime: metav1.Now()})
			if (err == nil) != taken || l.holds() != taken {
				t.Errorf("a write of %v: %v, held %t", slow, err, l.holds())
			}
			synctest.Wait()
		})
	}
}

func TestLockNeverCreates(t *testing.T) {
	l := newTestLock()
	if err := l.Create(t.Context(), resourcelock.LeaderElectionRecord{}); err == nil || len(l.lease.calls) > 0 {
		t.Errorf("%v, %v", err, l.lease.calls)
	}
}

// TestLockReleases checks that the leader stops writing before it releases the Lease, and that it releases only a Lease
// that names its term.
func TestLockReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.put("me_1")
		l.lease.calls = nil
		if err := l.put(""); err != nil || l.lease.holder != "" {
			t.Errorf("%v, held by %q", err, l.lease.holder)
		}
		if want := []string{"quiet", "get", "put "}; !slices.Equal(l.lease.calls, want) {
			t.Errorf("%q, want %q", l.lease.calls, want)
		}
		if !errors.Is(l.put("me_1"), errTermOver) {
			t.Error("the term takes the Lease again after its release")
		}
		l = newTestLock()
		l.put("me_1")
		l.lease.holder = "other_1"
		if err := l.put(""); err == nil || l.lease.holder != "other_1" {
			t.Errorf("%v: the term released the Lease of %q", err, l.lease.holder)
		}
		synctest.Wait()
	})
}

func TestLockIsFreshAfterARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.get()
		if l.fresh(time.Hour) {
			t.Error("fresh before the Lease was taken")
		}
		l.put("me_1")
		time.Sleep(19 * time.Second)
		if !l.fresh(20 * time.Second) {
			t.Error("not fresh 19 s after the Lease was taken")
		}
		time.Sleep(time.Second)
		if l.fresh(20 * time.Second) {
			t.Error("fresh 20 s after the Lease was taken")
		}
		// A failed renewal renews nothing.
		l.lease.putErr = errors.New("no")
		if l.put("me_1"); l.fresh(20 * time.Second) {
			t.Error("fresh after a renewal that failed")
		}
		l.lease.putErr = nil
		if l.put("me_1"); !l.fresh(20 * time.Second) {
			t.Error("not fresh after a renewal")
		}
		// Others may count from the time at which the API server stored the renewal.
		l.lease.slow = 15 * time.Second
		l.put("me_1")
		if time.Sleep(4 * time.Second); !l.fresh(20 * time.Second) {
			t.Error("not fresh 19 s after a renewal was sent")
		}
		if time.Sleep(time.Second); l.fresh(20 * time.Second) {
			t.Error("fresh 20 s after a renewal was sent")
		}
	})
}

// TestLockTellsWhatItSees checks that a candidate reports what it reads of the Lease until it holds the Lease, and not
// while it leads.
func TestLockTellsWhatItSees(t *testing.T) {
	l := newTestLock()
	l.lease.holder = "other_1"
	l.get()
	l.lease.getErr = notFound()
	l.get()
	l.lease.getErr, l.lease.holder = nil, ""
	l.get()
	l.put("me_1")
	l.get()
	if want := []string{"other_1", "", ""}; !slices.Equal(l.saw, want) {
		t.Errorf("reported %q, expected %q", l.saw, want)
	}
}

// byWatch makes a watch that shows this holder answer a lock's first Gets.
func (t *testLock) byWatch(holder *string) {
	t.shown = func() (*resourcelock.LeaderElectionRecord, []byte, error, bool) {
		if holder == nil {
			return nil, nil, nil, false
		}
		return &resourcelock.LeaderElectionRecord{HolderIdentity: *holder}, []byte(*holder), nil, true
	}
}

// TestLockReadsBeforeItTakes checks that a standby sends no reads, that a candidate reads the Lease before it takes it,
// and that a holder reads the Lease itself.
func TestLockReadsBeforeItTakes(t *testing.T) {
	l := newTestLock()
	l.byWatch(new("other_1"))
	for range 3 {
		if err := l.get(); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.lease.calls) > 0 || !slices.Equal(l.saw, []string{"other_1", "other_1", "other_1"}) {
		t.Errorf("requests %q, saw %q", l.lease.calls, l.saw)
	}
	l.lease.holder = "other_1"
	if err := errors.Join(l.put("me_1"), l.get(), l.put("me_1")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"get", "put me_1", "get", "get", "put me_1"}; !slices.Equal(l.lease.calls, want) {
		t.Errorf("%q, want %q", l.lease.calls, want)
	}
}

// TestLockDoesNotTakeByALateWatch checks that a candidate does not take the Lease based on a watch that lags, and does
// not use the watch again until it has caught up.
func TestLockDoesNotTakeByALateWatch(t *testing.T) {
	l := newTestLock()
	shows := "dead_1"
	l.byWatch(&shows)
	l.lease.holder = "alive_1"
	l.get()
	if err := l.put("me_1"); !errors.Is(err, errChanged) {
		t.Errorf("%v, expected a conflict", err)
	}
	l.get()
	l.get()
	if want := []string{"get", "get", "get"}; !slices.Equal(l.lease.calls, want) || l.saw[len(l.saw)-1] != "alive_1" {
		t.Errorf("requests %q, want %q; saw %q", l.lease.calls, want, l.saw)
	}
	shows = "alive_1"
	l.get() // notices that the watch has caught up
	l.lease.calls = nil
	if l.get(); len(l.lease.calls) > 0 {
		t.Errorf("requests %q although the watch has caught up", l.lease.calls)
	}
	// After a read the Lease may be taken, with the resourceVersion of the read.
	if err := l.put("me_1"); err != nil || l.lease.holder != "me_1" {
		t.Errorf("%v, held by %q", err, l.lease.holder)
	}
}

// TestLockWithoutAWatch checks that every Get is a real one if there is no watch, or while it is down.
func TestLockWithoutAWatch(t *testing.T) {
	l := newTestLock()
	l.byWatch(nil)
	if err := errors.Join(l.get(), l.put("me_1")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"get", "put me_1"}; !slices.Equal(l.lease.calls, want) {
		t.Errorf("%q, want %q", l.lease.calls, want)
	}
}

func TestLockMayNotTake(t *testing.T) {
	l := newTestLock()
	skewed := errors.New("the clock is off")
	l.may = func() error { return skewed }
	l.get()
	if err := l.put("me_1"); !errors.Is(err, skewed) || l.lease.holder != "" {
		t.Errorf("%v, held by %q", err, l.lease.holder)
	}
	skewed = nil
	if err := l.put("me_1"); err != nil {
		t.Error(err)
	}
	skewed = errors.New("the clock is off")
	if err := l.put("me_1"); err != nil { // the leader's own loop handles that
		t.Errorf("a renewal: %v", err)
	}
}

// TestLockIsGivenUp checks that a campaign is replaced by another one only if it has sent nothing that could take the
// Lease.
func TestLockIsGivenUp(t *testing.T) {
	l := newTestLock()
	l.may = func() error {
		if l.giveUp(errFreed) {
			t.Error("given up while it takes the Lease")
		}
		return nil
	}
	if err := errors.Join(l.get(), l.put("me_1")); err != nil {
		t.Fatal(err)
	}
	if l.giveUp(errFreed) {
		t.Error("given up while it holds the Lease")
	}
	l = newTestLock()
	l.get()
	if !l.giveUp(errFreed) || l.giveUp(errFreed) {
		t.Error("not given up, or given up twice")
	}
	if err := l.put("me_1"); !errors.Is(err, errFreed) || !errors.Is(err, errTermOver) || l.lease.holder != "" {
		t.Errorf("%v, held by %q", err, l.lease.holder)
	}
	l = newTestLock()
	l.lease.putErr = apierrors.NewConflict(coordinationv1.Resource("leases"), "lockkeeper", errors.New("modified"))
	l.get()
	l.put("me_1")
	if !l.giveUp(errFreed) {
		t.Error("not given up after a failed try")
	}
}

// TestLockIsRefused checks that a write that the API server refuses certainly had no effect, so a user has to fix the
// cause. After any other failure the outcome is unknown.
func TestLockIsRefused(t *testing.T) {
	leases := coordinationv1.Resource("leases")
	for name, c := range map[string]struct {
		err            error
		ended, blocked bool
	}{
		"403":      {apierrors.NewForbidden(leases, "lockkeeper", errors.New("no")), true, true},
		"401":      {apierrors.NewUnauthorized("no"), true, true},
		"409":      {apierrors.NewConflict(leases, "lockkeeper", errors.New("changed")), false, false},
		"429":      {apierrors.NewTooManyRequests("later", 1), true, false},
		"504":      {apierrors.NewTimeoutError("late", 1), true, false},
		"no reply": {errors.New("connection reset"), true, false},
	} {
		l := newTestLock()
		l.get()
		l.lease.putErr = c.err
		if err := l.put("me_1"); !errors.Is(err, c.err) {
			t.Errorf("%s: the elector gets %v", name, err)
		}
		_, blocked := errors.AsType[blocker](l.ended)
		if (l.ended != nil) != c.ended || blocked != c.blocked {
			t.Errorf("%s: ended by %v, expected ended %t, blocked %t", name, l.ended, c.ended, c.blocked)
		}
	}
}
