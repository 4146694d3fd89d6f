package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// listener is an API server that records the tokens of requests, and holds watches open.
type listener struct {
	*httptest.Server
	mu    sync.Mutex
	shown []string
}

func listen(t *testing.T) *listener {
	l := &listener{}
	l.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.shown = append(l.shown, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		l.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		if strings.HasSuffix(r.Header.Get("Authorization"), "refused") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(l.Close)
	return l
}

// with returns a kubeconfig for the server.
func (l *listener) with(token string) string {
	return strings.Replace(kubeconfigOf("{token: "+token+"}"), "{server: https://a", "{certificate-authority-data: "+caOf(l.Server)+", server: "+l.URL, 1)
}

// shows returns the token that the client sends in a request.
func (l *listener) shows(t *testing.T, c *Client) string {
	t.Helper()
	l.mu.Lock()
	l.shown = nil
	l.mu.Unlock()
	_, err := c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.shown) == 0 {
		t.Fatalf("no request: %v", err)
	}
	return l.shown[0]
}

func ended(c *Client) bool { return c.Context().Err() != nil }

// TestCoordinatorsClient checks that the coordinator's client follows the token of its own account on its own server,
// and ends with any other credential.
func TestCoordinatorsClient(t *testing.T) {
	server, other := listen(t), listen(t)
	now := time.Now().Truncate(time.Second)
	path := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	renewed := filepath.Join(t.TempDir(), "coordinator-token.json")
	credential := New(Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{path}, Absent: "no kubeconfig", Renewed: renewed, QPS: 100, Burst: 100})
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o600))
		credential.read(time.Now())
	}
	stranger := jwt(fmt.Sprintf(`{"sub":"system:serviceaccount:lockkeeper:default","iat":%d,"exp":%d}`, now.Unix(), now.Unix()+3600))
	first, second := token(now, now.Add(time.Hour)), token(now, now.Add(2*time.Hour))
	write(server.with(first))
	client, err := credential.Client()
	must(t, err)
	watched, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	continues := func(what, want string) {
		t.Helper()
		if now, err := credential.Client(); err != nil || now != client || ended(client) {
			t.Errorf("%s: ended %t, %v", what, ended(client), err)
		}
		if got := server.shows(t, client); got != want {
			t.Errorf("%s: shows %q, want %q", what, got, want)
		}
	}
	continues("at first", first)
	write("# a comment\n" + server.with(first))
	continues("another comment", first)
	write(server.with(first)[:100])
	continues("half written", first)
	if s := credential.State(); s.Error == "" || !s.Present || !s.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("half written: %+v", s)
	}
	write(server.with(second))
	continues("another token of the account", second)
	// The renewed token of this kubeconfig counts, and no other one.
	third := token(now, now.Add(3*time.Hour))
	text, err := json.Marshal(renewedToken{Kubeconfig: fmt.Sprintf("%x", sha256.Sum256([]byte(server.with(second)))), Token: third})
	must(t, err)
	must(t, os.WriteFile(renewed, text, 0o600))
	credential.read(time.Now())
	continues("renewed", third)
	expired := token(now.Add(-2*time.Hour), now.Add(-time.Hour))
	write(server.with(expired))
	continues("replaced by one that has expired", expired)
	select {
	case <-watched.ResultChan():
		t.Error("the watch ended although the account and the server are the same")
	default:
	}

	for _, c := range []struct {
		what, text string
		server     *listener
		shows      string
	}{
		{"another account", server.with(stranger), server, stranger},
		{"another server", other.with(stranger), other, stranger},
		{"an opaque token", other.with("a"), other, "a"},
		{"another opaque token", other.with("b"), other, "b"},
	} {
		changed := credential.Changed()
		write(c.text)
		select {
		case <-watched.ResultChan():
		case <-time.After(time.Minute):
			t.Fatalf("%s: the watch continues", c.what)
		}
		if !ended(client) || !strings.Contains(context.Cause(client.Context()).Error(), "names another server, certificate authority or account") {
			t.Errorf("%s: %v", c.what, context.Cause(client.Context()))
		}
		select {
		case <-changed:
		default:
			t.Errorf("%s: the change is not announced", c.what)
		}
		// The requests that end a term go to the same server as the term's other requests.
		before := client
		if client, err = credential.Client(); err != nil || client == before || c.server.shows(t, client) != c.shows {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.what == "another server" && server.shows(t, before) != stranger {
			t.Error("the old client does not reach its server")
		}
	}
	// A kubeconfig that stays unusable, for example an empty one, ends the client too.
	write("")
	if ended(client) {
		t.Error("ended by a kubeconfig that may be half-written")
	}
	if credential.read(time.Now().Add(lasting)); !ended(client) || !strings.Contains(context.Cause(client.Context()).Error(), path) {
		t.Errorf("emptied: %v", context.Cause(client.Context()))
	}
	if s := credential.State(); !s.Present || s.InUse || !fails(s, time.Now().Add(lasting)) {
		t.Errorf("emptied: %+v", s)
	}
	write(other.with("b"))
	client, err = credential.Client()
	must(t, err)
	changed := credential.Changed()
	must(t, os.Remove(path))
	credential.read(time.Now())
	select {
	case <-changed:
	default:
		t.Error("the kubeconfig is gone, but the change is not announced")
	}
	if !ended(client) || context.Cause(client.Context()).Error() != "no kubeconfig" {
		t.Errorf("gone: %v", context.Cause(client.Context()))
	}
	if s := credential.State(); s.Present || s.User != "" || s.Error != "" {
		t.Errorf("gone: %+v", s)
	}
	if c, err := credential.Client(); c != nil || err == nil {
		t.Errorf("gone: %v, %v", c, err)
	}
}

