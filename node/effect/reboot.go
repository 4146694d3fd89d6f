package effect

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// Logind is what this package needs of logind; [systemd.Logind] has it.
type Logind interface {
	Reboot(ctx context.Context) error
	RebootUnderway(ctx context.Context) (bool, error)
}

// Reboot calls the reboot of a turn.
type Reboot struct {
	runner
	logind   Logind
	shutdown *Shutdown
	bootID   string
	log      *slog.Logger
}

// NewReboot returns a Reboot out of the present boot. wake must not block.
func NewReboot(logind Logind, shutdown *Shutdown, bootID string, log *slog.Logger, wake func()) *Reboot {
	return &Reboot{runner: runner{wake: wake}, logind: logind, shutdown: shutdown, bootID: bootID, log: log}
}

// Call asks logind for the reboot of a stage, and waits for the answer, until by at most:
// after that, the reads behind the decision are too old. An error says that logind neither
// reboots nor refuses; the caller reads again and decides again. A refusal is not an error:
// see [Reboot.Refusal].
func (r *Reboot) Call(ctx context.Context, s Stage, by time.Time) error {
	systemd.LogEvent(r.log, slog.LevelInfo, v1alpha1.MessageRebootCalled, "rebooting", "turn", s.Turn, "state", s.State.String(), "boot", r.bootID)
	var failed error
	r.begin(ctx, s, "the reboot", func(ctx context.Context) error {
		ctx, cancel := context.WithDeadline(ctx, by)
		defer cancel()
		err := r.logind.Reboot(ctx)
		if err == nil {
			r.shutdown.Set(step.ShutdownUnderway)
			return nil
		}
		r.shutdown.Set(step.ShutdownUnknown)
		if !refuses(err) {
			failed = err
			return nil
		}
		systemd.LogEvent(r.log, slog.LevelError, v1alpha1.MessageRebootRefused, "logind refuses to reboot", "turn", s.Turn, "state", s.State.String(), "err", err)
		return err
	})
	r.Wait()
	return failed
}

// Refusal returns logind's message if it refused the reboot of a stage, or "".
func (r *Reboot) Refusal(s Stage) string { return r.work(s).Failed }

// refuses reports whether an error of logind's refuses the turn. These do not:
//   - A shutdown is under way already, a user's or this host's own from before a restart of
//     lockkeeper. It may also be a suspend. The next step asks logind.
//   - An inhibitor was taken since the host read them. The next read names it, and the turn
//     waits for it.
//   - logind did not answer, does not run, or there is no bus. The next step asks whether a
//     reboot is under way, and the query for inhibitors starts logind.
func refuses(err error) bool {
	e, ok := errors.AsType[*systemd.CallError](err)
	return ok && e.Refused() && e.Name != "" && e.Name != "org.freedesktop.login1.OperationInProgress" &&
		!systemd.Inhibited(err) && !errors.Is(err, systemd.ErrAbsent)
}

const (
	// noShutdownFor is how long "no shutdown is under way" holds without another query.
	noShutdownFor = 10 * time.Second
	// shutdownFor is the same for "a shutdown is under way". It is bounded because a
	// shutdown that hangs must not silence the host indefinitely.
	shutdownFor = 2 * time.Minute
)

// Shutdown remembers for a while whether the host is shutting down. The zero value knows
// nothing. Its methods may be called from any goroutine.
type Shutdown struct {
	mu    sync.Mutex
	state step.Shutdown
	at    time.Time
}

// Set records what logind reported just now.
func (s *Shutdown) Set(state step.Shutdown) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.at = state, time.Now()
}

// State returns what logind reported, or ShutdownUnknown if that was too long ago.
func (s *Shutdown) State() step.Shutdown {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := time.Since(s.at)
	if s.state == step.ShutdownNone && age < noShutdownFor || s.state == step.ShutdownUnderway && age < shutdownFor {
		return s.state
	}
	return step.ShutdownUnknown
}

// Read asks logind whether a shutdown is under way.
func (s *Shutdown) Read(ctx context.Context, logind Logind) error {
	underway, err := logind.RebootUnderway(ctx)
	if err != nil {
		return err
	}
	state := step.ShutdownNone
	if underway {
		state = step.ShutdownUnderway
	}
	s.Set(state)
	return nil
}
