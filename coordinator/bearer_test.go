package coordinator

import (
	"crypto/sha256"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/kube"
)

// never is when tokens end, in seconds since the epoch.
const never = 4102444800

func minted(server, account string, serial int) string { return until(server, account, serial, never) }

func jwt(account string, serial int, expires int64) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte("{}")) + "." + enc(fmt.Appendf(nil,
		`{"sub":"system:serviceaccount:lockkeeper:%s","iat":%d,"exp":%d}`, account, serial, expires)) + ".x"
}

// until is one whose token ends then.
func until(server, account string, serial int, expires int64) string {
	token := jwt(account, serial, expires)
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
	files := kube.Files{Kubeconfig: path, Renewed: filepath.Join(t.TempDir(), "coordinator-token.json")}
	c := &candidate{Options: Options{Credential: files, Version: "test"}, log: slog.New(slog.DiscardHandler)}
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
		"another account": minted(server.URL, "default", 1),
		"another server":  minted("https://elsewhere", account, 1),
		"no account's":    first[:strings.Index(first, "token: ")] + "token: opaque}}]\ncurrent-context: c\n",
		"not a file":      "clusters: 5\n",
	} {
		write(text)
		if c.bearer.follow(files) || last() != before {
			t.Errorf("%s: followed, shows %q", name, last())
		}
	}
	write("# another comment\n" + first)
	if !c.bearer.follow(files) || last() != before {
		t.Errorf("another comment: shows %q", last())
	}
	shows := func(what, token string) {
		t.Helper()
		if err := c.connect(); err != nil || c.client != client || last() != "Bearer "+token {
			t.Errorf("%s: shows %q, want %q; %v", what, last(), token, err)
		}
	}
	second := minted(server.URL, account, 1)
	write(second)
	shows("an administrator's new token", tokenOf(t, second))
	// The renewed token of this kubeconfig, and only of this one.
	renewed := jwt(account, 2, never+1)
	text := fmt.Sprintf(`{"kubeconfig": "%x", "token": %q}`, sha256.Sum256([]byte(second)), renewed)
	if err := os.WriteFile(files.Renewed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	shows("renewed", renewed)
	third := minted(server.URL, account, 3)
	write(third)
	shows("replaced by an administrator", tokenOf(t, third))
	write(until(server.URL, account, 4, 1))
	shows("replaced by one that has expired", jwt(account, 4, 1))
	write(second)
	shows("the old content again", renewed)
	if err := os.Remove(files.Renewed); err != nil {
		t.Fatal(err)
	}
	shows("without the renewed token", tokenOf(t, second))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := c.connect(); err == nil || c.client != nil {
		t.Errorf("without a kubeconfig: a client, %v", err)
	}
	var none *bearer
	if none.follow(files) {
		t.Error("a client without a token follows one")
	}
}

func tokenOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	_, token, ok := strings.Cut(kubeconfig, "token: ")
	if !ok {
		t.Fatal("no token in the kubeconfig")
	}
	return token[:strings.Index(token, "}")]
}
