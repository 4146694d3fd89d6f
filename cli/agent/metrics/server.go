package metrics

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

const (
	// listenAgain is how long after an address was taken it is tried again.
	listenAgain = time.Minute
	// collectWithin bounds the collection of the metrics for one request.
	collectWithin = 10 * time.Second
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
// nothing.
var defaultLimits = limits{connections: 32, request: 5 * time.Second, answer: collectWithin + 5*time.Second}

// Handler serves /metrics and /healthz. health returns whether the host is healthy, and the
// text for people, whose first line says so too.
func Handler(m *Metrics, log *slog.Logger, health func() (ok bool, text string)) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, Timeout: collectWithin,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		ok, text := health()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, text) // an error means that the client has gone
	})
	return mux
}

type errorLog struct{ log *slog.Logger }

// Println logs an error of promhttp, mostly that the client has gone.
func (l errorLog) Println(v ...any) { l.log.Debug("serving the metrics", "err", fmt.Sprint(v...)) }

// Server serves a handler at an address that a reload may change. Its methods
// may be called from any goroutine.
type Server struct {
	handler http.Handler
	limits  limits
	log     *slog.Logger
	report  func(problem string)

	mu     sync.Mutex
	wanted string
	kick   chan struct{}
}

// NewServer makes a server. report receives the reason why nothing is
// served, and "" once that is over. It may be nil.
func NewServer(handler http.Handler, log *slog.Logger, report func(problem string)) *Server {
	if report == nil {
		report = func(string) {}
	}
	return &Server{handler: handler, limits: defaultLimits, log: log, report: report, kick: make(chan struct{}, 1)}
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
		again := time.NewTimer(listenAgain)
		select {
		case <-ctx.Done():
		case <-s.kick:
		case <-again.C:
		}
		again.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// serve begins to serve at the address. known: the failure has been logged before.
func (s *Server) serve(ctx context.Context, address string, known bool, ended *sync.WaitGroup) (*http.Server, bool) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		if !known && ctx.Err() == nil {
			s.log.Warn("cannot serve metrics and health; everything else continues", "listen", address, "err", err, "again_in", listenAgain)
			s.report(err.Error())
		}
		return nil, true
	}
	s.log.Info("serves metrics and health", "listen", l.Addr().String())
	s.report("")
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: s.limits.request, ReadTimeout: s.limits.request, WriteTimeout: s.limits.answer,
		IdleTimeout: s.limits.request, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // a client that sends request after request would keep its connection
	l = netutil.LimitListener(l, s.limits.connections)
	ended.Go(func() { _ = server.Serve(l) }) // ends with the server, which alone closes l
	return server, false
}
