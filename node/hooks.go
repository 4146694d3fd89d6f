package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// hookUnits is what hooks need of systemd; [systemd.Units] has it.
type hookUnits interface {
	Wanted(ctx context.Context, target string) ([]string, error)
	RunTarget(ctx context.Context, target string, by time.Time, report func([]systemd.UnitState)) ([]systemd.UnitState, error)
	StopTarget(ctx context.Context, target string) error
}

// hookTarget is the target whose units are the host's own hooks of a stage.
func hookTarget(s v1alpha1.State) string { return "lockkeeper-" + string(s) + ".target" }

const (
	// hookBackoff is how long hook units that failed in before-uncordon rest
	// before they run again, doubling up to hookBackoffMax: the node is out of
	// the cluster meanwhile.
	hookBackoff    = time.Minute
	hookBackoffMax = 10 * time.Minute
	// hookPause is how long a run rests when systemd cannot be talked to.
	hookPause = 2 * time.Second
	// maxHookText bounds, in bytes, what is published of a failure.
	maxHookText = 256
)

// hooks are the host's own hook units: which stages have some, and the run of
// one stage's. Methods may be called from any goroutine but for start and
// leave, which are the loop's.
//
// Nothing about a run is kept but in memory. A process that is started in
// mid-stage runs the units again and takes up those that are still at work, so
// hook units have to be idempotent; the documentation says so.
type hooks struct {
	units hookUnits
	log   *slog.Logger // the loop's: not to be used before the Node is known
	wake  func()

	mu     sync.Mutex
	stages []v1alpha1.State // with units, as last looked at
	looked bool
	run    *hookRun // the present one, or the last one
	// stopping is closed when a run that was left has stopped its units.
	stopping <-chan struct{}
}

// hookRun is one run of a stage's units. The mutex of hooks guards it.
type hookRun struct {
	stage  stage
	cancel context.CancelCauseFunc
	over   bool // it has come to its end, with or without a failure
	// late: the run could not ask systemd in time, and waits for another read that
	// allows it. again then receives until when it may ask.
	late  bool
	again chan time.Time
	ended chan struct{}

	detail   string
	failed   string
	at       time.Time // when it ended
	failures int       // in a row, in this stage
	retried  bool      // a person's retry has been heeded in this stage
}

// errStageLeft ends a run whose stage is no more; its units are stopped.
var errStageLeft = errors.New("the stage was left")

// errHookTimeout ends a run that takes too long.
var errHookTimeout = errors.New("the hook units take too long")

// look sees which stages have units. What was seen before stands while systemd
// cannot be asked.
func (k *hooks) look(ctx context.Context) error {
	var stages []v1alpha1.State
	for _, s := range v1alpha1.States() {
		if !s.HookStage() {
			continue
		}
		units, err := k.units.Wanted(ctx, hookTarget(s))
		if err != nil && !errors.Is(err, systemd.ErrAbsent) {
			return fmt.Errorf("looking for the hook units of %s: %w", s, err)
		}
		if len(units) > 0 {
			stages = append(stages, s)
		}
	}
	k.mu.Lock()
	news := !k.looked || !slices.Equal(k.stages, stages)
	k.stages, k.looked = stages, true
	k.mu.Unlock()
	if news {
		k.wake()
	}
	return nil
}

// seen returns the stages with units; known is false before the first look.
func (k *hooks) seen() (stages []v1alpha1.State, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stages, k.looked
}

// work is what the units of a stage have come to. retry is the turn that a
// person's retry names.
func (k *hooks) work(s stage, retry string) step.Work {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.run
	switch {
	case r == nil || r.stage != s:
		return step.Work{}
	case !r.over:
		return step.Work{Running: true, Late: r.late, Detail: r.detail}
	case r.failed == "":
		return step.Work{Done: true}
	}
	due := time.Since(r.at) >= backoff(r.failures) || retry == s.turn && !r.retried
	return step.Work{Failed: r.failed, Due: due}
}

func backoff(failures int) time.Duration {
	return min(hookBackoff<<min(failures-1, 10), hookBackoffMax)
}

// start lets the units of a stage run, if they do not. It is for the decision
// that they should although they did not when it was made: one that was made
// while they ran must not begin them again when they have ended since. It asks
// systemd only until by: after that, the reads behind the decision are too old.
func (k *hooks) start(ctx context.Context, s stage, retry string, settings Settings, by time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.run != nil && k.run.stage == s && k.run.late {
		k.run.late = false
		k.run.again <- by
		return
	}
	if k.run != nil && k.run.stage == s && !k.run.over || !isClosed(k.stopping) {
		return // whoever comes to an end wakes the loop
	}
	r := &hookRun{stage: s, ended: make(chan struct{}), again: make(chan time.Time, 1)}
	if last := k.run; last != nil && last.stage == s {
		r.failures, r.retried = last.failures, last.retried || retry == s.turn
	}
	var runCtx context.Context
	runCtx, r.cancel = context.WithCancelCause(ctx)
	k.run = r
	systemd.LogEvent(k.log, slog.LevelInfo, v1alpha1.MessageHooksRun, "running the hook units of "+string(s.state), "turn", s.turn, "state", string(s.state))
	go func() {
		defer k.wake()
		defer close(r.ended)
		defer r.cancel(nil)
		k.execute(ctx, runCtx, r, settings, by)
	}()
}

// leave stops the units that run, in the background: their stage is no more.
// What a run that has come to its end has come to is kept.
func (k *hooks) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.run != nil && !k.run.over {
		k.run.cancel(errStageLeft)
		k.stopping, k.run = k.run.ended, nil
	}
}

