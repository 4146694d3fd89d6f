package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/kube"
)

// errTermOver is what a lock answers once its term is over.
var errTermOver = errors.New("the term is over")

// termLock makes one term one term.
//
// client-go's elector takes a Lease again under the same identity after
// a user blanked or deleted it, and its renew loop continues for up to
// RenewDeadline after it saw another holder. A successor may have come and gone
// meanwhile, granted turns and been followed; a host that checks epochs
// would take the two terms for one. So this lock ends the term at the first real Get that
// does not show this term as the holder, and writes the Lease only after such
// a Get. It never creates a Lease: a deleted Lease is a stop.
//
// A Lease that names this term is not enough. A leader that was stopped for
// longer than the Lease lasts may find its own name in it although a successor
// was there meanwhile: a user restored an old Lease, or edited it. Its view
// of the Nodes may be from before, and the successor's turns are not in it. So
// a term is over as well once the Lease has run out, or has changed hands.
//
// While the term has not begun, a Get may be answered by a watch, which may be
// late: a record that is older than it looks lets a Lease seem to have run out.
// So before the Lease is taken it is read, and taken only if it is what the
// elector decided on, with the resourceVersion of that reading.
type termLock struct {
	inner    resourcelock.Interface
	name     string // of the Lease
	identity string
	// lasts is how long a Lease that is not renewed holds others off.
	lasts time.Duration
	// shown is the Lease's record as a watch shows it; ok is false if none
	// does at present. nil: there is no watch.
	shown func() (record *resourcelock.LeaderElectionRecord, raw []byte, err error, ok bool)
	// may is asked last before the Lease is taken; nil: it may be.
	may func() error
	// over is called once, when the term ends by what the Lease shows.
	over func(why error)
	// quiet ends the leader and returns when it writes nothing any more. It
	// is called before the Lease is released: after that a successor may list
	// the Nodes at any moment.
	quiet func()
	// saw receives what a Get showed while this term does not hold the Lease: its
	// holder, or why it cannot be read.
	saw func(holder string, err error)

	mu          sync.Mutex
	held        bool
	taking      bool      // a write that takes the Lease has begun
	guess       []byte    // what the last Get was answered, if a watch did
	behind      bool      // the watch was found to be late
	renewed     time.Time // when the last write of the Lease that succeeded was sent
	renewTime   time.Time // what it wrote to spec.renewTime
	transitions int       // how often the Lease had changed hands when this term took it
	lastRenewed time.Time // spec.renewTime before this term took it; zero: there was none
	ended       error
}

// errRewound ends a term whose Lease shows an older renewal than its last one.
var errRewound = errors.New("the Lease shows an older renewal than the last one: the API server's store went back in time, or a person edited the Lease")

// errChanged is why a Lease is not taken that looked as if it could be.
var errChanged = errors.New("the Lease is not any more what the watch has shown")

// Get reads the Lease. Once this term holds it, that is a real Get.
func (l *termLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.read(ctx)
	if why := l.judge(record, err); why != nil {
		return nil, nil, why
	}
	if !l.holds() && ctx.Err() == nil {
		holder := ""
		if err == nil {
			holder = record.HolderIdentity
			l.mu.Lock()
			l.lastRenewed = record.RenewTime.Time
			l.mu.Unlock()
		}
		l.saw(holder, err)
	}
	return record, raw, err
}

// read asks the watch if it may, else the API server. A watch that was found
// to be late is believed again when it shows what the API server shows.
func (l *termLock) read(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	l.mu.Lock()
	watched, behind := !l.held && l.ended == nil && l.shown != nil, l.behind
	l.guess = nil
	l.mu.Unlock()
	if !watched {
		return l.inner.Get(ctx)
	}
	record, raw, err, up := l.shown()
	if up && !behind {
		l.mu.Lock()
		l.guess = raw
		l.mu.Unlock()
		return record, raw, err
	}
	record, real, err := l.inner.Get(ctx)
	if up && err == nil && bytes.Equal(raw, real) {
		l.mu.Lock()
		l.behind = false
		l.mu.Unlock()
	}
	return record, real, err
}

// giveUp ends a term that has not begun, unless it is about to. It reports
// whether it did; then the Lease is not taken under this identity.
func (l *termLock) giveUp(why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held || l.taking || l.ended != nil {
		return false
	}
	l.ended = fmt.Errorf("%w: %w", errTermOver, why)
	return true
}