// TestHostsClientFollows checks that a host's client follows the kubeconfig to any server and survives its absence.
// Changes of the files that it names, and of links to them, count too.
func TestHostsClientFollows(t *testing.T) {
	server, other := listen(t), listen(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "kubelet.conf")
	inFiles := func(l *listener) string {
		text := strings.Replace(l.with("a"), "{certificate-authority-data: "+caOf(l.Server)+",", "{certificate-authority: ca.pem,", 1)
		return strings.Replace(text, "token: a", "client-certificate: current.pem, client-key: current.pem", 1)
	}
	put := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	certify := func(name string) {
		t.Helper()
		cert, key := certificate(t, "system:node:n1", time.Now().Add(time.Hour))
		put(name, cert+key)
	}
	ca := func(l *listener) string {
		text, err := base64.StdEncoding.DecodeString(caOf(l.Server))
		must(t, err)
		return string(text)
	}
	var mu sync.Mutex
	var states []State
	credential := New(Options{
		Identity: v1alpha1.IdentityHost, Paths: []string{filepath.Join(dir, "first"), path}, Absent: "none", QPS: 100, Burst: 100,
		Report: func(s State) { mu.Lock(); states = append(states, s); mu.Unlock() },
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { credential.Run(ctx) })
	defer running.Wait()
	defer stop()
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("timed out waiting for %s: %+v", what, credential.State())
			}
		}
	}
	if _, err := credential.Client(); err == nil {
		t.Error("there is a client without a kubeconfig")
	}
	put("ca.pem", ca(server))
	certify("1.pem")
	must(t, os.Symlink("1.pem", filepath.Join(dir, "current.pem")))
	put("kubelet.conf", inFiles(server))
	until("a client", func() bool { c, _ := credential.Client(); return c != nil })
	client, err := credential.Client()
	must(t, err)
	server.shows(t, client)
	rotated := func(what string, change func()) {
		t.Helper()
		before := client.conn.Load()
		change()
		until(what, func() bool { return client.conn.Load() != before })
		if c, err := credential.Client(); c != client || err != nil || ended(client) {
			t.Errorf("%s: %v", what, err)
		}
	}
	rotated("another certificate", func() {
		certify("2.pem")
		must(t, os.Symlink("2.pem", filepath.Join(dir, "new.pem")))
		must(t, os.Rename(filepath.Join(dir, "new.pem"), filepath.Join(dir, "current.pem")))
	})
	rotated("the link's target, written to", func() { certify("2.pem") })
	put("2.pem", "half")
	until("its problem", func() bool { return credential.State().Error != "" })
	server.shows(t, client)
	rotated("a whole one", func() { certify("2.pem") })
	if s := credential.State(); s.Error != "" || s.User != "system:node:n1" {
		t.Errorf("%+v", s)
	}
	must(t, os.Remove(path))
	until("its absence", func() bool { return !credential.State().Present })
	server.shows(t, client)
	rotated("another server", func() { put("ca.pem", ca(other)+ca(server)); put("kubelet.conf", inFiles(other)) })
	until("its arrival there", func() bool { return strings.Contains(client.conn.Load().base.String(), other.URL) })
	other.shows(t, client)
	// The path that comes first counts.
	rotated("the first path", func() { put("first", server.with("x")) })
	if got := server.shows(t, client); got != "x" {
		t.Errorf("shows %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i < len(states); i++ {
		if states[i] == states[i-1] {
			t.Errorf("reported twice: %+v", states[i])
		}
	}
}

