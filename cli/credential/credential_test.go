package credential

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/kube/secret"
)

// tokens is an API server that gives tokens of at most an hour, in JSON, and an admin's kubeconfig for it. It refuses to renew them,
// for the reason in renewal.
func tokens(t *testing.T, cluster string) (kubeconfig string, asked, renewal *string) {
	t.Helper()
	asked, renewal = new(string), new(string)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") == "Bearer secret-1" { // the token that was minted: it is tried out
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":%q}`, *renewal)
			return
		}
		*asked = r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization")
		if !strings.HasSuffix(r.URL.Path, "/namespaces/lockkeeper/serviceaccounts/lockkeeper-coordinator/token") {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"expirationSeconds":3600,"audiences":["x"]},
			"status":{"token":"secret-1","expirationTimestamp":"2026-01-02T03:04:05Z"}}`)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{"server": server.URL, "certificate-authority": "ca.pem"}
	if err := json.Unmarshal([]byte(cluster), &fields); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": fields}},
		"users":    []any{map[string]any{"name": "c", "user": map[string]any{"token": "admin's"}}},
		"contexts": []any{
			map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "c"}},
			map[string]any{"name": "broken", "context": map[string]any{"cluster": "none", "user": "c"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, asked, renewal
}

func TestMint(t *testing.T) {
	admin, asked, renewal := tokens(t, `{"tls-server-name": "example.com"}`)
	*renewal = `serviceaccounts "lockkeeper-coordinator" is forbidden: ValidatingAdmissionPolicy 'lockkeeper-coordinator-token' with binding 'lockkeeper-coordinator-token' denied request: x`
	c, err := Mint(t.Context(), Options{Caller: kube.Caller{Kubeconfig: admin}, Lifetime: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if want := "POST /api/v1/namespaces/lockkeeper/serviceaccounts/lockkeeper-coordinator/token Bearer admin's"; *asked != want {
		t.Errorf("asked %q, want %q", *asked, want)
	}
	expires := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if !c.Expires.Equal(expires) || !c.Shortened || !c.Local || c.User != "system:serviceaccount:lockkeeper:lockkeeper-coordinator" {
		t.Errorf("%+v", c)
	}
	if got := strings.Join(c.Notes(expires.Add(-25*time.Hour)), "\n"); got != "valid until 2026-01-02T03:04:05Z, for 25h; a new one put in its place is noticed without a restart\n"+
		"the API server issues none for longer than that\n"+
		"it cannot renew itself: the admission policy lockkeeper-coordinator-token does not know this API server's audience. The token itself is valid. "+
		"Run this, with the other options that you gave `lockkeeper manifests` before: lockkeeper manifests --audience 'x' | kubectl apply -f -\n"+
		"it reaches the API server at "+c.Server+", which is each host's own; --server names another address" {
		t.Errorf("notes:\n%s", got)
	}
	text := string(c.Kubeconfig)
	if strings.Contains(text, "admin") || strings.Contains(text, "ca.pem") {
		t.Errorf("something of the admin's went over:\n%s", text)
	}
	if !strings.HasPrefix(text, "# The credential of lockkeeper's coordinator, system:serviceaccount:lockkeeper:lockkeeper-coordinator. A secret.\n# Valid until 2026-01-02T03:04:05Z.\n") {
		t.Errorf("its head:\n%s", text)
	}
	// It is whole: taken elsewhere it connects, with the token and the authority in it.
	cfg, err := clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.BearerToken != "secret-1" || len(cfg.CAData) == 0 || cfg.CAFile != "" || cfg.ServerName != "example.com" || cfg.Host != c.Server {
		t.Errorf("as a client's: %+v", cfg)
	}
}

// An admin often reaches the API server through a proxy on the admin's own machine, such as an SSH tunnel. The hosts have none
// there, also if --server names an address that they can use.
func TestLocalProxyIsNoted(t *testing.T) {
	admin, _, _ := tokens(t, `{}`)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
		go io.Copy(to, from)
		io.Copy(from, to)
	}))
	t.Cleanup(proxy.Close)
	text, err := os.ReadFile(admin)
	if err != nil {
		t.Fatal(err)
	}
	through := strings.Replace(string(text), `"server":`, `"proxy-url":"`+strings.Replace(proxy.URL, "//", "//me:hidden@", 1)+`","server":`, 1)
	if err := os.WriteFile(admin, []byte(through), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Mint(t.Context(), Options{Caller: kube.Caller{Kubeconfig: admin}, Lifetime: time.Hour, Server: "https://api.example:6443"})
	if err != nil {
		t.Fatal(err)
	}
	notes := c.Notes(c.Expires.Add(-time.Hour))
	want := "it reaches the API server through the proxy " + strings.Replace(proxy.URL, "//", "//me:xxxxx@", 1) + ", as your kubeconfig does; that address is each host's own. " +
		"If the hosts run no such proxy, remove proxy-url from it"
	if got := notes[len(notes)-1]; got != want {
		t.Errorf("the last note is %q, expected %q", got, want)
	}
}

