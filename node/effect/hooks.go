package effect

import (
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
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/systemd"
)

// HookSystemd is what hooks need of systemd; [systemd.Units] has it.
type HookSystemd interface {
	Wanted(ctx context.Context, target string) ([]string, error)
	RunTarget(ctx context.Context, target string, by time.Time, report func([]systemd.UnitState)) ([]systemd.UnitState, error)
	StopTarget(ctx context.Context, target string) error
	Begun(ctx context.Context, targets []string) ([]string, error)
}

// hookTarget returns the target whose units are the host's own hooks of a stage.
func hookTarget(s v1alpha1.State) string { return "lockkeeper-" + string(s) + ".target" }

// HookStages knows which stages have hook units on this host. Its methods may be called
// from any goroutine.
type HookStages struct {
	units HookSystemd
	wake  func()

	reading chan struct{} // holds a value during a read: one at a time, so that the last one counts

	mu     sync.Mutex
	stages []v1alpha1.State
	read   bool
}

// NewHookStages returns a HookStages that has read nothing yet. It calls wake when the
// stages change; wake must not block.
func NewHookStages(units HookSystemd, wake func()) *HookStages {
	return &HookStages{units: units, wake: wake, reading: make(chan struct{}, 1)}
}

// Read asks systemd which stages have units. If systemd does not answer, the stages stay
// as they were read before. That includes a bus without systemd, as it is for a moment
// whenever the bus restarts: a turn must not continue without the units of its stage.
func (k *HookStages) Read(ctx context.Context) error {
	select {
	case k.reading <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting to read the hook units: %w", context.Cause(ctx))
	}
	defer func() { <-k.reading }()
	var stages []v1alpha1.State
	for _, s := range v1alpha1.States() {
		if !s.HookStage() {
			continue
		}
		units, err := k.units.Wanted(ctx, hookTarget(s))
		if err != nil {
			return fmt.Errorf("reading the hook units of %s: %w", s, err)
		}
		if len(units) > 0 {
			stages = append(stages, s)
		}
	}
	k.mu.Lock()
	changed := !k.read || !slices.Equal(k.stages, stages)
	k.stages, k.read = stages, true
	k.mu.Unlock()
	if changed {
		k.wake()
	}
	return nil
}

// Stages returns the stages with units; known is false before the first read.
func (k *HookStages) Stages() (stages []v1alpha1.State, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stages, k.read
}

const (
	// hookBackoff is the pause before hook units that failed in before-uncordon run
	// again. It doubles up to hookBackoffMax, because the node is out of the cluster
	// meanwhile.
	hookBackoff    = time.Minute
	hookBackoffMax = 10 * time.Minute
)

// HookLimit bounds how long the hook units of a stage may take.
type HookLimit struct {
	Timeout time.Duration // 1s to 24h
	// Abort stops the units at the timeout, and they have failed. In before-uncordon
	// the host waits for them nevertheless.
	Abort bool
}

// Hooks runs the host's own hook units. Start and Leave are for the loop's goroutine.
//
// The progress of a run is only in memory. A process that starts in the middle of a stage
// runs the units again, and waits for those that still run. So hook units have to be
// idempotent; the documentation says so. A process stops those that an earlier one has begun
// in a stage which the host has left.
type Hooks struct {
	runner
	units HookSystemd
	log   *slog.Logger

	// earlier means that units which an earlier process has begun may still run, and that
	// this process has not looked for them yet; mu guards it.
	earlier bool

	// The rest is about the stage of the last run; mu guards it.
	began    time.Time
	late     bool     // it ended because its units need another read
	running  []string // names of the units that run
	failures int      // in a row
	retried  bool     // an admin's retry was used
}

// NewHooks returns a Hooks. wake must not block.
func NewHooks(units HookSystemd, log *slog.Logger, wake func()) *Hooks {
	return &Hooks{runner: runner{wake: wake}, units: units, log: log, earlier: true}
}

// Work returns the progress of a stage's units. retry is the turn that an admin's retry
// names, or "". In another stage than those of hooks, Running means that units are to stop.
func (h *Hooks) Work(s Stage, retry string) step.Work {
	if !s.State.HookStage() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.earlier || h.last.running() {
			return step.Work{Running: true, Detail: "its hook units to stop"}
		}
		return step.Work{}
	}
	w := h.work(s)
	if w.Failed != "" {
		pause := time.Since(h.ended())
		h.mu.Lock()
		w.Due = pause >= backoff(h.failures) || retry == s.Turn && !h.retried
		h.mu.Unlock()
	}
	return w
}

