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

// errTermOver is the error of a lock whose term is over.
var errTermOver = errors.New("the term is over")

// termLock guarantees that one identity leads only one uninterrupted term.
//
// client-go's elector alone does not. It takes a Lease again under the same identity after
// a user blanked or deleted it, and its renew loop continues for up to RenewDeadline after
// it saw another holder. Meanwhile a successor may have led and granted turns, and a host
// that checks epochs would take the two terms for one. So this lock ends the term at the
// first real Get that does not show this term as the holder. Once it holds the Lease, it
// writes the Lease only after a Get that does. It never creates a Lease, because a deleted
// Lease is a stop.
//
// It is not enough that the Lease names this term. If a process was suspended for longer
// than the Lease lasts, a successor may have led, and a user may have restored or edited
// the Lease. Then the process's view of the Nodes lacks the successor's turns. So the term
// also ends when the Lease has expired or changed hands.
//
// Before the term begins, a watch may answer a Get. The watch may be late, and a Lease that
// is still held may seem to have expired. So the lock reads the Lease again before it takes
// it. It takes the Lease only if it is unchanged, with the resourceVersion of that read.
type termLock struct {
	inner    resourcelock.Interface
	name     string // of the Lease
	identity string
	// lasts is the Lease's duration: how long it keeps others out if it is not renewed.
	lasts time.Duration
	// shown returns the Lease's record from a watch. ok is false if the watch does not
	// work now. nil: there is no watch.
	shown func() (record *resourcelock.LeaderElectionRecord, raw []byte, err error, ok bool)
	// may is called right before the Lease is taken. If it returns an error, the Lease is
	// not taken. It may be nil.
	may func() error
	// over is called once, when the lock ends the term.
	over func(why error)
	// quiet ends the leader and returns after its last write. The lock calls it before it
	// releases the Lease, because a successor may list the Nodes right after that.
	quiet func()
	// saw receives what a Get showed while this term does not hold the Lease: its
	// holder, or why it cannot be read.
	saw func(holder string, err error)

	mu          sync.Mutex
	held        bool
	taking      bool      // a write that takes the Lease has begun
	guess       []byte    // the record that the last Get returned, if it came from the watch
	behind      bool      // the watch was found to be late
	renewed     time.Time // when the last write of the Lease that succeeded was sent
	renewTime   time.Time // spec.renewTime in that write
	transitions int       // how often the Lease had changed hands when this term took it
	lastRenewed time.Time // spec.renewTime before this term took it; zero: there was none, or a person blanked the Lease
	lastHolder  string    // the last spec.holderIdentity before this term took it, as far as it was seen
	ended       error
}

// releasedLasts is the duration in seconds that client-go writes into a Lease that it releases.
const releasedLasts = 1

// errRewound ends a term whose Lease shows an older renewal than its last one.
var errRewound = errors.New("the Lease shows an older renewal than the last one: the API server's store went back in time, or a person edited the Lease")

// errChanged is the error if the Lease seemed free in the watch, but has changed.
var errChanged = errors.New("the Lease has changed since the watch showed it")

// Get reads the Lease. Once this term holds the Lease, Get always asks the API server.
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
			if holder == "" && record.LeaseDurationSeconds != releasedLasts {
				// A person blanked it, perhaps long after its holder had died.
				l.lastRenewed = time.Time{}
			}
			// A leader that gives the Lease back removes its name. It is the one that this candidate saw last.
			if holder != "" || record.LeaseDurationSeconds != releasedLasts {
				l.lastHolder = holder
			}
			l.mu.Unlock()
		}
		l.saw(holder, err)
	}
	return record, raw, err
}

// read reads the Lease from the watch if that is allowed, and otherwise from the API
// server. It trusts a watch that was late again once it shows what the API server shows.
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

// giveUp ends a term that has not begun, unless the Lease is being taken. It reports
// whether it ended the term. Then the Lease is never taken under this identity.
func (l *termLock) giveUp(why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held || l.taking || l.ended != nil {
		return false
	}
	l.ended = fmt.Errorf("%w: %w", errTermOver, why)
	return true
}

// take prepares to take the Lease. It returns an error if the Lease differs from the one
// that the elector has read.
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
// the previous leader's clock; the zero time if the Lease does not say, or if a person blanked
// it.
func (l *termLock) ledUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastRenewed
}

// ledBy returns whom the Lease named last before this term took it; "" if this candidate has
// not seen that, or if a person blanked the Lease.
func (l *termLock) ledBy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastHolder
}

// fresh reports whether the Lease was taken or renewed within the last d, and the term has
// not ended. A leader calls it before every write, because the elector notices a failed
// renewal late, and a suspended process notices it only after it continues.
func (l *termLock) fresh(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held && l.ended == nil && time.Since(l.renewed) < d
}

// judge ends the term if the result of a Get shows that it is over.
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
	case err != nil: // an error does not show who holds the Lease
	case record.HolderIdentity == "":
		l.endLocked("a user blanked the Lease")
	case record.HolderIdentity != l.identity:
		l.endLocked("the Lease is " + record.HolderIdentity + "'s")
	case record.RenewTime.Time.Before(l.renewTime):
		// The time goes back only if the store was restored from a backup, or if a user
		// edits the Lease. This term's writes to Nodes may be lost.
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

// Create always fails: the manifests create the Lease, and lockkeeper must not.
func (l *termLock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("there is no Lease, which is a stop; to continue: lockkeeper init")
}

// Update takes, renews or releases the Lease. It renews or releases the Lease only after a
// real Get that names this term. It takes the Lease only after one that shows the record
// that the elector decided on. The resourceVersion of that Get is the precondition. A write that
// takes the Lease outlives the end of ctx, for kube.Timeout at most: one that is cut off may still
// arrive, and a Lease of a process that has stopped keeps everyone out until it expires. The elector
// releases it instead.
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
		if err := ctx.Err(); err != nil {
			return err
		}
		var done context.CancelFunc
		ctx, done = context.WithTimeout(context.WithoutCancel(ctx), kube.Timeout)
		defer done()
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
		// The Lease may have been taken. If a user then blanked it before the next Get,
		// this identity would take it twice. So the term ends.
		l.endLocked("the outcome of taking the Lease is not known: " + err.Error())
	}
	return err
}

// isOthers confirms after a conflict that this term did not take the Lease: the Lease does
// not name it. If a proxy repeated the write, the conflict may be with the first try, which
// succeeded.
func (l *termLock) isOthers(ctx context.Context) bool {
	record, _, err := l.inner.Get(ctx)
	return err == nil && record.HolderIdentity != l.identity
}

// RecordEvent does nothing: terms are logged.
func (l *termLock) RecordEvent(string) {}

// Identity returns the term's epoch.
func (l *termLock) Identity() string { return l.identity }

// Describe returns the Lease's name.
func (l *termLock) Describe() string { return l.inner.Describe() }
