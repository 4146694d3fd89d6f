package coordinator

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func minted(server, account string, serial int) string {
	enc := base64.RawURLEncoding.EncodeToString
	token := enc([]byte("{}")) + "." + enc(fmt.Appendf(nil,
		`{"sub":"system:serviceaccount:lockkeeper:%s","iat":%d,"exp":4102444800}`, account, 1767225600+serial)) + ".x"
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
		if c.bearer.follow(path) || last() != before {
			t.Errorf("%s: followed", name)
		}
	}
	second := minted(server.URL, account, 1)
	write(second)
	if !c.bearer.follow(path) {
		t.Fatal("its own renewal is not followed")
	}
	if after := last(); after == before || !strings.Contains(second, after[len("Bearer "):]) || c.client != client {
		t.Errorf("shows %q afterwards", after)
	}
	var none *bearer
	if none.follow(path) {
		t.Error("a client without a token follows one")
	}
}
