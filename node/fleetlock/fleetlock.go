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
	"crypto/subtle"
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
	// Withdrawn is how long after its last request a client's wish to reboot ends. Zincati asks
	// every 5 minutes and, at random, up to 30 seconds later. So this is two requests that are
	// lost.
	Withdrawn = 17 * time.Minute
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

	mu    sync.Mutex
	heard bool      // the client has sent a request
	asked time.Time // when the last request for permission came or ended; zero if it was withdrawn
	// open are the requests for permission that wait, each with the time until which it has
	// permission, or zero.
	open   map[chan<- time.Time]time.Time
	reason string // why no permission is given, for the client's log
}

// New returns a Server.
func New(o Options) *Server {
	if o.Answered == nil {
		o.Answered = func(string) {}
	}
	return &Server{Options: o, began: time.Now(), open: map[chan<- time.Time]time.Time{}}
}

// State is what the client asks for.
type State struct {
	// Asked reports whether the client wants to reboot the host: it has asked for permission,
	// and has not withdrawn that.
	Asked bool
	// Open reports whether a request for permission waits for its answer.
	Open bool
	// Known is false until a client that asked the process before this one must have asked
	// again.
	Known bool
}

// State returns what the client asks for now.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := len(s.open) > 0
	return State{
		Asked: open || !s.asked.IsZero() && time.Since(s.asked) < Withdrawn,
		Open:  open,
		Known: s.heard || time.Since(s.began) >= Withdrawn,
	}
}

// Explain sets why no permission is given at the moment. The client reads it when its request
// ends without permission.
func (s *Server) Explain(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = reason
}

// Permit gives permission to the requests that are open, until by at most. The caller has
// committed to the reboot: from now on the client may reboot the host at any time. permitted is
// false if each open request had permission already.
func (s *Server) Permit(by time.Time) (permitted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, until := range s.open {
		if time.Now().Before(until) {
			continue
		}
		select {
		case c <- by:
			s.open[c] = by
			permitted = true
		default: // it has not seen the last one yet, which was too late
		}
	}
	return permitted
}

// known reports whether the ID is that of this host's client.
func (s *Server) known(id string) bool {
	return s.ID != "" && subtle.ConstantTimeCompare([]byte(id), []byte(s.ID)) == 1
}

// wait keeps a request for permission open until permission is given, which is the result nil. It
// refuses after HoldFor, or when ctx ends, or if too many requests are open.
func (s *Server) wait(ctx context.Context) *refusal {
	permitted := make(chan time.Time, 1)
	s.mu.Lock()
	s.asked, s.heard = time.Now(), true
	full := len(s.open) >= maxOpen
	if !full {
		s.open[permitted] = time.Time{}
	}
	s.mu.Unlock()
	s.Changed()
	if full {
		return &refusal{http.StatusLocked, kindNotYet, fmt.Sprintf("%d requests wait already", maxOpen)}
	}
	defer s.ended(permitted)
	ctx, cancel := context.WithTimeout(ctx, HoldFor)
	defer cancel()
	for {
		select {
		case by := <-permitted:
			if time.Now().Before(by) {
				return nil
			}
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			return &refusal{http.StatusLocked, kindNotYet, cmp.Or(s.reason, "lockkeeper starts")}
		}
	}
}

// ended records that a request for permission does not wait any longer.
func (s *Server) ended(permitted chan<- time.Time) {
	s.mu.Lock()
	delete(s.open, permitted)
	if !s.asked.IsZero() {
		s.asked = time.Now()
	}
	s.mu.Unlock()
	s.Changed()
}

// steady ends the client's wish to reboot.
func (s *Server) steady() {
	s.mu.Lock()
	s.asked, s.heard = time.Time{}, true
	s.mu.Unlock()
	s.Changed()
}