// wait returns when no run is left. The context of the runs has ended.
func (k *hooks) wait() {
	k.mu.Lock()
	r, stopping := k.run, k.stopping
	k.mu.Unlock()
	if r != nil {
		<-r.ended
	}
	if stopping != nil {
		<-stopping
	}
}

func isClosed(c <-chan struct{}) bool {
	if c == nil {
		return true
	}
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// execute runs the units of a stage to their end. ctx is the process's: when it
// ends the units are left to themselves, for the next process to take up.
func (k *hooks) execute(ctx, runCtx context.Context, r *hookRun, settings Settings, by time.Time) {
	target, began := hookTarget(r.stage.state), time.Now()
	log := k.log.With("turn", r.stage.turn, "state", string(r.stage.state))
	abort := settings.HookAbort && r.stage.state != v1alpha1.StateBeforeUncordon
	var running []string // by name, the ones at work
	overdue := time.AfterFunc(settings.HookTimeout, func() {
		if abort {
			r.cancel(errHookTimeout)
			return
		}
		k.mu.Lock()
		names := strings.Join(running, ", ")
		k.mu.Unlock()
		systemd.LogEvent(log, slog.LevelWarn, v1alpha1.MessageHooksOverdue, "the hook units take longer than they should", "units", names, "timeout", settings.HookTimeout)
	})
	defer overdue.Stop()
	report := func(states []systemd.UnitState) {
		k.mu.Lock()
		running = running[:0:0]
		for _, s := range states {
			if s.Running {
				running = append(running, s.Unit)
			}
		}
		if r.detail = "hook units"; len(running) > 0 {
			r.detail += ": " + strings.Join(running, ", ")
		}
		k.mu.Unlock()
		k.wake()
	}
	for {
		states, err := k.units.RunTarget(runCtx, target, by, report)
		switch {
		case errors.Is(err, systemd.ErrTooLate) && runCtx.Err() == nil:
			k.mu.Lock()
			r.late = true
			k.mu.Unlock()
			k.wake()
			select {
			case by = <-r.again:
			case <-runCtx.Done(): // the next try finds out why
			}
			continue
		case err == nil || states != nil:
			if err != nil {
				log.Warn("the hook units ran, and do not stop", "err", err)
			}
			k.ended(log, r, failures(states))
			return
		case ctx.Err() != nil:
			return
		case context.Cause(runCtx) == errStageLeft:
			k.stop(ctx, log, target, "their stage is over")
			return
		case context.Cause(runCtx) == errHookTimeout:
			k.stop(ctx, log, target, "they take too long")
			k.mu.Lock()
			names := running
			k.mu.Unlock()
			k.ended(log, r, overran(names, settings.HookTimeout, time.Since(began)))
			return
		}
		log.Warn("the hook units cannot be run for now", "err", err, "again_in", hookPause)
		k.mu.Lock()
		r.detail = fmt.Sprintf("systemd, to run its hook units: %v", err)
		k.mu.Unlock()
		k.wake()
		_ = wait(runCtx, nil, hookPause) // the next try finds out that it is over
	}
}

// stop stops the units of a target.
func (k *hooks) stop(ctx context.Context, log *slog.Logger, target, why string) {
	log.Info("stopping the hook units: "+why, "target", target)
	if err := k.units.StopTarget(ctx, target); err != nil {
		log.Warn("the hook units do not stop", "err", err)
	}
}

// ended notes what a run has come to; failed is "" or what failed.
func (k *hooks) ended(log *slog.Logger, r *hookRun, failed string) {
	k.mu.Lock()
	r.over, r.at, r.failed = true, time.Now(), failed
	if failed == "" {
		r.failures = 0
	} else {
		r.failures++
	}
	k.mu.Unlock()
	if failed == "" {
		systemd.LogEvent(log, slog.LevelInfo, v1alpha1.MessageHooksDone, "the hook units are done")
		return
	}
	systemd.LogEvent(log, slog.LevelError, v1alpha1.MessageHooksFailed, failed, systemd.ReasonAttr(v1alpha1.ReasonHookFailed))
}

// failures says which units failed and where to look, or "".
func failures(states []systemd.UnitState) string {
	var texts []string
	for _, s := range states {
		if s.Failed != "" {
			texts = append(texts, fmt.Sprintf("%s %s: journalctl -u %s", s.Unit, failedHow(s.Failed), s.Unit))
		}
	}
	return bounded(texts)
}

// failedHow makes a sentence of systemd's word, such as "failed (exit-code)".
func failedHow(word string) string {
	if word == "failed" || strings.HasPrefix(word, "was ") {
		return word
	}
	return "failed (" + word + ")"
}

// overran says which units still ran at the timeout.
func overran(units []string, limit, after time.Duration) string {
	if len(units) == 0 {
		return fmt.Sprintf("systemd did not say within %v how the hook units fare", limit)
	}
	texts := make([]string, 0, len(units))
	for _, u := range units {
		texts = append(texts, fmt.Sprintf("%s still ran after %v and was stopped: journalctl -u %s", u, max(limit, after).Round(time.Second), u))
	}
	return bounded(texts)
}

// bounded joins texts, at most maxHookText bytes of them, the first one cut if
// need be.
func bounded(texts []string) string {
	for n := len(texts); n > 0; n-- {
		text := strings.Join(texts[:n], "; ")
		if n < len(texts) {
			text += fmt.Sprintf("; and %d more", len(texts)-n)
		}
		if len(text) <= maxHookText {
			return text
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return cmp.Or(clipTo(texts[0], maxHookText), "a hook unit failed")
}

// clipTo cuts text to at most limit bytes, without splitting a rune.
func clipTo(text string, limit int) string {
	return strings.ToValidUTF8(text[:min(len(text), limit)], "")
}
