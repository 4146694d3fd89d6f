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

// lease is a Lease in memory behind a lock: what a Get shows, and what an Update comes to.
type lease struct {
	holder  string
	hands   int // how often it changed them
	renewed time.Time
	getErr  error
	putErr  error
	calls   []string
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.calls = append(l.calls, "get")
	if l.getErr != nil {
		return nil, nil, l.getErr
	}
	return &resourcelock.LeaderElectionRecord{HolderIdentity: l.holder, LeaderTransitions: l.hands, RenewTime: metav1.NewTime(l.renewed)}, []byte(l.holder), nil
}

func (l *lease) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.calls = append(l.calls, "put "+r.HolderIdentity)
	if l.putErr == nil {
		l.holder, l.renewed = r.HolderIdentity, r.RenewTime.Truncate(time.Microsecond) // as a Lease keeps it
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

// What the Lease shows at the first Get ends the term, and then nothing is read or written under its name.
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
					t.Errorf("%s: %v, want the end of the term", name, err)
				}
				// As if nothing had happened: the elector would take it now.
				l.lease.holder, l.lease.getErr = "", nil
				for range 2 {
					if !errors.Is(l.get(), errTermOver) || !errors.Is(l.put("me_1"), errTermOver) || !errors.Is(l.put(""), errTermOver) {
						t.Errorf("%s: the term goes on", name)
					}
				}
				if slices.ContainsFunc(l.lease.calls, func(c string) bool { return strings.HasPrefix(c, "put") }) {
					t.Errorf("%s: %v", name, l.lease.calls)
				}
				synctest.Wait()
				if len(l.over) != 1 || l.fresh(time.Hour) {
					t.Errorf("%s: told %q, fresh %t", name, l.over, l.fresh(time.Hour))
				}
			})
		}
	}
}

// A Lease that names the term again, or still, although it had run out or changed hands, is not gone on with: whatever happened
// meanwhile, the leader may not have seen it.
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
					t.Errorf("%s: the term goes on: %v", name, l.lease.calls)
				}
				synctest.Wait()
				if (len(l.over) > 0) != c.over {
					t.Errorf("%s: told %q", name, l.over)
				}
			})
		}
	}
}

// An older renewal in the Lease than this term's last one says that the store went back in time.
func TestLockNoticesARewoundStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123456789 * time.Nanosecond) // a Lease keeps microseconds of it
		l := newTestLock()
		l.put("me_1")
		before := l.lease.renewed
		time.Sleep(5 * time.Second)
		if err := errors.Join(l.put("me_1"), l.get()); err != nil {
			t.Fatal(err)
		}
		l.lease.renewed = before
		if err := l.get(); !errors.Is(err, errTermOver) || !errors.Is(err, errRewound) {
			t.Errorf("%v, want the end of the term", err)
		}
		synctest.Wait()
	})
}

// The successor knows until when the term before it was led, if the Lease says so.
func TestLockKnowsTheLastRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.get()
		l.put("me_1")
		if got := l.ledUntil(); !got.IsZero() {
			t.Errorf("a Lease that was never held was led until %v", got)
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
		if got := l.ledUntil(); !got.Equal(began) {
			t.Errorf("led until %v, want %v", got, began)
		}
		synctest.Wait()
	})
}

// A proxy's 404 is no answer of the API server's: the Lease may be there.
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

// No answer is no word: the elector's own deadline ends a term that cannot be renewed.
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
			t.Errorf("told %q", l.over)
		}
	})
}

// Whether the Lease was taken is not known: under this name it is not tried again. A conflict is a clear no, once the Lease
// shows another holder.
func TestLockTakesOnce(t *testing.T) {
	modified := apierrors.NewConflict(coordinationv1.Resource("leases"), "lockkeeper", errors.New("modified"))
	for name, c := range map[string]struct {
		err    error
		holder string // who holds it after that; "unreadable" is that it cannot be read
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
				t.Errorf("%s: told %q", name, l.over)
			}
		})
	}
}

func TestLockNeverCreates(t *testing.T) {
	l := newTestLock()
	if err := l.Create(t.Context(), resourcelock.LeaderElectionRecord{}); err == nil || len(l.lease.calls) > 0 {
		t.Errorf("%v, %v", err, l.lease.calls)
	}
}