// take begins to take the Lease: it makes sure that what the elector has
// decided on is what the Lease is.
func (l *termLock) take(ctx context.Context) error {
	l.mu.Lock()
	guess, ended := l.guess, l.ended
	l.taking = ended == nil
	l.mu.Unlock()
	if ended != nil {
		return ended
	}
	if guess != nil {
		_, raw, err := l.inner.Get(ctx)
		if err != nil {
			l.saw("", err)
			return err
		}
		if !bytes.Equal(raw, guess) {
			l.mu.Lock()
			l.behind = true
			l.mu.Unlock()
			return errChanged
		}
	}
	if l.may != nil {
		return l.may()
	}
	return nil
}

func (l *termLock) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// ledUntil returns when the Lease was last renewed before this term took it, by
// the previous leader's clock; the zero time if the Lease does not say.
func (l *termLock) ledUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastRenewed
}

// fresh reports whether the Lease was taken or renewed within the last d, and
// the term has not ended. The elector notices that it cannot renew only after
// a while, and a process that was stopped only after it was continued; a
// leader asks here before every write.
func (l *termLock) fresh(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held && l.ended == nil && time.Since(l.renewed) < d
}

// judge ends the term if the answer to a Get shows that it is over.
func (l *termLock) judge(record *resourcelock.LeaderElectionRecord, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	if !l.held {
		return nil
	}
	switch {
	case kube.NoLease(err, l.name):
		l.endLocked("the Lease is gone")
	case err != nil: // no answer shows nothing
	case record.HolderIdentity == "":
		l.endLocked("a user blanked the Lease")
	case record.HolderIdentity != l.identity:
		l.endLocked("the Lease is " + record.HolderIdentity + "'s")
	case record.RenewTime.Time.Before(l.renewTime):
		// It gets older only if the store was restored from a backup, or if a person
		// edits it. What this term wrote to Nodes may be lost.
		l.end(errRewound)
	case record.LeaderTransitions != l.transitions:
		l.endLocked("the Lease changed hands, and a user named this term in it again")
	case time.Since(l.renewed) >= l.lasts:
		l.endLocked("the Lease had run out when it was read again; others may have held it meanwhile")
	}
	return l.ended
}

func (l *termLock) endLocked(why string) { l.end(errors.New(why)) }

// end ends the term; the caller holds mu.
func (l *termLock) end(why error) {
	l.ended = fmt.Errorf("%w: %w", errTermOver, why)
	go l.over(l.ended)
}

// Create refuses: the manifests create the Lease, and lockkeeper may not.
func (l *termLock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("there is no Lease, which is a stop; apply the manifests to continue")
}

// Update writes the Lease: to take it, to renew it, or to release it. The last
// two only after a Get that names this term, the first after one that shows
// what was decided on. The resourceVersion of that real Get is its precondition.
func (l *termLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	held, ended := l.held, l.ended
	l.mu.Unlock()
	if ended != nil {
		return ended
	}
	if held && record.HolderIdentity == "" {
		l.quiet()
	}
	if held {
		if _, _, err := l.Get(ctx); err != nil {
			return err
		}
	} else {
		defer func() {
			l.mu.Lock()
			l.taking = false
			l.mu.Unlock()
		}()
		if err := l.take(ctx); err != nil {
			return err
		}
	}
	sent := time.Now()
	err := l.inner.Update(ctx, record)
	conflict := !held && apierrors.IsConflict(err) && l.isOthers(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && record.HolderIdentity == l.identity:
		l.held, l.renewed, l.transitions = true, sent, record.LeaderTransitions
		l.renewTime = record.RenewTime.Truncate(time.Microsecond) // as a Lease keeps it
	case err == nil: // released
		l.endLocked("released")
	case held || l.ended != nil || conflict:
	case kube.NoLease(err, l.name), kube.IsRefused(err) && !apierrors.IsTooManyRequests(err):
		l.end(blocker{fmt.Errorf("the API server refuses the write that takes the Lease: %w", err)})
	default:
		// Whether the Lease was taken is not known. If it was, and is blanked
		// before the next Get, this identity would take it twice.
		l.endLocked("the outcome of taking the Lease is not known: " + err.Error())
	}
	return err
}

// isOthers confirms a conflict: the Lease changed, and does not name this term.
// Only then this term did not take it. A proxy that repeated the write may have
// received a conflict with its own first write.
func (l *termLock) isOthers(ctx context.Context) bool {
	record, _, err := l.inner.Get(ctx)
	return err == nil && record.HolderIdentity != l.identity
}

// RecordEvent does nothing: terms are logged.
func (l *termLock) RecordEvent(string) {}

// Identity is the term's epoch.
func (l *termLock) Identity() string { return l.identity }

// Describe names the Lease.
func (l *termLock) Describe() string { return l.inner.Describe() }
