package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// drainRun is the eviction that runs, or has run, for one stage. It belongs to
// the loop's goroutine but for done, which the eviction's own closes.
type drainRun struct {
	stage    stage
	eviction step.Eviction
	cancel   context.CancelFunc
	done     chan struct{}
	err      error     // valid once done is closed
	at       time.Time // when it ended, as well
}

func (r *drainRun) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *drainRun) running(s stage) bool { return r.cancel != nil && r.stage == s && !r.ended() }

// serves reports whether this run is what the stage needs. seen is as in
// startDrain.
func (r *drainRun) serves(s stage, e step.Eviction, seen bool) bool {
	if r.running(s) {
		return reflect.DeepEqual(e, r.eviction)
	}
	return seen && (r.eviction.Force || !e.Force)
}

func (r *drainRun) completed(s stage) bool {
	return r.cancel != nil && r.stage == s && r.ended() && r.err == nil
}

// endedSince reports whether the eviction came to its end after t.
func (r *drainRun) endedSince(t time.Time) bool { return r.cancel != nil && r.ended() && r.at.After(t) }

// stop ends the eviction and waits for it: after that no eviction is sent.
func (r *drainRun) stop() {
	if r.cancel != nil {
		r.cancel()
		<-r.done
	}
	*r = drainRun{}
}

// startDrain lets the eviction of a stage run. seen is whether it ran when the
// decision was made: one that has come to its end since is not begun again,
// its end is what the next decision is made of.
//
// An eviction that becomes a forced one starts again, and so does one that runs
// while the host's own policy allows less than it did.
func (h *Host) startDrain(ctx context.Context, s stage, e step.Eviction, seen bool) {
	if h.drain.serves(s, e, seen) {
		return
	}
	h.drain.stop()
	ctx, cancel := context.WithCancel(ctx)
	h.drain = drainRun{stage: s, eviction: e, cancel: cancel, done: make(chan struct{})}
	h.setProgress(drain.Progress{})
	systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageEvicting, "evicting the node's pods", "turn", s.turn, "state", s.state.String())
	if e.Force {
		h.log.Warn("the drain is overdue, and its policy has pods deleted: PodDisruptionBudgets are not asked any more", "turn", s.turn)
	}
	run, drainer := &h.drain, h.drainer(e)
	done := h.drain.done
	go func() {
		err := drainer.Run(ctx, func(p drain.Progress) {
			h.setProgress(p)
			h.wake()
		})
		run.err, run.at = err, time.Now()
		if err != nil && !errors.Is(err, context.Canceled) {
			h.log.Warn("the eviction of the node's pods ended", "turn", s.turn, "err", err)
		}
		close(done)
		h.wake()
	}()
}

func (h *Host) drainer(e step.Eviction) *drain.Drainer {
	options := []drain.Option{drain.WithLogger(h.log), drain.WithPolicy(drain.Selecting(e.Block, e.Skip...))}
	if e.Force {
		options = append(options, drain.WithForce())
	}
	return drain.New(h.client, h.name, options...)
}

func (h *Host) setProgress(p drain.Progress) {
	h.mu.Lock()
	h.progress = p
	h.mu.Unlock()
}

// drainDetail is a drain's progress for people: how many pods are left, and
// what holds the one that is stuck longest.
func drainDetail(p drain.Progress) string {
	text := fmt.Sprintf("%d pods to go, %d evicted", p.Evictable, p.Evicted)
	if len(p.Blockers) > 0 {
		b := p.Blockers[0]
		text += fmt.Sprintf("; %s since %s: %s: %s", b.Pod, b.Since.UTC().Format(time.TimeOnly), b.Reason, b.Message)
	}
	if p.Err != nil {
		text += fmt.Sprintf("; %v", p.Err)
	}
	return text
}

// rebootCall is what became of the reboot that this process called.
type rebootCall struct {
	turn    string
	refused string // logind's words
}

func (r *rebootCall) refusal(turnID string) string {
	if r.turn == turnID {
		return r.refused
	}
	return ""
}

// reboot asks logind for the reboot that this turn has committed to.
func (h *Host) reboot(ctx context.Context, n *turn.Node) error {
	if !h.fresh.valid() {
		return nil // it took too long to come here: everything is read again
	}
	systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageRebootCalled, "rebooting", "turn", n.Turn, "state", n.State.String(), "boot", h.self.bootID)
	// The call ends when the reads are too old.
	call, cancel := context.WithDeadline(ctx, h.fresh.began.Add(maxReadAge))
	defer cancel()
	err := h.Logind.Reboot(call)
	if err == nil {
		h.setShutdown(step.ShutdownUnderway)
		return nil
	}
	// Whatever it was: look again before anything else is tried.
	h.fresh = nil
	h.setShutdown(step.ShutdownUnknown)
	e, ok := errors.AsType[*systemd.CallError](err)
	if ok && e.Name == "org.freedesktop.login1.OperationInProgress" {
		// One is under way already, somebody's or our own from before a
		// restart: no refusal. The next step asks. It comes after a pause,
		// because what is in progress may be no shutdown but a suspend.
		return hostError{err}
	}
	if systemd.Inhibited(err) {
		// It was taken between our look and the call. The next look names it,
		// and the turn waits for it like for any other.
		return hostError{err}
	}
	if ok && e.Refused() && e.Name != "" && !errors.Is(err, systemd.ErrAbsent) {
		systemd.LogEvent(h.log, slog.LevelError, v1alpha1.MessageRebootRefused, "logind refuses to reboot", "turn", n.Turn, "state", n.State.String(), "err", err)
		h.rebooted.turn, h.rebooted.refused = n.Turn, err.Error()
		h.wake()
		return nil
	}
	// logind did not answer, or did not run, or there was no bus. None of these
	// refuses the turn: the next step asks whether a reboot is under way, and the
	// query for inhibitors starts logind.
	return hostError{err}
}

// shutdownWord is the last word on whether the host goes down.
type shutdownWord struct {
	word step.Shutdown
	at   time.Time
}

const (
	// noneFor is how long "no shutdown is under way" is believed.
	noneFor = 10 * time.Second
	// underwayFor is how long "under way" is believed without asking again:
	// a shutdown that hangs must not silence the host indefinitely.
	underwayFor = 2 * time.Minute
)

func (w shutdownWord) valid() step.Shutdown {
	age := time.Since(w.at)
	if w.word == step.ShutdownNone && age < noneFor || w.word == step.ShutdownUnderway && age < underwayFor {
		return w.word
	}
	return step.ShutdownUnknown
}

func (h *Host) setShutdown(word step.Shutdown) {
	h.mu.Lock()
	h.shutdown = shutdownWord{word, time.Now()}
	h.mu.Unlock()
}

func (h *Host) askShutdown(ctx context.Context) error {
	underway, err := h.Logind.RebootUnderway(ctx)
	if err != nil {
		return err
	}
	word := step.ShutdownNone
	if underway {
		word = step.ShutdownUnderway
	}
	h.setShutdown(word)
	return nil
}

// shutdownChanged is told by logind's PrepareForShutdown.
func (h *Host) shutdownChanged(active bool) {
	if h.ShutdownChanged != nil {
		h.ShutdownChanged(active)
	}
	word := step.ShutdownNone
	if active {
		word = step.ShutdownUnderway
		systemd.LogEvent(h.Log, slog.LevelInfo, v1alpha1.MessageShutdown, "the host begins to shut down", "node", h.Name())
	}
	h.setShutdown(word)
	h.wake()
}
