package effect

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// lastDrain returns a Drain whose last run belongs to a stage. It has no client, so a new eviction panics.
func lastDrain(s Stage, e step.Eviction, ended bool) *Drain {
	d := NewDrain(nil, "n1", slog.New(slog.DiscardHandler), func() {})
	d.eviction, d.last = e, &run{stage: s, cancel: func(error) {}, ended: make(chan struct{}), at: time.Now()}
	if ended {
		close(d.last.ended)
	}
	return d
}

// TestEvictionThatEndedMeanwhileIsNotBegunAgain checks an eviction of a few pods that ends between the observation and
// the decision to continue it. If it started again, it would end as fast, and so on.
func TestEvictionThatEndedMeanwhileIsNotBegunAgain(t *testing.T) {
	s := Stage{"t1", v1alpha1.StateDraining}
	d := lastDrain(s, step.Eviction{}, true)
	d.Start(t.Context(), s, step.Eviction{}, true)
	if !d.Work(s).Complete {
		t.Error("the result of the eviction is lost")
	}
}

// TestEvictionThatServes checks that a running eviction starts again if it must change, in either direction, and that a
// finished eviction starts again only for pods that it did not evict.
func TestEvictionThatServes(t *testing.T) {
	s, other := Stage{"t1", v1alpha1.StateDraining}, Stage{"t2", v1alpha1.StateDraining}
	plain, force := step.Eviction{}, step.Eviction{Force: true}
	skip := step.Eviction{Skip: [][]v1alpha1.PodSelector{{{Namespace: "logs"}}}}
	for _, c := range []struct {
		name   string
		drain  *Drain
		stage  Stage
		e      step.Eviction
		ran    bool
		serves bool
	}{
		{"none yet", NewDrain(nil, "n1", nil, nil), s, plain, false, false},
		{"it runs", lastDrain(s, plain, false), s, plain, true, true},
		{"it began since", lastDrain(s, skip, false), s, skip, false, true},
		{"it is to force", lastDrain(s, plain, false), s, force, true, false},
		{"it is not to force any more", lastDrain(s, force, false), s, plain, true, false},
		{"it is not to skip any more", lastDrain(s, skip, false), s, plain, true, false},
		{"another turn's", lastDrain(s, plain, false), other, plain, false, false},
		{"it has ended since", lastDrain(s, plain, true), s, plain, true, true},
		{"it had ended before", lastDrain(s, plain, true), s, plain, false, false},
		{"it has ended, and is to force", lastDrain(s, plain, true), s, force, true, false},
		{"it has ended, and is not to force", lastDrain(s, force, true), s, plain, true, true},
	} {
		if got := c.drain.serves(c.stage, c.e, c.ran); got != c.serves {
			t.Errorf("%s: %t, expected %t", c.name, got, c.serves)
		}
	}
}

// logindOf answers a call to reboot with err.
type logindOf struct{ err error }

func (l logindOf) Reboot(ctx context.Context) error           { return errors.Join(l.err, ctx.Err()) }
func (logindOf) RebootUnderway(context.Context) (bool, error) { return false, nil }

// TestReboot checks that only a refusal by logind itself ends the turn. After any other error the host reads and
// decides again.
func TestReboot(t *testing.T) {
	s := Stage{"t1", v1alpha1.StateRebooting}
	call := func(name string) error { return &systemd.CallError{Name: name} }
	for name, c := range map[string]struct {
		err      error
		by       time.Duration
		failed   bool
		refused  bool
		shutdown step.Shutdown
	}{
		"called":           {nil, time.Minute, false, false, step.ShutdownUnderway},
		"refused":          {call("org.freedesktop.DBus.Error.AccessDenied"), time.Minute, false, true, step.ShutdownUnknown},
		"under way":        {call("org.freedesktop.login1.OperationInProgress"), time.Minute, true, false, step.ShutdownUnknown},
		"no bus":           {errors.New("connection refused"), time.Minute, true, false, step.ShutdownUnknown},
		"reads too old":    {nil, -time.Nanosecond, true, false, step.ShutdownUnknown},
		"logind not there": {systemd.ErrAbsent, time.Minute, true, false, step.ShutdownUnknown},
	} {
		var shutdown Shutdown
		r := NewReboot(logindOf{c.err}, &shutdown, "b1", slog.New(slog.DiscardHandler), func() {})
		err := r.Call(t.Context(), s, time.Now().Add(c.by))
		if (err != nil) != c.failed || (r.Refusal(s) != "") != c.refused || shutdown.State() != c.shutdown {
			t.Errorf("%s: error %v, refusal %q, shutdown %v", name, err, r.Refusal(s), shutdown.State())
		}
		if r.Refusal(Stage{"t2", v1alpha1.StateRebooting}) != "" {
			t.Errorf("%s: another turn is refused", name)
		}
	}
}
