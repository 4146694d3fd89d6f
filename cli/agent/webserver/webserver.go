// Package webserver serves HTTP to other programs: metrics and health to Prometheus, FleetLock to
// a client on this host. It bounds what clients can use. It must not know what is served.
package webserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// listenAgain is how long after an address was taken it is tried again.
	listenAgain = time.Minute
	// maxHeader bounds the header of a request, in bytes.
	maxHeader = 16 << 10
)

// limits bound the resources that clients can use. Each connection serves one request and is then closed. So a client
// holds its connection for at most request plus answer, and waiting clients get theirs in turn.
type limits struct {
	connections int           // at the same time; others wait in the kernel's queue
	request     time.Duration // from the connection to the end of the request
	answer      time.Duration // from the end of the request's header to the end of the answer
}

// defaultLimits let a scrape in within Prometheus's timeout of 10 s even if other clients hold all connections and send
// nothing. A handler may set other deadlines for a request that it has read.
var defaultLimits = limits{connections: 32, request: 5 * time.Second, answer: 15 * time.Second}

// Server serves a handler at an address that a reload may change. Its methods
// may be called from any goroutine.
type Server struct {
	what    string
	handler http.Handler
	limits  limits
	log     *slog.Logger
	report  func(problem string)

	mu     sync.Mutex
	wanted string
	kick   chan struct{}
}

// New makes a server. what says what the handler serves, for the log. report receives the reason
// why nothing is served, and "" once that is over. It may be nil.
func New(what string, handler http.Handler, log *slog.Logger, report func(problem string)) *Server {
	if report == nil {
		report = func(string) {}
	}
	return &Server{what: what, handler: handler, limits: defaultLimits, log: log, report: report, kick: make(chan struct{}, 1)}
}

// Listen sets the address to serve at, HOST:PORT; "" for none.
func (s *Server) Listen(address string) {
	s.mu.Lock()
	s.wanted = address
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Server) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// Run serves until ctx ends. If it cannot listen on the address, because another process
// does, it tries again every minute.
func (s *Server) Run(ctx context.Context) {
	var serving *http.Server
	at, failed := "", false
	var ended sync.WaitGroup
	defer ended.Wait()
	stop := func() {
		if serving != nil {
			serving.Close() // a client that is being served tries again
			serving = nil
		}
	}
	defer stop()
	for {
		if address := s.address(); address != at || failed {
			if address != at {
				stop()
				failed = false
				s.report("")
			}
			at = address
			if at != "" {
				serving, failed = s.serve(ctx, at, failed, &ended)
			}
		}
		var again <-chan time.Time // nil unless there is something to try again
		if failed {
			again = time.After(listenAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-again:
		}
	}
}

// serve begins to serve at the address. known: the failure has been logged before.
func (s *Server) serve(ctx context.Context, address string, known bool, ended *sync.WaitGroup) (*http.Server, bool) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		if !known && ctx.Err() == nil {
			s.log.Warn("cannot serve "+s.what+"; everything else continues", "listen", address, "err", err, "again_in", listenAgain)
			s.report(err.Error())
		}
		return nil, true
	}
	s.log.Info("serves "+s.what, "listen", l.Addr().String())
	s.report("")
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: s.limits.request, ReadTimeout: s.limits.request, WriteTimeout: s.limits.answer,
		IdleTimeout: s.limits.request, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // a client that sends request after request would keep its connection
	l = netutil.LimitListener(tireless{l}, s.limits.connections)
	ended.Go(func() { _ = server.Serve(l) }) // ends with the server, which alone closes l
	return server, false
}

// tireless keeps an [http.Server] accepting connections. The server tries again, after at most a
// second, only after errors that it takes for temporary; a lack of memory is not one of them.
type tireless struct{ net.Listener }

func (t tireless) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		err = temporary{err}
	}
	return c, err
}

// temporary is a [net.Error] that passes.
type temporary struct{ error }

func (temporary) Timeout() bool   { return false }
func (temporary) Temporary() bool { return true }
