package object

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// A leader's view ends with each term, in the middle of its watch; that is nothing to tell of. What fails is.
func TestViewEndsQuietly(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	failed := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			end()
			<-r.Context().Done()
		case !failed:
			failed = true
			http.Error(w, "no nodes today", http.StatusForbidden)
		default:
			fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}`)
		}
	}))
	defer server.Close()
	client, err := ConnectConfig(&rest.Config{Host: server.URL}, "coordinator", "test", 10, 10)
	must(t, err)
	log := &bytes.Buffer{}
	logger := logr.FromSlogHandler(slog.NewTextHandler(log, nil))
	v := NewView(client, "", func() {})
	v.Run(klog.NewContext(ctx, logger)) // alone writes to the log, and has ended when it is read
	if text, _ := io.ReadAll(log); strings.Count(string(text), "level=ERROR") != 1 || !strings.Contains(string(text), "no nodes today") {
		t.Errorf("logged:\n%s\nwant the one failure", text)
	}
	if !v.Listed() {
		t.Error("never listed")
	}
}
