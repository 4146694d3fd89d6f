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

// lastDrain returns a Drain whose last run is for a stage. It has no client: to begin an
// eviction panics.
func lastDrain(s Stage, e step.Eviction, ended bool) *Drain {
	d := NewDrain(nil, "n1", slog.New(slog.DiscardHandler), func() {})
	d.eviction, d.last = e, &run{stage: s, cancel: func(error) {}, ended: make(chan struct{}), at: time.Now()}
	if ended {
		close(d.last.ended)
	}
	return d
}

// An eviction of few pods ends between the observation and the decision to continue it. To
// begin it again would end as fast, and so on.
func TestEvictionThatEndedMeanwhileIsNotBegunAgain(t *testing.T) {
	s := Stage{"t1", v1alpha1.StateDraining}
	d := lastDrain(s, step.Eviction{}, true)
	d.Start(t.Context(), s, step.Eviction{}, true)
	if !d.Work(s).Complete {
		t.Error("the result of the eviction is lost")
	}
}

// An eviction that runs begins again if it is to be another one, in either direction. One
// that has ended begins again only for what it did not do.
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

// logindOf answers a reboot with err.
type logindOf struct{ err error }

func (l logindOf) Reboot(ctx context.Context) error           { return errors.Join(l.err, ctx.Err()) }
func (logindOf) RebootUnderway(context.Context) (bool, error) { return false, nil }

// Only a refusal of logind's own ends the turn. Whatever else happens, the host reads again
// and decides again.
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