// The leader is quiet before the Lease is let go, and only a Lease that names this term is.
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
			t.Error("taken again after its release")
		}
		l = newTestLock()
		l.put("me_1")
		l.lease.holder = "other_1"
		if err := l.put(""); err == nil || l.lease.holder != "other_1" {
			t.Errorf("%v: it released the Lease of %q", err, l.lease.holder)
		}
		synctest.Wait()
	})
}

func TestLockIsFreshAfterARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLock()
		l.get()
		if l.fresh(time.Hour) {
			t.Error("fresh before it was taken")
		}
		l.put("me_1")
		time.Sleep(19 * time.Second)
		if !l.fresh(20 * time.Second) {
			t.Error("not fresh 19 s after it was taken")
		}
		time.Sleep(time.Second)
		if l.fresh(20 * time.Second) {
			t.Error("fresh 20 s after it was taken")
		}
		// A renewal that fails renews nothing.
		l.lease.putErr = errors.New("no")
		if l.put("me_1"); l.fresh(20 * time.Second) {
			t.Error("fresh after a renewal that failed")
		}
		l.lease.putErr = nil
		if l.put("me_1"); !l.fresh(20 * time.Second) {
			t.Error("not fresh after a renewal")
		}
	})
}

// What a candidate sees before it holds the Lease is told; what it sees after is not: then it leads.
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
		t.Errorf("told %q, want %q", l.saw, want)
	}
}

// byWatch has a lock's first Gets answered by a watch that shows that holder.
func (t *testLock) byWatch(holder *string) {
	t.shown = func() (*resourcelock.LeaderElectionRecord, []byte, error, bool) {
		if holder == nil {
			return nil, nil, nil, false
		}
		return &resourcelock.LeaderElectionRecord{HolderIdentity: *holder}, []byte(*holder), nil, true
	}
}

// One that stands by asks nothing; what it takes it has read first; what it holds it reads itself.
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

// A watch that is late does not let a Lease be taken, and is not asked again until it shows what is there.
func TestLockDoesNotTakeByALateWatch(t *testing.T) {
	l := newTestLock()
	shows := "dead_1"
	l.byWatch(&shows)
	l.lease.holder = "alive_1"
	l.get()
	if err := l.put("me_1"); !errors.Is(err, errChanged) {
		t.Errorf("%v, want that it has changed", err)
	}
	l.get()
	l.get()
	if want := []string{"get", "get", "get"}; !slices.Equal(l.lease.calls, want) || l.saw[len(l.saw)-1] != "alive_1" {
		t.Errorf("requests %q, want %q; saw %q", l.lease.calls, want, l.saw)
	}
	shows = "alive_1"
	l.get() // it finds that the watch is there again
	l.lease.calls = nil
	if l.get(); len(l.lease.calls) > 0 {
		t.Errorf("requests %q although the watch has caught up", l.lease.calls)
	}
	// By what was read it may be taken: with the resourceVersion that this has shown.
	if err := l.put("me_1"); err != nil || l.lease.holder != "me_1" {
		t.Errorf("%v, held by %q", err, l.lease.holder)
	}
}

// Without a watch, or while it is not up, every Get is a real one.
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
	if err := l.put("me_1"); err != nil { // the leader's own loop sees to that
		t.Errorf("a renewal: %v", err)
	}
}

// A campaign is given up for another one only if it has sent nothing that could take the Lease.
func TestLockIsGivenUp(t *testing.T) {
	l := newTestLock()
	l.may = func() error {
		if l.giveUp(errFreed) {
			t.Error("given up in the middle of taking")
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
		t.Error("not given up, or twice")
	}
	if err := l.put("me_1"); !errors.Is(err, errFreed) || !errors.Is(err, errTermOver) || l.lease.holder != "" {
		t.Errorf("%v, held by %q", err, l.lease.holder)
	}
	l = newTestLock()
	l.lease.putErr = apierrors.NewConflict(coordinationv1.Resource("leases"), "lockkeeper", errors.New("modified"))
	l.get()
	l.put("me_1")
	if !l.giveUp(errFreed) {
		t.Error("not given up after a try in vain")
	}
}

// A write that the API server refuses was not carried out, for certain, and a user has to fix that; of any other failure nobody
// knows what came of it.
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
			t.Errorf("%s: the elector is told %v", name, err)
		}
		_, blocked := errors.AsType[blocker](l.ended)
		if (l.ended != nil) != c.ended || blocked != c.blocked {
			t.Errorf("%s: ended by %v, expected ended %t, blocked %t", name, l.ended, c.ended, c.blocked)
		}
	}
}
