package webclient

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// The proxy in the environment is used, for servers that are not on this host, and an answer is read up to its bound. The
// environment counts as it is at a process's first request, so this package has one test.
func TestProxyAndBound(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.RequestURI)
		w.Write(bytes.Repeat([]byte("x"), 1<<20))
	}))
	defer server.Close()
	t.Setenv("HTTP_PROXY", server.URL)
	client := New(Options{MaxAnswer: 1000})
	for _, to := range []string{"http://receiver.example.invalid/path", server.URL + "/direct"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if _, tooLong := errors.AsType[*http.MaxBytesError](err); len(body) != 1000 || !tooLong {
			t.Errorf("%s: %d bytes, %v", to, len(body), err)
		}
	}
	if len(asked) != 2 || asked[0] != "http://receiver.example.invalid/path" || asked[1] != "/direct" {
		t.Errorf("the server was asked for %q", asked)
	}
}
