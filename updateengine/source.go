package updateengine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// The engine on the bus, as Flatcar's code registers it.
const (
	BusName    = "com.coreos.update1"
	ObjectPath = "/com/coreos/update1"
	Interface  = "com.coreos.update1.Manager"
)

const (
	// MinPollInterval and MaxPollInterval bound Options.PollInterval. The
	// minimum is for tests; a host's file has a higher one.
	MinPollInterval = 200 * time.Millisecond
	MaxPollInterval = time.Hour

	callTimeout    = 10 * time.Second // one call, and one attempt to connect
	hintSpacing    = time.Second      // between two looks, however many hints come
	minBackoff     = 250 * time.Millisecond
	maxBackoff     = 30 * time.Second
	maxReportedOps = 32 // unknown operations that are reported before the log has had enough
)

// MaxSilence is the longest that Run goes without calling Options.Alive, the poll interval not counted: what a
// watchdog must allow on top of it. It covers a look in which every call times out, and the wait for another such.
const MaxSilence = 2 * time.Minute

// Options is what a Source needs.
type Options struct {
	// Address of the message bus in D-Bus's notation (unix:path=... or unix:abstract=...); "" is the system bus,
	// or what DBUS_SYSTEM_BUS_ADDRESS names. An address and not a dial function: how the connection is made is
	// part of the promise that others' signals can do no harm (see dial).
	Address string
	// PollInterval is how often GetStatus is asked without any hint, 200 ms to 1 h: how late a cancel may be seen.
	PollInterval time.Duration
	// Logger takes one line for each change of presence, operation or version. nil discards.
	Logger *slog.Logger
	// Alive, if set, is called by Run in each round of its loop, at least every PollInterval + MaxSilence.
	Alive func()
}

// Source reads the engine. Its methods may be called from any goroutine.
type Source struct {
	opts    Options
	log     *slog.Logger
	spacing time.Duration // hintSpacing but in tests
	timeout time.Duration // callTimeout but in tests

	gate     chan struct{} // holds one token: only one look at a time, so that Latest never goes back
	running  atomic.Bool
	hint     chan struct{} // capacity 1: somebody says there may be something new
	news     chan struct{} // capacity 1: Latest differs from what Run last told
	reported map[Operation]bool

	mu      sync.Mutex
	conn    *dbus.Conn // nil when not connected
	latest  Reading
	version string    // of the pending reboot, while it is pending
	asked   time.Time // when the last look ended
}

// New checks the options. It neither connects nor waits.
func New(opts Options) (*Source, error) {
	if opts.PollInterval < MinPollInterval || opts.PollInterval > MaxPollInterval {
		return nil, fmt.Errorf("poll interval %v is not within %v to %v", opts.PollInterval, MinPollInterval, MaxPollInterval)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Alive == nil {
		opts.Alive = func() {}
	}
	return &Source{
		opts: opts, log: opts.Logger, spacing: hintSpacing, timeout: callTimeout,
		gate: make(chan struct{}, 1), hint: make(chan struct{}, 1), news: make(chan struct{}, 1),
		reported: map[Operation]bool{},
		latest:   Reading{Err: errors.New("not asked yet")},
	}, nil
}

// Latest is the newest reading without asking: Unknown with an Err before the first look has ended.
func (s *Source) Latest() Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// Read asks the engine now, within 10 s for a call and 10 s for a connection if there is none. The error is the
// reading's Err: nil when the engine is Present or Absent. Latest is brought up to date, and Run tells of what is
// new. If ctx ends first, Latest stays as it was and the error is ctx's.
func (s *Source) Read(ctx context.Context) (Reading, error) {
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		err := fmt.Errorf("waiting to ask the update engine: %w", context.Cause(ctx))
		return Reading{Err: err, At: time.Now()}, err
	}
	defer func() { <-s.gate }()

	r := s.ask(ctx)
	if !s.running.Load() {
		s.drop() // nobody else would close it
	}
	r.At = time.Now()
	if err := ctx.Err(); err != nil && r.Presence == Unknown {
		return r, r.Err // the caller's impatience says nothing about the engine
	}
	return s.keep(r), r.Err
}

// ask makes one look. A connection that turns out to be dead (the bus was restarted) is replaced once.
func (s *Source) ask(ctx context.Context) Reading {
	for {
		conn, fresh, err := s.connect(ctx)
		if err != nil {
			return Reading{Err: err}
		}
		body, err := s.getStatus(ctx, conn)
		if err == nil {
			r, err := decode(body)
			if err != nil {
				return Reading{Err: fmt.Errorf("asking the update engine: %w", err)}
			}
			return r
		}
		var refusal dbus.Error
		switch {
		case errors.As(err, &refusal) && nobodyOwns(refusal):
			return Reading{Presence: Absent}
		case errors.As(err, &refusal):
			return Reading{Err: fmt.Errorf("asking the update engine: %s: %s",
				printable(refusal.Name, maxErrorText), printable(refusal.Error(), maxErrorText))}
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			s.dropIfDead(ctx, conn)
			return Reading{Err: fmt.Errorf("asking the update engine: no answer within %v", s.timeout)}
		case ctx.Err() != nil:
			return Reading{Err: fmt.Errorf("asking the update engine: %w", context.Cause(ctx))}
		}
		s.drop()
		if fresh {
			return Reading{Err: fmt.Errorf("asking the update engine: %w", err)}
		}
	}
}

// getStatus calls with FlagNoAutoStart: looking must not start an engine that an admin has stopped or masked,
// and with it "nobody owns the name" stays a fact that can be read.
func (s *Source) getStatus(ctx context.Context, conn *dbus.Conn) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	call := conn.Object(BusName, ObjectPath).CallWithContext(ctx, Interface+".GetStatus", dbus.FlagNoAutoStart)
	return call.Body, call.Err
}

// nobodyOwns recognises the bus's own words for a name without owner: with FlagNoAutoStart dbus-daemon says the
// first, dbus-broker the second.
func nobodyOwns(e dbus.Error) bool {
	return e.Name == "org.freedesktop.DBus.Error.NameHasNoOwner" || e.Name == "org.freedesktop.DBus.Error.ServiceUnknown"
}

// keep settles the version, stores the reading and leaves word for Run.
func (s *Source) keep(r Reading) Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = settleVersion(&r, s.version)
	old := s.latest
	s.latest, s.asked = r, r.At
	if !r.same(old) {
		poke(s.news)
	}
	s.report(old, r)
	return r
}

// settleVersion fills in the version of a pending reboot from the one remembered, and returns what to remember. A
// reading that says nothing about the pending reboot leaves the memory alone.
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

// report logs what changed: a line for a change of presence, operation or version, and a warning the first time an
// unknown operation is met.
func (s *Source) report(old, r Reading) {
	if r.Presence == Present && !r.Operation.Known() && !s.reported[r.Operation] && len(s.reported) < maxReportedOps {
		s.reported[r.Operation] = true
		s.log.Warn("the update engine names an operation that this version does not know", "operation", string(r.Operation))
	}
	switch {
	case r.Presence == Unknown && (old.Presence != Unknown || !r.same(old)):
		s.log.Warn("update engine cannot be read", "err", r.Err)
	case r.Presence != old.Presence || r.Operation != old.Operation || r.Version != old.Version || r.VersionUnknown != old.VersionUnknown:
		s.log.Info("update engine", "presence", r.Presence.String(), "operation", string(r.Operation), "version", r.Version)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
