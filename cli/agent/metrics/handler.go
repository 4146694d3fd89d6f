package metrics

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collectWithin bounds the collection of the metrics for one request.
const collectWithin = 10 * time.Second

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
