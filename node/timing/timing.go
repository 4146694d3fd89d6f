// Package timing has the pauses of the host's goroutines: one that can be ended early, what ends it,
// and jitter. It must not know what its callers wait for.
package timing

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait returns after d, or when kick receives, whichever comes first. kick may be nil. If
// ctx ends, Wait returns its error at once.
func Wait(ctx context.Context, kick <-chan struct{}, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-kick:
	case <-time.After(d):
	}
	return ctx.Err()
}

// Kick ends the present Wait for c, or the next one if there is none. c has room for one value, so Kick does not block.
func Kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Jitter returns d, changed by up to a tenth in either direction, so that hosts do not
// act at the same moment.
func Jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
