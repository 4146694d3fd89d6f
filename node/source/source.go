// Package source reads what on a host asks for a disruption: the update engine, sentinel
// files, watched files and units. It also finds other reboot managers, which would disrupt
// the host without a turn.
//
// It must not know what a change costs, who decides that, or that there is a cluster.
package source

import (
	"context"
	"log/slog"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
)

// Options are what sentinels and reboot managers are read with.
type Options struct {
	// Root is below which the host's files are read, "/" except in tests.
	Root string
	// PollInterval is how often a source is read without a signal that it has changed.
	PollInterval time.Duration
	Log          *slog.Logger
	// Changed is called after a read that showed something new. It must not block.
	Changed func()
}

// poll calls read at once, after each kick and at least every interval, until ctx ends.
// Between two calls it pauses, however often it is kicked. It logs the first error in a
// row; problem says what failed and what happens now.
func (o *Options) poll(ctx context.Context, kick <-chan struct{}, pause time.Duration, problem string, read func() error) {
	failed := false
	for {
		err := read()
		ended := time.Now()
		if err != nil && !failed && ctx.Err() == nil {
			o.Log.Warn(problem, "err", err)
		}
		failed = err != nil
		if systemd.AwaitRead(ctx, ended, pause, systemd.Aligned(o.PollInterval), nil, kick) != nil {
			return
		}
	}
}

// unreadFor is how long the reads of a source have to fail before that lasts. A service that
// restarts is back before that.
const unreadFor = 10 * time.Second

// failing records since when the reads of a source fail. The zero value means that the last one
// did not.
type failing struct {
	err         error // of the last read
	since, last time.Time
}

// set records the result of a read that ended at that time. It reports whether failures have
// begun or ceased to last.
func (f *failing) set(err error, at time.Time) (changed bool) {
	was := f.lasting() != nil
	if f.err == nil {
		f.since = at
	}
	f.err, f.last = err, at
	return was != (f.lasting() != nil)
}

// lasting returns the error of the last read if reads have failed for unreadFor, otherwise nil. A
// single read that failed does not last, however long ago it was.
func (f *failing) lasting() error {
	if f.err == nil || f.last.Sub(f.since) < unreadFor {
		return nil
	}
	return f.err
}
