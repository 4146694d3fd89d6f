package systemd

import (
	"context"
	"math/rand/v2"
	"time"
)

// began is a moment before this process began, and another one on each host.
var began = time.Now().Add(-rand.N(time.Hour))

// Aligned returns the time until the next multiple of d since a moment that is the same for the
// whole process, and random: more than 0, and d at most. Waits that end by it end together, so an
// idle process wakes once for all of them; those of different hosts do not.
func Aligned(d time.Duration) time.Duration {
	return d - (time.Since(began)%d+d)%d // a test's clock may be before began
}

// AwaitRead waits until something whose changes are signaled is to be read again: after d, or when
// lost or hint receives, but not before spacing has passed since the last read. The read after it
// also shows what a hint reports that comes while AwaitRead waits, so that is dropped. The error is
// the cause of ctx's end.
func AwaitRead(ctx context.Context, last time.Time, spacing, d time.Duration, lost, hint <-chan struct{}) error {
	if err := pause(ctx, d, lost, hint); err != nil {
		return err
	}
	if err := pause(ctx, spacing-time.Since(last), nil, nil); err != nil {
		return err
	}
	select {
	case <-hint:
	default:
	}
	return nil
}