// cluster is an API server that has one Node, n1, and whose watches report nothing.
func cluster(t *testing.T, version, uid string) *listener {
	l := &listener{}
	l.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		n := node("n1", uid, version)
		n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		json.NewEncoder(w).Encode(&corev1.NodeList{
			TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: []corev1.Node{*n},
		})
	}))
	t.Cleanup(l.Close)
	return l
}

// TestWatchFollowsToAnotherCluster checks that a host's watch lists again when the kubeconfig names another cluster. The
// versions of the two clusters cannot be compared, and a watch does not report an object that does not change.
func TestWatchFollowsToAnotherCluster(t *testing.T) {
	one, other := cluster(t, "100", "a"), cluster(t, "200", "b")
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	c := New(Options{Identity: v1alpha1.IdentityHost, Paths: []string{path}, Absent: "none", QPS: 100, Burst: 100})
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o600))
		c.read(time.Now())
	}
	write(one.with("x"))
	client, err := c.Client()
	must(t, err)
	w := WatchNode(client, "n1", nil)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running.Go(func() { w.Run(ctx) })
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("timed out waiting for %s: %v", what, w.Get("n1"))
			}
		}
	}
	watches := func() bool { w.mu.Lock(); defer w.mu.Unlock(); return !w.since.IsZero() }
	until("the watch", watches)
	// While a server refuses connections, the reflector repeats the watch and does not list.
	until("a watch that has lasted", func() bool { // the reflector lists again after a watch of less than a second
		w.mu.Lock()
		defer w.mu.Unlock()
		return time.Since(w.since) > 1500*time.Millisecond
	})
	one.CloseClientConnections()
	one.Close()
	until("the failure of the watch", func() bool { return w.Err() != nil })
	write(other.with("x"))
	until("the Node of the other cluster", func() bool { n := w.Get("n1"); return n != nil && n.UID == "b" && watches() })
	// The same account with another token is in the same cluster.
	now := time.Now()
	write(other.with(token(now, now.Add(time.Hour))))
	until("the watch with the account's token", watches)
	before := client.Identity()
	write(other.with(token(now, now.Add(2*time.Hour))))
	if client.Identity() != before {
		t.Error("another token of the same account counts as another server")
	}
	if p := WatchPolicies(client, paused, nil); p.opts.Server() != before {
		t.Error("the policies of one cluster would stay in another")
	}
}

// TestTroublesAreReported checks that a refusal and a plugin's failure are reported, and are cleared by another
// kubeconfig.
func TestTroublesAreReported(t *testing.T) {
	server := listen(t)
	path := filepath.Join(t.TempDir(), "kubelet.conf")
	var last State
	c := New(Options{Identity: v1alpha1.IdentityHost, Paths: []string{path}, QPS: 100, Burst: 100, Report: func(s State) { last = s }})
	use := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path, []byte(text), 0o600))
		c.read(time.Now())
		client, err := c.Client()
		must(t, err)
		_, _ = client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	}
	use(server.with("refused"))
	if last.Refused.IsZero() || last.Error != "" || !last.Present {
		t.Errorf("refused: %+v", last)
	}
	plugin := strings.Replace(server.with("x"), "token: x", "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false, interactiveMode: Never}", 1)
	use(plugin)
	// The report follows the failure of the request.
	for end := time.Now().Add(30 * time.Second); !strings.Contains(c.reportedState().Error, "credential plugin false: exit status 1"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the failing plugin is not reported: %+v", c.reportedState())
		}
	}
	if s := c.State(); !s.Refused.IsZero() || s.ErrorSince.IsZero() || fails(s, time.Now()) || !fails(s, time.Now().Add(lasting)) {
		t.Errorf("state with a failing plugin: %+v", s)
	}
	use(server.with("x"))
	if s := c.State(); s.Error != "" || fails(s, time.Now().Add(time.Hour)) || s.Answered.IsZero() {
		t.Errorf("state without trouble: %+v", s)
	}
}

func fails(s State, now time.Time) bool {
	_, fails := s.Problem(now)
	return fails
}

func (c *Credential) reportedState() State {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	return c.reported
}
