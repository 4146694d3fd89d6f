// Package updateengine reads what this host's update_engine reports about itself, over D-Bus ([Source]). It also keeps the
// file that names, to the engine's other users, who coordinates the host's reboots ([CoordinatorFile]).
//
// It never changes the engine, and never starts it. A host on which the engine does not run is an answer (Absent), not a
// failure. The package must not know what a reading means for the host, nor of Kubernetes, turns or states.
//
// Only GetStatus counts. It is called at the start, in each poll interval, and after the engine's StatusUpdate signal or a
// change of the name's owner. The poll is not a fallback: a cancel (ResetStatus) sends no signal, so a cancel may be seen as
// late as one poll interval. The bodies of signals are never read.
package updateengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// The engine on the bus, as Flatcar's code registers it.
const (
	BusName    = "com.coreos.update1"
	ObjectPath = "/com/coreos/update1"

	iface = "com.coreos.update1.Manager"
)

// MaxSilence is how long Run may go without calling Options.Alive, in addition to the poll interval. It covers a read in
// which each call times out, and the wait for another such read.
const MaxSilence = 2 * time.Minute

// Object is the engine's object on the bus; systemd.Object implements it.
type Object interface {
	// Call calls a method, in the notation interface.Member, and returns the body of the answer. It does not start the
	// service, and is bounded. If the answer is an error, the error wraps a dbus.Error.
	Call(ctx context.Context, method string, args ...any) ([]any, error)
	// Watch calls read until ctx ends: at once, after the signal, after the service came or went, after the bus was away,
	// and in each interval. After a failure it calls read sooner. It returns the cause of ctx's end.
	Watch(ctx context.Context, signal string, interval time.Duration, read func(context.Context) error) error
}

// Options is what a Source needs.
type Options struct {
	// Object is the object at [ObjectPath] of [BusName] on the system bus.
	Object Object
	// PollInterval is how often GetStatus is called without a signal: how late a cancel may be seen.
	PollInterval time.Duration
	// Logger logs each change of presence, operation or version. nil discards.
	Logger *slog.Logger
	// Alive, if set, is called by Run in each round of its loop, at least once in each PollInterval + MaxSilence.
	Alive func()
}

// Source reads the engine. Its methods may be called from any goroutine.
type Source struct {
	opts    Options
	reading chan struct{} // holds a value during a read: one at a time, so that Latest never goes back

	mu      sync.Mutex
	latest  Reading
	version string // of the pending reboot, while it is pending
	changed func() // Run's
}

// New makes a Source. It neither connects nor waits.
func New(opts Options) *Source {
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	return &Source{opts: opts, reading: make(chan struct{}, 1), latest: Reading{Err: errors.New("not asked yet")}, changed: func() {}}
}

// Latest returns the newest reading without asking the engine: Unknown with an Err before the first read has ended.
func (s *Source) Latest() Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// Run keeps Latest up to date until ctx ends, and returns the cause of that. The engine and the bus may be missing, go away
// and come back. From then on changed is called after Latest has changed, progress included; it must not block, and must not
// call Read. Only one call may run at a time.
func (s *Source) Run(ctx context.Context, changed func()) error {
	s.mu.Lock()
	s.changed = changed
	s.mu.Unlock()
	return s.opts.Object.Watch(ctx, iface+".StatusUpdate", s.opts.PollInterval, func(ctx context.Context) error {
		if s.opts.Alive != nil {
			s.opts.Alive()
		}
		_, err := s.Read(ctx)
		return err
	})
}

// Read asks the engine now, and updates Latest. The error is the reading's Err: nil if the engine is Present or Absent. If
// ctx ends before the answer, Latest stays as it was, and the error is ctx's.
func (s *Source) Read(ctx context.Context) (Reading, error) {
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		err := fmt.Errorf("waiting to ask the update engine: %w", context.Cause(ctx))
		return Reading{Err: err, At: time.Now()}, err
	}
	defer func() { <-s.reading }()

	r := s.ask(ctx)
	r.At = time.Now()
	if ctx.Err() != nil && r.Presence == Unknown {
		return r, r.Err // that the caller gave up says nothing about the engine
	}
	return s.keep(r), r.Err
}

func (s *Source) ask(ctx context.Context) Reading {
	body, err := s.opts.Object.Call(ctx, iface+".GetStatus")
	var r Reading
	if err == nil {
		r, err = decode(body)
	}
	// The bus's answers if no process owns the name: the first is dbus-daemon's, the second dbus-broker's.
	answer, ok := errors.AsType[dbus.Error](err)
	switch {
	case ok && (answer.Name == "org.freedesktop.DBus.Error.NameHasNoOwner" || answer.Name == "org.freedesktop.DBus.Error.ServiceUnknown"):
		return Reading{Presence: Absent}
	case err != nil:
		return Reading{Err: fmt.Errorf("asking the update engine: %w", err)}
	}
	return r
}

// keep settles the version, stores the reading, and reports a change.
func (s *Source) keep(r Reading) Reading {
	s.mu.Lock()
	s.version = settleVersion(&r, s.version)
	old, changed := s.latest, s.changed
	s.latest = r
	s.mu.Unlock()
	if !r.same(old) {
		changed()
		s.log(old, r)
	}
	return r
}

// settleVersion completes the version of a pending reboot from the one remembered, and returns what to remember. A reading
// that does not tell whether a reboot is pending changes nothing.
func settleVersion(r *Reading, remembered string) string {
	pending, known := r.RebootPending()
	switch {
	case !known:
		return remembered
	case !pending:
		return ""
	case r.Version != "":
		return r.Version
	}
	r.Version, r.VersionUnknown = remembered, remembered == ""
	return remembered
}

// log logs a change of presence, operation or version.
func (s *Source) log(old, r Reading) {
	log, attrs := s.opts.Logger, []any{"presence", string(r.Presence), "operation", string(r.Operation), "version", r.Version}
	switch {
	case r.Presence == Unknown:
		log.Warn("cannot read the update engine", "err", r.Err)
	case r.Presence == Present && !r.Operation.Known() && r.Operation != old.Operation:
		log.Warn("the update engine reports an operation that this version does not know", attrs...)
	case r.Presence != old.Presence || r.Operation != old.Operation || r.Version != old.Version || r.VersionUnknown != old.VersionUnknown:
		log.Info("update engine", attrs...)
	}
}
