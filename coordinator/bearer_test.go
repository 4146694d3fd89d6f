package coordinator

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func minted(server, account string, serial int) string {
	return until(server, account, serial, 4102444800)
}

// until is one whose token ends then, in seconds since the epoch.
func until(server, account string, serial int, expires int64) string {
	enc := base64.RawURLEncoding.EncodeToString
	token := enc([]byte("{}")) + "." + enc(fmt.Appendf(nil,
		`{"sub":"system:serviceaccount:lockkeeper:%s","iat":%d,"exp":%d}`, account, 1767225600+serial, expires)) + ".x"
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: %s}}]
current-context: c
`, server, token)
}

// A client follows the token of its own service account, and nothing else.
func TestBearerFollows(t *testing.T) {
	var mu sync.Mutex
	var shown []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		shown = append(shown, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const account = "lockkeeper-coordinator"
	first := minted(server.URL, account, 0)
	write(first)
	c := &candidate{Options: Options{Kubeconfig: path, Version: "test"}}
	if err := c.connect(); err != nil {
		t.Fatal(err)
	}
	last := func() string {
		t.Helper()
		// What comes back is no Lease; what was shown counts.
		_, _ = c.client.CoordinationV1().Leases("x").Get(t.Context(), "x", metav1.GetOptions{})
		mu.Lock()
		defer mu.Unlock()
		return shown[len(shown)-1]
	}
	before := last()
	if !strings.HasPrefix(before, "Bearer ") || !strings.Contains(first, before[len("Bearer "):]) {
		t.Fatalf("shows %q", before)
	}
	client := c.client
	for name, text := range map[string]string{
		"the same":        first,
		"another comment": "# renewed\n" + first,
		"another account": minted(server.URL, "default", 1),
		"another server":  minted("https://elsewhere", account, 1),
		"nobody's":        first[:strings.Index(first, "token: ")] + "token: opaque}}]\ncurrent-context: c\n",
		"not a file":      "clusters: 5\n",
	} {
		write(text)
		if v, _ := c.bearer.follow(path, time.Now()); v != stranger || last() != before {
			t.Errorf("%s: %d, shows %q", name, v, last())
		}
	}
	second := minted(server.URL, account, 1)
	write(second)
	if v, _ := c.bearer.follow(path, time.Now()); v != followed {
		t.Fatal("its own renewal is not followed")
	}
	if after := last(); after == before || !strings.Contains(second, after[len("Bearer "):]) || c.client != client {
		t.Errorf("shows %q afterwards", after)
	}
	var none *bearer
	if v, _ := none.follow(path, time.Now()); v != stranger {
		t.Error("a client without a token follows one")
	}
}

// An expired token takes the place of none that is good, and ends nothing: not the client, and not what comes after it.
func TestBearerSpurnsAnExpiredToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const account = "lockkeeper-coordinator"
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	server, now := api.URL, time.Now()
	good, old := until(server, account, 0, now.Add(time.Hour).Unix()), until(server, account, 1, now.Add(-time.Second).Unix())
	write(good)
	var log bytes.Buffer
	c := &candidate{Options: Options{Kubeconfig: path, Version: "test"}, log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := c.connect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.disconnect() })
	client, before := c.client, *c.bearer.token.Load()
	shows := func(what, want string) {
		t.Helper()
		if got := *c.bearer.token.Load(); got != want {
			t.Errorf("%s: shows %q, want %q", what, got, want)
		}
	}
	write(old)
	for range 2 {
		if goesOn, same := c.follow(); !goesOn || same {
			t.Errorf("an expired one: goes on %t, the same %t", goesOn, same)
		}
		shows("an expired one", before)
	}
	if err := c.connect(); err != nil || c.client != client {
		t.Errorf("the next campaign has another client (%v)", err)
	}
	if n := strings.Count(log.String(), "has expired"); n != 1 {
		t.Errorf("told %d times, want once:\n%s", n, log.String())
	}
	write(good)
	if goesOn, same := c.follow(); !goesOn || !same {
		t.Errorf("the good one back: goes on %t, the same %t", goesOn, same)
	}
	shows("the good one back", before)
	next := until(api.URL, account, 2, now.Add(2*time.Hour).Unix())
	write(next)
	if err := c.connect(); err != nil || c.client != client || *c.bearer.token.Load() == before {
		t.Errorf("the next one is not followed between campaigns (%v)", err)
	}
	// What is in memory has ended too: the file's it is, whatever the clock says.
	if v, _ := c.bearer.follow(path, now.Add(3*time.Hour)); v != stranger {
		t.Errorf("the same: %d", v)
	}
	write(old)
	if v, _ := c.bearer.follow(path, now.Add(3*time.Hour)); v != followed {
		t.Errorf("both have ended: %d", v)
	}
	// One that the API server does not take is no better.
	write(next)
	c.follow()
	write(old)
	c.taken(apierrors.NewUnauthorized("by the test"))
	if err := c.connect(); err != nil || c.client == client {
		t.Errorf("goes on with one that is refused (%v)", err)
	}
}
