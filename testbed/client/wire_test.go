package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/kube"
)

// wire is a proxy between a client and the API server. It has the credential, records every request and passes it to a
// fault.
type wire struct {
	t      *testing.T
	server *httptest.Server

	mu    sync.Mutex
	log   []*request
	fault fault
}

// request is a request as it arrived at the wire. kind is the verb and the object: "GET node n1", "WATCH leases", "POST
// eviction".
type request struct {
	kind  string
	query url.Values
	body  string
	path, accepts,
	agent string
	at       time.Time // time of arrival
	answered time.Time // zero while there is no answer
	status   int       // 0 for none
	answer   string    // content type of the answer
}

// fault may change the answer to a request. forward sends the request to the API server. A fault that returns nil, nil
// leaves the request alone. It must return soon after ctx has ended, because then the client no longer waits.
type fault func(ctx context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error)

// errCut closes the connection without an answer.
var errCut = errors.New("cut")

// newWire starts a wire for an identity.
func newWire(t *testing.T, cfg *rest.Config, err error) *wire {
	t.Helper()
	must(t, err)
	next, err := rest.TransportFor(cfg)
	must(t, err)
	target, err := url.Parse(cp(t).URL())
	must(t, err)
	w := &wire{t: t}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		Transport:     transport(func(r *http.Request) (*http.Response, error) { return w.pass(r, next) }),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	w.server = httptest.NewServer(proxy)
	t.Cleanup(func() {
		w.server.CloseClientConnections()
		w.server.Close()
	})
	return w
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *wire) pass(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body.Close()
	}
	// A request reaches the API server even if the client disconnects in the meantime. Only a watch ends with its
	// client.
	kind := kindOf(r)
	ctx := r.Context()
	if !strings.HasPrefix(kind, "WATCH") {
		r = r.WithContext(context.WithoutCancel(ctx))
	}
	seen := &request{
		kind: kind, path: r.URL.Path, query: r.URL.Query(), body: string(body), at: time.Now(),
		accepts: r.Header.Get("Accept"), agent: r.Header.Get("User-Agent"),
	}
	w.mu.Lock()
	w.log = append(w.log, seen)
	f, copied := w.fault, *seen
	w.mu.Unlock()

	forward := func() (*http.Response, error) {
		if len(body) > 0 || r.ContentLength > 0 {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return next.RoundTrip(r)
	}
	var resp *http.Response
	var err error
	if f != nil {
		resp, err = f(ctx, copied, forward)
	}
	if resp == nil && err == nil {
		resp, err = forward()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		seen.answered, seen.status, seen.answer = time.Now(), resp.StatusCode, resp.Header.Get("Content-Type")
	}
	return resp, err
}

// managerPods is the kind of the lists in which a host looks for other reboot managers. They come at intervals while the
// host wants something, and in between other reads.
const managerPods = "LIST manager pods"

func kindOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	prefix := 2 // api/v1
	if parts[0] == "apis" {
		prefix = 3 // apis/group/version
	}
	if len(parts) <= prefix {
		return r.Method + " " + r.URL.Path
	}
	parts = parts[prefix:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	switch {
	case r.URL.Query().Get("watch") != "":
		return "WATCH " + parts[0]
	case r.Method == http.MethodGet && parts[0] == "pods" && r.URL.Query().Get("resourceVersion") == "0":
		return managerPods
	case r.Method == http.MethodGet && len(parts) == 1:
		return "LIST " + parts[0]
	case len(parts) > 2:
		return r.Method + " " + parts[2]
	case len(parts) == 1:
		return r.Method + " " + parts[0]
	}
	return r.Method + " " + strings.TrimSuffix(parts[0], "s") + " " + parts[1]
}

// on passes every further request to f. nil removes the fault.
func (w *wire) on(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// requests returns the requests of any of the kinds, or all. "PATCH node" matches any node. Requests about HostUpdates
// match only by their kind, because the host sends them concurrently with its loop. So do lists of managerPods, which
// depend on the time.
func (w *wire) requests(kinds ...string) []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []request
	for _, r := range w.log {
		if len(kinds) == 0 && !strings.Contains(r.kind, " hostupdate") && r.kind != managerPods || slices.ContainsFunc(kinds, func(k string) bool { return r.kind == k || strings.HasPrefix(r.kind, k+" ") }) {
			found = append(found, *r)
		}
	}
	return found
}

func (w *wire) count(kinds ...string) int { return len(w.requests(kinds...)) }

// kinds returns the kinds of all requests except watches, in the order of arrival.
func (w *wire) kinds() []string {
	var kinds []string
	for _, r := range w.requests() {
		if !strings.HasPrefix(r.kind, "WATCH") {
			kinds = append(kinds, r.kind)
		}
	}
	return kinds
}

// config returns a client configuration for the wire.
func (w *wire) config() *rest.Config { return &rest.Config{Host: w.server.URL} }

// client returns a client of lockkeeper that uses the wire.
func (w *wire) client(role string) *kube.Client {
	w.t.Helper()
	c, err := kube.ConnectConfig(w.config(), role, "test", 100, 200)
	must(w.t, err)
	return c
}

// kubeconfig returns the text of a kubeconfig for the wire.
func (w *wire) kubeconfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
`, w.server.URL)
}

func removeFile(t *testing.T, path string) {
	t.Helper()
	must(t, os.Remove(path))
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Rename(path+".new", path))
}

// kubeconfigFile writes that kubeconfig to a file and returns its path.
func (w *wire) kubeconfigFile() string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	writeFile(w.t, path, w.kubeconfig())
	return path
}

// says returns an answer with a Kubernetes status.
func says(code int, reason string) *http.Response {
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"by the test","reason":%q,"code":%d}`, reason, code)
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// cutAnswer forwards a request and drops the answer.
func cutAnswer(forward func() (*http.Response, error)) (*http.Response, error) {
	resp, err := forward()
	if err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return nil, errCut
}