func TestMintSaysWhatIsWrong(t *testing.T) {
	admin, asked, _ := tokens(t, `{}`)
	insecure, _, _ := tokens(t, `{"insecure-skip-tls-verify": true, "certificate-authority": ""}`)
	plain, _, _ := tokens(t, `{"server": "http://127.0.0.1:1"}`)
	away, _, _ := tokens(t, `{"server": "https://127.0.0.1:1"}`)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Caller: kube.Caller{Kubeconfig: admin}, Lifetime: time.Minute}, "a lifetime of 1m0s, expected 1h to 365d"},
		{Options{Caller: kube.Caller{Kubeconfig: admin}, Lifetime: 366 * 24 * time.Hour}, "a lifetime of 366d, expected 1h to 365d"},
		{Options{Caller: kube.Caller{Kubeconfig: admin, Context: "broken"}}, `kubeconfig: no context "broken" with a cluster`},
		{Options{Caller: kube.Caller{Kubeconfig: admin, Context: "no-such"}}, `kubeconfig: no context "no-such" with a cluster`},
		{Options{Caller: kube.Caller{Kubeconfig: empty}}, "kubeconfig: " + empty + " is empty or is no kubeconfig"},
		{Options{Caller: kube.Caller{Kubeconfig: empty + "x"}}, "kubeconfig: stat"},
		{Options{Caller: kube.Caller{Kubeconfig: admin}, Server: "cluster.example"}, `the API server's address "cluster.example", expected https://HOST[:PORT]`},
		{Options{Caller: kube.Caller{Kubeconfig: plain}}, `the API server's address "http://127.0.0.1:1", expected https://HOST[:PORT]`},
		{Options{Caller: kube.Caller{Kubeconfig: insecure}}, `kubeconfig: cluster "c" is used with insecure-skip-tls-verify; `},
	} {
		if c.o.Lifetime == 0 {
			c.o.Lifetime = DefaultLifetime
		}
		*asked = ""
		if _, err := Mint(t.Context(), c.o); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q…", c.o, err, c.want)
		}
		if *asked != "" {
			t.Errorf("%+v: asked %s before it was refused", c.o, *asked)
		}
	}
	_, err := Mint(t.Context(), Options{Caller: kube.Caller{Kubeconfig: admin}, Lifetime: time.Hour, Namespace: "elsewhere", Kubectl: " --context prod"})
	if err == nil || err.Error() != "there is no service account elsewhere/lockkeeper-coordinator; apply the manifests first: lockkeeper manifests --namespace elsewhere | kubectl --context prod apply -f -" {
		t.Errorf("not applied: %v", err)
	}
	_, err = Mint(t.Context(), Options{Caller: kube.Caller{Kubeconfig: away}, Lifetime: time.Hour})
	if err == nil || !strings.HasPrefix(err.Error(), "asking for a token of service account lockkeeper/lockkeeper-coordinator: ") {
		t.Errorf("away: %v", err)
	}
}

func TestParseLifetime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1h": time.Hour, "60m": time.Hour, "90d": DefaultLifetime, "365d": MaxLifetime, "8760h": MaxLifetime, "1d": 24 * time.Hour,
		"59m": 0, "366d": 0, "": 0, "d": 0, "1.5d": 0, "-1d": 0, "90": 0, "2y": 0, "99999999999999d": 0, "106752d": 0, "+Inf": 0,
	} {
		got, err := ParseLifetime(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "coordinator.kubeconfig")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path) // who has opened the old one reads it to its end
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := secret.WriteFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if was, err := io.ReadAll(old); string(was) != "old" || err != nil {
		t.Errorf("the old file reads %q, %v", was, err)
	}
	text, err := os.ReadFile(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || string(text) != "new" || info.Mode() != 0o600 {
		t.Errorf("%q, %v, %v, %v", text, info.Mode(), err, statErr)
	}
	for _, bad := range []string{filepath.Join(dir, "none", "x"), dir} {
		if err := secret.WriteFile(bad, []byte("new")); err == nil || !strings.HasPrefix(err.Error(), "writing "+bad+": ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// Nothing half is left behind, neither there nor beside it.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		entries, err := os.ReadDir(d)
		if err != nil || len(entries) != 1 {
			t.Errorf("in %s: %v, %v", d, entries, err)
		}
	}
}

// What the API server answers to the token that was minted, and what the admin reads.
func TestRenewalIsTriedOut(t *testing.T) {
	for _, c := range []struct {
		code            int
		reason, message string
		want            string
	}{
		{http.StatusCreated, "", "", ""},
		{http.StatusForbidden, "Forbidden", "ValidatingAdmissionPolicy 'lockkeeper-coordinator-token' with binding 'x' denied request: y",
			"it cannot renew itself: the admission policy lockkeeper-coordinator-token does not know this API server's audience. The token itself is valid. " +
				"Run this, with the other options that you gave `lockkeeper manifests` before: lockkeeper manifests --namespace ns --audience 'https://a.example' --audience 'k3s' | kubectl apply -f -"},
		{http.StatusForbidden, "Forbidden", `serviceaccounts "lockkeeper-coordinator" is forbidden: User "u" cannot create resource`,
			"it does not renew itself: RBAC does not let the coordinator ask for tokens, as with `lockkeeper manifests --no-renewal`. Put a new token in its place before it expires"},
		{http.StatusBadGateway, "", "away", "cannot find out whether it can renew itself: "},
	} {
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.URL.Query().Get("dryRun"), " ", r.Header.Get("Authorization")))
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.code)
			if c.code == http.StatusCreated {
				fmt.Fprint(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{},"status":{"token":"another"}}`)
				return
			}
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, c.reason, c.code, c.message)
		}))
		minted := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(7200)), Audiences: []string{"https://a.example", "k3s"}}}
		minted.Status.Token = "minted"
		// Nothing of the admin's own credential is used.
		got := proveRenewal(t.Context(), &rest.Config{Host: server.URL, BearerToken: "admin's"},
			&Options{Namespace: "ns"}, minted)
		server.Close()
		if c.code == http.StatusBadGateway && !strings.HasPrefix(got, c.want) || c.code != http.StatusBadGateway && got != c.want {
			t.Errorf("%d %s: %q, want %q", c.code, c.message, got, c.want)
		}
		if want := "POST /api/v1/namespaces/ns/serviceaccounts/lockkeeper-coordinator/token All Bearer minted"; len(asked) == 0 || asked[0] != want {
			t.Errorf("asked %q, want %q", asked, want)
		}
	}
}
