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

// lines is a log that is safe for concurrent use.
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

// drainAgainst drains a node with an API server that answer implements, until answer calls hang. It returns what was
// logged.
func drainAgainst(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, hang func())) string {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if s := r.URL.Query().Get("fieldSelector"); r.Method == http.MethodGet && s != "spec.nodeName=n1" {
			t.Errorf("field selector %q, expected the pods of the node", s)
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
		t.Fatal("the drain finished, expected the context's error")
	}
	return log.String()
}

// onePod is a list of one pod. Its eviction gets no answer.
const onePod = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[
	{"metadata":{"name":"p","namespace":"d","uid":"u"},"spec":{"nodeName":"n1"}}]}`

// TestEndIsQuiet checks that the end of a drain by its context, during a list or a watch, is not reported as an error.
func TestEndIsQuiet(t *testing.T) {
	for _, what := range []string{"list", "watch"} {
		log := drainAgainst(t, func(w http.ResponseWriter, r *http.Request, hang func()) {
			watches := r.URL.Query().Get("watch") != ""
			switch {
			case r.Method == http.MethodPost:
				// A server notices that a client disconnected only after it has read the whole request.
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			case watches == (what == "watch"):
				hang()
			default:
				fmt.Fprint(w, onePod)
			}
		})
		if strings.Contains(log, "Failed to watch") || strings.Contains(log, "level=ERROR") {
			t.Errorf("the end during a %s logged:\n%s", what, log)
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
		t.Errorf("logged:\n%s\nexpected the one failure", log)
	}
}
