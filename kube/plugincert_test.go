package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certified returns an ExecCredential with a certificate for name until end. stamp is its expirationTimestamp, unless
// it is zero.
func certified(t *testing.T, name string, end, stamp time.Time) string {
	t.Helper()
	cert, key := certificate(t, name, end)
	status := map[string]string{"clientCertificateData": cert, "clientKeyData": key}
	if !stamp.IsZero() {
		status["expirationTimestamp"] = stamp.UTC().Format(time.RFC3339)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
	must(t, err)
	return string(text)
}

// certificate returns a certificate in PEM, with its key.
func certificate(t *testing.T, name string, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", secret)
}

// TestPluginReplacesARefusedCertificate checks that a certificate that the API server refuses is replaced, and that its
// connection is not used again.
func TestPluginReplacesARefusedCertificate(t *testing.T) {
	var tokens []string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peers := r.TLS.PeerCertificates; len(peers) != 1 || peers[0].Subject.CommonName != "second" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		tokens = append(tokens, r.Header.Get("Authorization"))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	p, dir := scripted(t, "echo x >>runs\ncat cred$(grep -c x runs)\n", nil)
	must(t, os.WriteFile(dir+"/cred1", []byte(certified(t, "first", time.Now().Add(time.Hour), time.Time{})), 0o600))
	must(t, os.WriteFile(dir+"/cred2", []byte(certified(t, "second", time.Now().Add(time.Hour), time.Time{})), 0o600))
	w, err := newConnection(&kubeconfig{config: serving(server, p.command)}, "test", func(rt http.RoundTripper) http.RoundTripper { return rt })
	must(t, err)
	w.plugin.gap = 0
	var codes []int
	for range 3 {
		codes = append(codes, get(t, w))
	}
	if codes[0] != 401 || codes[1] != 200 || codes[2] != 200 {
		t.Errorf("status codes %v, expected a refusal and then a success", codes)
	}
	if runs := read(t, dir+"/runs"); runs != "x\nx\n" {
		t.Errorf("the plugin ran %d times, expected 2", len(runs)/2)
	}
}

// serving returns a configuration for a server, with this program as the plugin.
func serving(server *httptest.Server, command string) *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &rest.Config{
		Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		ExecProvider: &clientcmdapi.ExecConfig{Command: command, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode},
	}
}

// get returns the status code of one request.
func get(t *testing.T, w *connection) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/version", nil)
	must(t, err)
	resp, err := w.RoundTrip(r)
	must(t, err)
	must(t, resp.Body.Close())
	return resp.StatusCode
}

// TestPluginCredentialEnds checks that a credential ends with its certificate, even if its expirationTimestamp is
// later.
func TestPluginCredentialEnds(t *testing.T) {
	p, _ := scripted(t, "", nil)
	now := time.Now().Truncate(time.Second)
	soon, later := now.Add(time.Hour), now.Add(2*time.Hour)
	for _, c := range []struct {
		name             string
		end, stamp, want time.Time
	}{
		{"certificate alone", soon, time.Time{}, soon},
		{"certificate first", soon, later, soon},
		{"stamp first", later, soon, soon},
	} {
		m, err := p.read([]byte(certified(t, "host", c.end, c.stamp)), "")
		if err != nil || !m.expiry.Equal(c.want) {
			t.Errorf("%s: %+v, %v; expected the end at %v", c.name, m, err, c.want)
		}
	}
}

// TestPluginClosesBeforeItGives checks that no caller gets a new certificate before the connections with the old one
// are closed.
func TestPluginClosesBeforeItGives(t *testing.T) {
	p, dir := scripted(t, "cat cred\n", nil)
	must(t, os.WriteFile(dir+"/cred", []byte(certified(t, "second", time.Now().Add(time.Hour), time.Time{})), 0o600))
	cert, key := certificate(t, "first", time.Now())
	old, err := tls.X509KeyPair([]byte(cert), []byte(key))
	must(t, err)
	p.have = minted{cert: &old, expiry: time.Now()}
	closed := false
	p.renewed = func() {
		closed = true
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if m, err := p.credential(ctx); err == nil {
			t.Errorf("a new caller gets %+v already", m)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running == nil {
			t.Error("a waiting caller was woken before the old connections were closed")
		}
		if p.have.cert == &old {
			t.Error("a new connection would use the old certificate")
		}
	}
	m, err := p.credential(t.Context())
	if err != nil || bytes.Equal(m.cert.Certificate[0], old.Certificate[0]) || !closed {
		t.Errorf("%+v, %v, closed %t", m, err, closed)
	}
}

// TestPluginGivesWay checks that, as in client-go, the plugin does not run if the user has another credential.
func TestPluginGivesWay(t *testing.T) {
	seen := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Authorization")
		for _, c := range r.TLS.PeerCertificates {
			seen += c.Subject.CommonName
		}
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	p, dir := scripted(t, "echo x >>runs\n"+gives("plugin", ""), nil)
	file := dir + "/token"
	must(t, os.WriteFile(file, []byte("filed"), 0o600))
	cert, key := certificate(t, "own", time.Now().Add(time.Hour))
	for _, c := range []struct {
		name, want string
		edit       func(*rest.Config)
	}{
		{"token", "Bearer own", func(c *rest.Config) { c.BearerToken = "own" }},
		{"token in a file", "Bearer filed", func(c *rest.Config) { c.BearerTokenFile = file }},
		{"password", "Basic bWU6b3du", func(c *rest.Config) { c.Username, c.Password = "me", "own" }},
		{"certificate", "own", func(c *rest.Config) { c.CertData, c.KeyData = []byte(cert), []byte(key) }},
		{"nothing", "Bearer plugin", func(*rest.Config) {}},
	} {
		cfg := serving(server, p.command)
		c.edit(cfg)
		w, err := newConnection(&kubeconfig{config: cfg}, "test", func(rt http.RoundTripper) http.RoundTripper { return rt })
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if get(t, w); seen != c.want {
			t.Errorf("%s: the request has %q, expected %q", c.name, seen, c.want)
		}
		if asked := strings.Contains(readIf(dir+"/runs"), "x"); asked != (c.name == "nothing") {
			t.Errorf("%s: plugin ran: %t", c.name, asked)
		}
	}
}
