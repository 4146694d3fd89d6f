package source

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
)

type runs struct {
	units []string
	err   error
}

func (r *runs) Running(context.Context, []string) ([]string, error) { return r.units, r.err }

func (*runs) WatchJobs(context.Context, []string, func()) error { return nil }

// jobs is a systemd on which a job of a manager's unit ends with each value from ended.
type jobs struct {
	runs
	ended chan struct{}
}

func (j *jobs) WatchJobs(ctx context.Context, _ []string, f func()) error {
	for {
		select {
		case <-j.ended:
			f()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestManagersAreReadAfterAJob checks that a manager is noticed soon after it was started, not only after the poll interval.
func TestManagersAreReadAfterAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		units := &jobs{ended: make(chan struct{})}
		m := NewManagers(Options{Root: t.TempDir(), PollInterval: 1000 * time.Hour, Log: slog.New(slog.DiscardHandler), Changed: func() {}},
			units, func() (string, error) { return "", nil }, "")
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { m.Run(ctx) })
		synctest.Wait()
		units.units = []string{"locksmithd.service"}
		units.ended <- struct{}{}
		time.Sleep(managerPause)
		if synctest.Wait(); len(m.Active()) != 1 {
			t.Errorf("active %v after %v", m.Active(), managerPause)
		}
	})
}

// TestManagers has one host after the other: which managers are active there, and what
// remains valid when that cannot be read.
func TestManagers(t *testing.T) {
	units, owner := &runs{}, ""
	var ownerErr error
	changed := 0
	m := NewManagers(Options{Root: root(t, map[string]string{"etc/rebootmgr.conf": "[rebootmgr]\nstrategy = \"off\"\n"}), Log: slog.New(slog.DiscardHandler), Changed: func() { changed++ }},
		units, func() (string, error) { return owner, ownerErr }, "")
	for _, c := range []struct {
		name, unit string
		err        error
		owner      string
		ownerErr   error
		want       string // the names of the active ones
		fails      bool
		changed    bool
	}{
		{name: "none", changed: true},
		{name: "still none"},
		{name: "zincati", unit: "zincati.service", want: "zincati.service", changed: true},
		{name: "no answer", err: errors.New("no answer"), want: "zincati.service", fails: true},
		{name: "systemd is not on the bus", err: systemd.ErrAbsent, want: "zincati.service", fails: true},
		{name: "no owner can be read", ownerErr: errors.New("no"), want: "zincati.service", fails: true},
		{name: "rebootmgr, off", unit: "rebootmgr.service", changed: true},
		{name: "an owner without a unit", owner: "mine", want: "mine (it holds /run/update-engine/coordinator.conf)", changed: true},
		{name: "an owner with a unit", unit: "locksmithd.service", owner: "locksmithd", want: "locksmithd.service", changed: true},
	} {
		*units, owner, ownerErr = runs{strings.Fields(c.unit), c.err}, c.owner, c.ownerErr
		before := changed
		err := m.Read(t.Context())
		var names []string
		for _, a := range m.Active() {
			names = append(names, a.Name)
		}
		got := strings.Join(names, " ")
		if got != c.want || (err != nil) != c.fails || (changed > before) != c.changed {
			t.Errorf("%s: %q, %v, changed %t, expected %q, an error: %t, changed %t", c.name, got, err, changed > before, c.want, c.fails, c.changed)
		}
	}
}

// TestManagersWithoutTheirFile checks that rebootmgr counts as active if it runs and its file does not switch it off.
func TestManagersWithoutTheirFile(t *testing.T) {
	for text, off := range map[string]bool{"": false, "[rebootmgr]\nstrategy=best-effort\n": false, "[rebootmgr]\nstrategy=off\n": true} {
		files := map[string]string{}
		if text != "" {
			files["etc/rebootmgr.conf"] = text
		}
		m := NewManagers(Options{Root: root(t, files), Log: slog.New(slog.DiscardHandler), Changed: func() {}},
			&runs{units: []string{rebootmgr}}, func() (string, error) { return "", nil }, "")
		if must(t, m.Read(t.Context())); (len(m.Active()) == 0) != off {
			t.Errorf("%q: active %v", text, m.Active())
		}
	}
}

// hangs is a systemd that answers only when its caller gives up.
type hangs struct{ asked chan struct{} }

func (h hangs) Running(ctx context.Context, _ []string) ([]string, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangs) WatchJobs(context.Context, []string, func()) error { return nil }

// TestManagersReadEndsWithItsContext checks that a read that waits for another one ends with its own context.
func TestManagersReadEndsWithItsContext(t *testing.T) {
	systemd := hangs{make(chan struct{})}
	m := NewManagers(Options{Root: t.TempDir(), Log: slog.New(slog.DiscardHandler), Changed: func() {}}, systemd, func() (string, error) { return "", nil }, "")
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- m.Read(ctx) }()
	<-systemd.asked
	late, over := context.WithCancel(t.Context())
	over()
	if err := m.Read(late); !errors.Is(err, context.Canceled) {
		t.Errorf("the second read: %v, expected that its context ended", err)
	}
	cancel()
	if err := <-first; err == nil {
		t.Error("the first read: no error, expected one")
	}
}