func backoff(failures int) time.Duration {
	return min(hookBackoff<<min(failures-1, 10), hookBackoffMax)
}

// Start runs the units of a stage unless they run. It asks systemd only until by: after
// that, the reads behind the decision are too old.
func (h *Hooks) Start(ctx context.Context, s Stage, retry string, limit HookLimit, by time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.last.running():
		return
	case h.earlier:
		h.stopEarlier(ctx, s.State) // its end has the loop decide again
		return
	case h.late && h.last.stage != s:
		h.stopLate(ctx) // so has this one's
		return
	}
	detail := "hook units"
	if again := h.last != nil && h.last.stage == s; again && h.late {
		detail = h.last.detail // the run continues
	} else {
		h.began, h.running = time.Now(), nil
		if again {
			h.retried = h.retried || retry == s.Turn
		} else {
			h.failures, h.retried = 0, false
		}
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageHooksRun, "running the hook units of "+string(s.State), "turn", s.Turn, "state", string(s.State))
	}
	h.late = false
	x := hookRun{Hooks: h, target: hookTarget(s.State), log: h.log.With("turn", s.Turn, "state", string(s.State)), timeout: limit.Timeout}
	end := h.began.Add(limit.Timeout)
	h.beginLocked(ctx, s, detail, func(runCtx context.Context) error {
		if limit.Abort && s.State != v1alpha1.StateBeforeUncordon {
			var cancel context.CancelFunc
			runCtx, cancel = context.WithDeadlineCause(runCtx, end, errHookTimeout)
			defer cancel()
		} else if left := time.Until(end); left > 0 {
			defer time.AfterFunc(left, x.overdue).Stop()
		}
		return x.execute(ctx, runCtx, by)
	})
}

// Leave stops the units that run, in the background, because the host has left their
// stage for the state at, or nothing is to run in it any more. It keeps the result of a run
// that has ended.
func (h *Hooks) Leave(ctx context.Context, at v1alpha1.State) {
	h.leave(Stage{})
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.last.running():
	case h.late:
		h.stopLate(ctx)
	case h.earlier && !at.HookStage():
		h.stopEarlier(ctx, "")
	}
}

// earlierBound is how long the process tries to stop the units that an earlier one has begun.
const earlierBound = 2 * time.Minute

// stopEarlier stops the units that an earlier process has begun in any other stage than but. The
// caller holds mu.
func (h *Hooks) stopEarlier(ctx context.Context, but v1alpha1.State) {
	h.earlier = false
	var targets []string
	for _, s := range v1alpha1.States() {
		if s.HookStage() && s != but {
			targets = append(targets, hookTarget(s))
		}
	}
	h.beginLocked(ctx, Stage{}, "the hook units of an earlier process", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, earlierBound)
		defer cancel()
		for {
			begun, err := h.units.Begun(ctx, targets)
			if err == nil {
				for _, target := range begun {
					x := hookRun{Hooks: h, target: target, log: h.log}
					x.stop(ctx, "an earlier process began them, in a stage that the host has left")
				}
				return errLeft
			}
			if waited := timing.Wait(ctx, nil, retryPause); waited != nil {
				if errors.Is(waited, context.DeadlineExceeded) { // otherwise this process ends, and the next one looks again
					h.log.Warn("cannot tell whether hook units of an earlier process still run; lockkeeper does not stop them", "err", err)
				}
				return errLeft
			}
		}
	})
}

// stopLate stops the units of the last run, which was late: no other run of this process
// would stop what an earlier process started. The caller holds mu.
func (h *Hooks) stopLate(ctx context.Context) {
	h.late = false
	x := hookRun{Hooks: h, target: hookTarget(h.last.stage.State), log: h.log}
	h.beginLocked(ctx, h.last.stage, h.last.detail, func(context.Context) error {
		x.stop(ctx, "the host left their stage")
		return errLeft
	})
}

// errHookTimeout ends a run that takes too long.
var errHookTimeout = errors.New("the hook units take too long")

// hookRun is one run of a stage's units.
type hookRun struct {
	*Hooks
	target  string
	log     *slog.Logger
	timeout time.Duration
}

