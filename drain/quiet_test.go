package drain

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// lines is a log that may be written and read at the same time.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// drainAgainst drains a node of an API server that answer answers for, until answer calls hang, and returns what was
// logged.
func drainAgainst(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, hang func())) string {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if s := r.URL.Query().Get("fieldSelector"); r.Method == http.MethodGet && s != "spec.nodeName=n1" {
			t.Errorf("it reads pods of %q, expected those of its node", s)
		}
		answer(w, r, func() {
			w.(http.Flusher).Flush()
			end()
			<-r.Context().Done()
		})
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log := &lines{}
	d := &Drainer{Client: client, Node: "n1", Log: slog.New(slog.NewTextHandler(log, nil))}
	if err := d.Run(ctx, nil); err == nil {
		t.Fatal("drained, want the context's error")
	}
	return log.String()
}

// onePod is a list of one pod, whose eviction is not answered.
const onePod = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[
	{"metadata":{"name":"p","namespace":"d","uid":"u"},"spec":{"nodeName":"n1"}}]}`

// Each drain ends by the end of its context, in the middle of a list or of a watch: that is no error to be told of.
func TestEndIsQuiet(t *testing.T) {
	for _, what := range []string{"list", "watch"} {
		log := drainAgainst(t, func(w http.ResponseWriter, r *http.Request, hang func()) {
			watches := r.URL.Query().Get("watch") != ""
			switch {
			case r.Method == http.MethodPost:
				// A server sees that a client went away only once it has
				// read all of the request.
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			case watches == (what == "watch"):
				hang()
			default:
				fmt.Fprint(w, onePod)
			}
		})
		if strings.Contains(log, "Failed to watch") || strings.Contains(log, "level=ERROR") {
			t.Errorf("ended in a %s, it logged:\n%s", what, log)
		}
	}
}

func TestFailureIsTold(t *testing.T) {
	first := true
	log := drainAgainst(t, func(w http.ResponseWriter, r *http.Request, hang func()) {
		if first {
			first = false
			http.Error(w, "no pods today", http.StatusForbidden)
			return
		}
		hang()
	})
	if strings.Count(log, "Failed to watch") != 1 || !strings.Contains(log, "no pods today") {
		t.Errorf("logged:\n%s\nwant the one failure", log)
	}
}
