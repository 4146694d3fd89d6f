package gate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const answerHead = `{"status":"success","data":{"resultType":`

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func judge(t *testing.T, ctx context.Context, o Options) (bool, string) {
	t.Helper()
	open, detail := New(o).judge(ctx, "up == 0")
	return open, v1alpha1.OneLine(detail, MaxDetail)
}

// What a real Prometheus says is in testbed/rollout; these are answers that it
// gives rarely, or that others give.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   int
		body   string
		open   bool
		detail string
	}{
		{"nothing", 200, answerHead + `"vector","result":[]}}`, true, ""},
		{"the least of several series, whatever their order", 200, answerHead + `"vector","result":[{"metric":{"__name__":"b"},"value":[1,"2"]},{"metric":{"__name__":"a","x":"y\nz"},"value":[1,"1.5"]}]}}`,
			false, `its query returns 2 series, the first a{x="y\nz"} with 1.5`},
		{"a series without labels", 200, answerHead + `"vector","result":[{"metric":{},"value":[1,"NaN"]}]}}`, false, "its query returns {} with NaN"},
		{"a scalar", 200, answerHead + `"scalar","result":[1,"0"]}}`, false, "the query returns a scalar, expected an instant vector"},
		{"an empty matrix", 200, answerHead + `"matrix","result":[]}}`, false, "the query returns a matrix, expected an instant vector"},
		{"a string", 200, answerHead + `"string","result":[1,"x"]}}`, false, `unexpected value type "string"`},
		{"no result", 200, answerHead + `"vector","result":null}}`, false, "Prometheus answered without a result"},
		{"no data", 200, `{"status":"success"}`, false, ""},
		{"an empty object", 200, `{}`, false, ""},
		{"nothing at all", 204, "", false, ""},
		{"a page", 200, "<html>", false, "the answer cannot be read: "},
		{"half of it", 200, answerHead + `"vector","result":[`, false, "the answer cannot be read: "},
		{"nothing from a part of the servers", 200, `{"status":"success","warnings":["store a is away"],"data":{"resultType":"vector","result":[]}}`,
			false, "its query returns nothing, with a warning: store a is away"},
		{"nothing, with a remark", 200, `{"status":"success","warnings":["PromQL info: metric might not be a counter"],"data":{"resultType":"vector","result":[]}}`, true, ""},
		{"a query that is none", 400, `{"status":"error","errorType":"bad_data","error":"1:1: parse error"}`, false, "the query is not valid: 1:1: parse error"},
		{"a query that fails", 422, `{"status":"error","errorType":"execution","error":"many-to-many"}`, false, "Prometheus cannot answer (execution): many-to-many"},
		{"an error that calls itself a success", 422, answerHead + `"vector","result":[]}}`, false, "the answer cannot be read: inconsistent body for response code"},
		{"401", 401, "who are you", false, "Prometheus refuses the query (client error: 401); check coordinator.prometheus_token_file"},
		{"404", 404, "", false, "Prometheus cannot answer (client_error): client error: 404"},
		{"503", 503, "", false, "Prometheus cannot answer (server_error): server error: 503"},
		{"too large", 200, answerHead + `"vector","result":[` + strings.Repeat(" ", MaxAnswer) + `]}}`, false, "the answer is larger than 1 MiB, expected nothing or a few series"},
		{"too large an error", 500, strings.Repeat("x", 2*MaxAnswer), false, "the answer is larger than 1 MiB, expected nothing or a few series"},
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/path/api/v1/query" || r.FormValue("query") != "up == 0" || r.FormValue("timeout") != "10s" || r.FormValue("time") != "" || r.Header.Get("Authorization") != "" {
				t.Errorf("%s: asked %s with %v", c.name, r.URL, r.Form)
			}
			w.WriteHeader(c.code)
			w.Write([]byte(c.body))
		})
		open, detail := judge(t, t.Context(), Options{URL: s.URL + "/path/"})
		if open != c.open || !strings.Contains(detail, c.detail) || !open && detail == "" {
			t.Errorf("%s: %t, %q; expected %t, %q", c.name, open, detail, c.open, c.detail)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	hangs := make(chan struct{})
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) { <-hangs })
	stalls := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(answerHead))
		w.(http.Flusher).Flush()
		<-hangs
	})
	t.Cleanup(func() { close(hangs) })
	for _, s := range []*httptest.Server{slow, stalls} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		open, detail := judge(t, ctx, Options{URL: s.URL})
		cancel()
		if open || detail != "no answer within 10s" {
			t.Errorf("%t, %q", open, detail)
		}
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if open, detail := judge(t, t.Context(), Options{URL: gone.URL}); open || !strings.HasPrefix(detail, "cannot query Prometheus: dial tcp 127.0.0.1:") || !strings.HasSuffix(detail, "connection refused") {
		t.Errorf("%t, %q", open, detail)
	}
	cuts := serve(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	if open, detail := judge(t, t.Context(), Options{URL: cuts.URL}); open || !strings.HasPrefix(detail, "cannot query Prometheus: ") {
		t.Errorf("%t, %q", open, detail)
	}
	if open, detail := judge(t, t.Context(), Options{URL: strings.Replace(cuts.URL, "http:", "https:", 1)}); open || !strings.HasPrefix(detail, "cannot query Prometheus: ") {
		t.Errorf("no TLS: %t, %q", open, detail)
	}
}

// The token is that of the file at each query, goes to no other server, and is in no message.
func TestToken(t *testing.T) {
	var got []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization")+" "+r.Header.Get("User-Agent"))
		w.Write([]byte(answerHead + `"vector","result":[]}}`))
	})
	file := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{URL: s.URL, TokenFile: file, Version: "v1"}
	g := New(o)
	if open, detail := g.judge(t.Context(), "up"); open || !strings.Contains(detail, "reading coordinator.prometheus_token_file: stat "+file+": no such file") {
		t.Errorf("no file: %t, %q", open, detail)
	}
	for _, bad := range []string{"", " \n", "sec ret", "secret\nX: y", "sécret", strings.Repeat("secret", 20000)} {
		put(bad)
		if open, detail := g.judge(t.Context(), "up"); open || !strings.Contains(detail, "holds no token, expected one line") || strings.Contains(detail, "ret") {
			t.Errorf("%.20q: %t, %q", bad, open, detail)
		}
	}
	for _, token := range []string{"first-secret\n", "second-secret"} {
		put(token)
		if open, detail := g.judge(t.Context(), "up"); !open {
			t.Errorf("%q", detail)
		}
	}
	if len(got) != 2 || got[0] != "Bearer first-secret lockkeeper-coordinator/v1" || got[1] != "Bearer second-secret lockkeeper-coordinator/v1" {
		t.Errorf("the server got %q", got)
	}
	away := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.URL+"/elsewhere", http.StatusTemporaryRedirect)
	})
	if open, detail := judge(t, t.Context(), Options{URL: away.URL, TokenFile: file}); open || len(got) != 2 ||
		!strings.Contains(detail, "it redirects to "+s.URL+"/elsewhere; redirects are not followed") {
		t.Errorf("redirected: %t, %q, the other server got %q", open, detail, got)
	}
	if err := os.Mkdir(file+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	if open, detail := judge(t, t.Context(), Options{URL: s.URL, TokenFile: file + ".d"}); open || !strings.Contains(detail, "is not a regular file") {
		t.Errorf("%t, %q", open, detail)
	}
}