// execute runs the units to their end. ctx is the process's: if it ends, the units
// continue, and the next process waits for them.
func (x *hookRun) execute(ctx, runCtx context.Context, by time.Time) error {
	for {
		states, err := x.units.RunTarget(runCtx, x.target, by, x.progress)
		switch {
		case errors.Is(err, systemd.ErrTooLate) && runCtx.Err() == nil:
			x.mu.Lock()
			x.late = true
			x.mu.Unlock()
			return err
		case err == nil || states != nil:
			if err != nil {
				x.log.Warn("the hook units have run, but their target does not stop", "err", err)
			}
			return x.result(failures(states))
		case ctx.Err() != nil:
			return ctx.Err()
		case context.Cause(runCtx) == errHookTimeout:
			x.stop(ctx, "they take too long")
			return x.result(timedOut(x.names(), x.timeout, time.Since(x.started())))
		case runCtx.Err() != nil:
			x.stop(ctx, "the host left their stage")
			return runCtx.Err()
		}
		x.log.Warn("systemd cannot run the hook units; lockkeeper tries again", "err", err, "again_in", retryPause)
		x.report(fmt.Sprintf("hook units, which systemd cannot run: %v", err))
		_ = timing.Wait(runCtx, nil, retryPause) // the next attempt notices that it ended
	}
}

// progress records which units run.
func (x *hookRun) progress(states []systemd.UnitState) {
	var running []string
	for _, s := range states {
		if s.Running {
			running = append(running, s.Unit)
		}
	}
	x.mu.Lock()
	x.running = running
	x.mu.Unlock()
	detail := "hook units"
	if len(running) > 0 {
		detail += ": " + strings.Join(running, ", ")
	}
	x.report(detail)
}

func (x *hookRun) names() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.running
}

func (x *hookRun) started() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.began
}

// overdue logs that the units take longer than they may, where the host waits for them.
func (x *hookRun) overdue() {
	systemd.LogEvent(x.log, slog.LevelWarn, v1alpha1.MessageHooksOverdue, "the hook units take longer than hooks.timeout; the host waits for them", "units", strings.Join(x.names(), ", "), "timeout", x.timeout)
}

// stop stops the units.
func (x *hookRun) stop(ctx context.Context, why string) {
	x.log.Info("stopping the hook units: "+why, "target", x.target)
	if err := x.units.StopTarget(ctx, x.target); err != nil {
		x.log.Warn("the hook units do not stop", "err", err)
	}
}

// result records the result of the run; failed says what failed, or is "".
func (x *hookRun) result(failed string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if failed == "" {
		x.failures = 0
		systemd.LogEvent(x.log, slog.LevelInfo, v1alpha1.MessageHooksDone, "the hook units are done")
		return nil
	}
	x.failures++
	systemd.LogEvent(x.log, slog.LevelError, v1alpha1.MessageHooksFailed, failed, systemd.ReasonAttr(v1alpha1.ReasonHookFailed))
	return errors.New(failed)
}

// failures returns which units failed and where to find out more, or "".
func failures(states []systemd.UnitState) string {
	var texts []string
	for _, s := range states {
		switch {
		case s.Failed == "":
		case s.Failed == "failed" || strings.HasPrefix(s.Failed, "was "):
			texts = append(texts, fmt.Sprintf("%s %s: journalctl -u %s", s.Unit, s.Failed, s.Unit))
		default: // systemd's result, for example "exit-code"
			texts = append(texts, fmt.Sprintf("%s failed (%s): journalctl -u %s", s.Unit, s.Failed, s.Unit))
		}
	}
	return joinFailures(texts)
}

// timedOut returns which units still ran at the timeout.
func timedOut(units []string, limit, after time.Duration) string {
	if len(units) == 0 {
		return fmt.Sprintf("systemd did not report the state of the hook units within %v", limit)
	}
	texts := make([]string, 0, len(units))
	for _, u := range units {
		texts = append(texts, fmt.Sprintf("%s still ran after %v and was stopped: journalctl -u %s", u, max(limit, after).Round(time.Second), u))
	}
	return joinFailures(texts)
}

// joinFailures joins texts to at most maxText bytes. It leaves out the last ones, and cuts
// the first one if that alone is too long.
func joinFailures(texts []string) string {
	for n := len(texts); n > 0; n-- {
		text := strings.Join(texts[:n], "; ")
		if n < len(texts) {
			text += fmt.Sprintf("; and %d more", len(texts)-n)
		}
		if len(text) <= maxText {
			return text
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return clip(texts[0])
}
