// Package fleetlock answers the FleetLock client on this host, which is Zincati on Fedora CoreOS:
// a program that asks for permission, and then reboots the host by itself. The protocol is at
// https://coreos.github.io/zincati/development/fleetlock/protocol/.
//
// A request for permission is a change of this host, like a sentinel. It is answered when the
// host has its turn, is drained and has committed to the reboot. Until then the request stays
// open, because permission can only be given in the answer to a request.
//
// The package must not know the Node, the turn, or what a reboot costs. Package step decides when
// a client is permitted to reboot.
package fleetlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// HoldFor is how long a request for permission stays open at most. Zincati waits for an
	// answer for 30 minutes.
	HoldFor = 25 * time.Minute
	// Withdrawn is how long after a client last asked its request to reboot counts as withdrawn.
	// Zincati asks every 5 minutes and, at random, up to 30 seconds later. So this allows for two
	// requests that are lost.
	Withdrawn = 17 * time.Minute
	// endsSoon is how long a request must still wait at least so that the host may commit for it.
	endsSoon = 30 * time.Second
	// maxOpen bounds the requests that are open at the same time. Zincati has one.
	maxOpen = 4
)

// Options are what a Server needs.
type Options struct {
	// ID identifies the client: 32 hexadecimal digits, as [AppID] returns them. A request with
	// another ID is refused.
	ID  string
	Log *slog.Logger
	// Changed is called when a request comes or goes. It must not block.
	Changed func()
	// Answered receives a value of [v1alpha1.MetricFleetLock] for each answer; it must not block
	// and may be nil.
	Answered func(result string)
}

// Server answers the requests of this host's FleetLock client. It is an [http.Handler]. Its
// methods may be called from any goroutine.
type Server struct {
	Options
	began    time.Time
	warnOnce sync.Once // of another client's request

	mu     sync.Mutex
	heard  bool              // the client has sent a request
	asked  time.Time         // when the last request for permission came or ended; zero if it was withdrawn
	open   map[*waiting]bool // the requests for permission that wait
	reason string            // why no permission is given, for the client's log
}

// waiting is a request for permission.
type waiting struct {
	ends      time.Time      // when it is refused
	until     time.Time      // until when it has permission; zero: it has none
	permitted chan time.Time // receives until
}

// New returns a Server.
func New(o Options) *Server {
	if o.Answered == nil {
		o.Answered = func(string) {}
	}
	return &Server{Options: o, began: time.Now(), open: map[*waiting]bool{}}
}

// State is what the client asks for.
type State struct {
	// Asked reports whether the client wants to reboot the host: it has asked for permission,
	// and has not withdrawn that.
	Asked bool
	// Known is false until a client that asked the process before this one must have asked
	// again.
	Known bool
	// Open reports whether a request for permission waits for its answer, and will for some time.
	Open bool
}

// State returns what the client asks for now.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{
		Asked: len(s.open) > 0 || !s.asked.IsZero() && time.Since(s.asked) < Withdrawn,
		Known: s.heard || time.Since(s.began) >= Withdrawn,
	}
	for r := range s.open {
		state.Open = state.Open || time.Until(r.ends) > endsSoon
	}
	return state
}

// Explain sets why no permission is given at the moment. The client reads it when its request
// ends without permission.
func (s *Server) Explain(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = reason
}

// Permit gives permission to the requests that are open. An answer after by is not sent. The caller
// has committed to the reboot: from now on the client may reboot the host at any time. permitted is
// false if each open request had permission already.
func (s *Server) Permit(by time.Time) (permitted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.open {
		if time.Now().Before(r.until) {
			continue
		}
		select {
		case r.permitted <- by:
			r.until, permitted = by, true
		default: // it has not seen the last one yet, which was too late
		}
	}
	return permitted
}

// known reports whether the ID is that of this host's client.
func (s *Server) known(id string) bool {
	return s.ID != "" && id == s.ID
}

// wait keeps a request for permission open until permission is given, which is the result nil. It
// refuses after HoldFor, or when ctx ends, or if too many requests are open.
func (s *Server) wait(ctx context.Context) *refusal {
	r := &waiting{ends: time.Now().Add(HoldFor), permitted: make(chan time.Time, 1)}
	s.mu.Lock()
	s.asked, s.heard = time.Now(), true
	full := len(s.open) >= maxOpen
	if !full {
		s.open[r] = true
	}
	s.mu.Unlock()
	s.Changed()
	if full {
		return &refusal{http.StatusLocked, kindNotYet, fmt.Sprintf("%d requests wait already", maxOpen)}
	}
	defer s.ended(r)
	ctx, cancel := context.WithDeadline(ctx, r.ends)
	defer cancel()
	for {
		select {
		case by := <-r.permitted:
			if time.Now().Before(by) {
				return nil
			}
		case <-ctx.Done():
			if len(r.permitted) > 0 {
				continue // the host counts it as given
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			return &refusal{http.StatusLocked, kindNotYet, cmp.Or(s.reason, "lockkeeper starts")}
		}
	}
}

// ended records that a request for permission does not wait any longer.
func (s *Server) ended(r *waiting) {
	s.mu.Lock()
	delete(s.open, r)
	if !s.asked.IsZero() {
		s.asked = time.Now()
	}
	s.mu.Unlock()
	s.Changed()
}

// steady withdraws the client's request to reboot.
func (s *Server) steady() {
	s.mu.Lock()
	s.asked, s.heard = time.Time{}, true
	s.mu.Unlock()
	s.Changed()
}
