// Package effect carries out what a host does to itself in a turn: it drains the node,
// runs hook units, carries out the steps of a plan and calls the reboot. One runner starts
// and cancels each of these, and keeps its progress and its result.
//
// Nothing here decides when something begins: package step does. The package must not know
// the coordinator, the Lease or other nodes.
package effect

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Stage is one state of one turn.
type Stage struct {
	Turn  string
	State v1alpha1.State
}

// StageOf returns the stage that a Node is in.
func StageOf(n *turn.Node) Stage { return Stage{n.Turn, n.State} }

const (
	// retryPause is the pause before systemd is asked again after it gave no answer.
	retryPause = 2 * time.Second
	// maxText bounds, in bytes, what is published of a failure.
	maxText = 256
)

var (
	// errLeft ends a run whose stage the host has left.
	errLeft = errors.New("the host left the stage")
	// errProcessEnds ends a run together with this process.
	errProcessEnds = errors.New("lockkeeper stops")
)

// runner runs one kind of effect, one run at a time. It remembers the last run. Its
// methods may be called from any goroutine.
type runner struct {
	wake func() // called when a run reports progress or ends; it must not block

	mu   sync.Mutex
	last *run // nil: there was none
}

// run is the work of one effect in one stage. The runner's mutex guards it.
type run struct {
	stage  Stage
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when it has ended
	detail string        // what it does or waits for
	err    error         // why it ended; nil means that it is done
	at     time.Time     // when it ended
}

func (x *run) running() bool {
	if x == nil {
		return false
	}
	select {
	case <-x.ended:
		return false
	default:
		return true
	}
}

// begin starts do for a stage, and reports whether it did: it does not while an earlier
// run has not ended. The end of that one calls wake.
//
// do returns nil if the work is done, and an error that wraps [systemd.ErrTooLate] if its
// next part needs another read. If its context ends before the work does, it returns any
// error.
func (r *runner) begin(ctx context.Context, s Stage, detail string, do func(context.Context) error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.running() {
		return false
	}
	r.beginLocked(ctx, s, detail, do)
	return true
}

// beginLocked is begin for a caller that holds mu, while no run has not ended.
func (r *runner) beginLocked(ctx context.Context, s Stage, detail string, do func(context.Context) error) {
	x := &run{stage: s, detail: detail, ended: make(chan struct{})}
	ctx, x.cancel = context.WithCancelCause(ctx)
	r.last = x
	go func() {
		defer r.wake()
		err := do(ctx)
		if err != nil && ctx.Err() != nil {
			if err = errProcessEnds; context.Cause(ctx) == errLeft {
				err = errLeft
			}
		}
		x.cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		x.err, x.at = err, time.Now()
		close(x.ended)
	}()
}

// report records what the present run does or waits for.
func (r *runner) report(detail string) {
	r.mu.Lock()
	r.last.detail = detail
	r.mu.Unlock()
	r.wake()
}

// work returns the progress of a stage's run. It is zero if there was none, or if the host
// left the stage meanwhile: then the work may begin again.
func (r *runner) work(s Stage) step.Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch x := r.last; {
	case x == nil || x.stage != s:
		return step.Work{}
	case x.running() || x.err == errProcessEnds:
		return step.Work{Running: true, Detail: x.detail}
	case x.err == nil:
		return step.Work{Done: true}
	case x.err == errLeft:
		return step.Work{}
	case errors.Is(x.err, systemd.ErrTooLate):
		return step.Work{Running: true, Late: true, Detail: x.detail}
	default:
		return step.Work{Failed: cmp.Or(clip(x.err.Error()), "a step failed")}
	}
}

// ended returns when the last run ended; the time is zero if it has not, or if there was
// none.
func (r *runner) ended() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.last.running() {
		return time.Time{}
	}
	return r.last.at
}

// leave cancels the run, unless it is for the stage s. It does not wait for its end.
func (r *runner) leave(s Stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && r.last.stage != s {
		r.last.cancel(errLeft)
	}
}

// Wait returns when no run is left.
func (r *runner) Wait() {
	r.mu.Lock()
	x := r.last
	r.mu.Unlock()
	if x != nil {
		<-x.ended
	}
}

// clip cuts text to at most maxText bytes, without splitting a rune.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}
