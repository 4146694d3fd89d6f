package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// apiServer gives the test's own answers over real connections, so that it can cut them.
type apiServer struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	requests []string // "PATCH body" or "GET"
	answers  []any    // one for each request, in order; the last one repeats
}

// cut is a missing answer: the connection ends.
type cut struct{}

// html is the answer of a proxy.
type html int

// text is an answer in JSON that is not an object of the API server, or not the requested one.
type text string

// gone is the API server's answer that a Node with that name does not exist.
type gone string

// list is a list with the Node n1 at these resourceVersions.
type list []string

// redirect is the answer of a proxy that redirects to the same path, with this code.
type redirect int

// said is a Status with this code and message.
type said struct {
	code    int
	message string
}

// later adds a Retry-After of one second to an answer.
type later struct{ answer any }

func newAPIServer(t *testing.T, answers ...any) *apiServer {
	s := &apiServer{t: t, answers: answers}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *apiServer) client() *Client {
	s.t.Helper()
	c, err := ConnectConfig(&rest.Config{Host: s.URL}, "host", "test", 100, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	what := r.Method
	if r.Method == http.MethodGet && r.URL.Query().Has("fieldSelector") {
		what = "LIST"
	}
	if len(body) > 0 {
		what += " " + string(body)
	}
	s.requests = append(s.requests, what)
	answer := s.answers[min(len(s.requests), len(s.answers))-1]
	s.mu.Unlock()
	write := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(v)
	}
	if l, ok := answer.(later); ok {
		w.Header().Set("Retry-After", "1")
		answer = l.answer
	}
	switch a := answer.(type) {
	case gone:
		status := apierrors.NewNotFound(corev1.Resource("nodes"), string(a)).Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		write(404, status)
	case list:
		l := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "99"}}
		for _, version := range a {
			l.Items = append(l.Items, *node("n1", "a", version))
		}
		write(200, l)
	case text:
		write(200, json.RawMessage(a))
	case said:
		write(a.code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(a.code), Message: a.message})
	case cut:
		panic(http.ErrAbortHandler)
	case redirect:
		http.Redirect(w, r, r.URL.String(), int(a))
	case html:
		w.WriteHeader(int(a))
		fmt.Fprint(w, "<html>a proxy's page</html>")
	case int:
		write(a, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(a), Message: "no"})
	case string: // a Node with that resourceVersion
		n := node("n1", "a", a)
		n.TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		write(200, n)
	}
}

func (s *apiServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.requests...)
}

var cordon = Patch{
	Node: "n1", ResourceVersion: "10", Manager: FieldManager("host"), Unschedulable: new(true),
	Labels:      map[string]*string{"lockkeeper.dev/wants": new("reboot"), "lockkeeper.dev/group": nil},
	Annotations: map[string]*string{"lockkeeper.dev/cordon": new("t1"), "lockkeeper.dev/ack": nil},
}

const cordonBody = `{"metadata":{"annotations":{"lockkeeper.dev/ack":null,"lockkeeper.dev/cordon":"t1"},` +
	`"labels":{"lockkeeper.dev/group":null,"lockkeeper.dev/wants":"reboot"},"resourceVersion":"10"},"spec":{"unschedulable":true}}`

func TestPatchBody(t *testing.T) {
	for _, c := range []struct {
		p    Patch
		want string
	}{
		{cordon, cordonBody},
		{Patch{ResourceVersion: "7"}, `{"metadata":{"resourceVersion":"7"}}`},
		{Patch{ResourceVersion: "7", Labels: map[string]*string{}, Unschedulable: new(false)},
			`{"metadata":{"resourceVersion":"7"},"spec":{"unschedulable":false}}`},
	} {
		if got := string(c.p.body()); got != c.want {
			t.Errorf("body\n%s, want\n%s", got, c.want)
		}
	}
}

// TestWrite checks the outcome of one answer to a write, and of the reads that confirm it.
func TestWrite(t *testing.T) {
	const patch = "PATCH " + cordonBody
	one, read, listed := []string{patch}, []string{patch, "GET"}, []string{patch, "GET", "LIST"}
	for name, c := range map[string]struct {
		answers  []any
		want     Outcome
		version  string // of the Node that is returned
		requests []string
	}{
		"written":  {[]any{"11"}, Written, "11", one},
		"conflict": {[]any{409, "11"}, Conflict, "11", read},
		// If a webhook answers with the code of a conflict, a retry would fail again at once.
		"conflict on the version it names": {[]any{409, "10"}, Refused, "", read},
		// A proxy may have repeated a write that had landed. Only the Node can show that.
		"conflict that is not confirmed": {[]any{409, 503}, Unknown, "", read},

		"gone":                               {[]any{gone("n1"), gone("n1"), list{}}, Gone, "", listed},
		"gone by the read":                   {[]any{409, gone("n1"), list{}}, Gone, "", listed},
		"gone, and there by the list":        {[]any{gone("n1"), gone("n1"), list{"11"}}, Conflict, "11", listed},
		"gone, not confirmed by the list":    {[]any{gone("n1"), gone("n1"), html(404)}, Unknown, "", listed},
		"gone, not confirmed by the read":    {[]any{gone("n1"), html(404)}, Unknown, "", read},
		"404 of a proxy":                     {[]any{html(404)}, Unknown, "", one},
		"404 that names nothing":             {[]any{404}, Unknown, "", one},
		"404 that names another Node":        {[]any{gone("n2")}, Unknown, "", one},
		"conflict, then a proxy's 404":       {[]any{409, html(404)}, Unknown, "", read},
		"conflict, then another Node is not": {[]any{409, gone("n2")}, Unknown, "", read},

		"bad request": {[]any{400}, Refused, "", one}, "unauthorized": {[]any{401}, Refused, "", one}, "forbidden": {[]any{403}, Refused, "", one},
		"too large a body": {[]any{413}, Refused, "", one}, "invalid": {[]any{422}, Refused, "", one}, "too many": {[]any{429}, Refused, "", one},
		"too large for etcd":            {[]any{said{500, "etcdserver: request is too large"}}, Refused, "", one},
		"too large for etcd's client":   {[]any{said{500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (3 vs. 2)"}}, Refused, "", one},
		"a webhook that is away":        {[]any{said{500, `Internal error occurred: failed calling webhook "w.example.com": context deadline exceeded`}}, Refused, "", one},
		"another message of the server": {[]any{said{500, "etcdserver: request timed out"}}, Unknown, "", one},

		// It is unknown whether these writes took effect.
		"408": {[]any{408}, Unknown, "", one}, "500": {[]any{500}, Unknown, "", one}, "502": {[]any{502}, Unknown, "", one},
		"503": {[]any{503}, Unknown, "", one}, "504": {[]any{504}, Unknown, "", one}, "no answer": {[]any{cut{}}, Unknown, "", one},
		"403 of a proxy": {[]any{html(403)}, Unknown, "", one}, "502 of a proxy": {[]any{html(502)}, Unknown, "", one},
		// The first three codes turn a PATCH into a GET, whose answer looks like that of the PATCH. The others repeat it.
		"301 of a proxy": {[]any{redirect(301), "10"}, Unknown, "", one}, "302 of a proxy": {[]any{redirect(302), "10"}, Unknown, "", one},
		"303 of a proxy": {[]any{redirect(303), "10"}, Unknown, "", one}, "307 of a proxy": {[]any{redirect(307), 409, "11"}, Unknown, "", one},
		"308 of a proxy":                       {[]any{redirect(308), 409, "11"}, Unknown, "", one},
		"200 of a proxy":                       {[]any{html(200)}, Unknown, "", one},
		"200 of a proxy, in JSON":              {[]any{text(`{"status":"ok"}`)}, Unknown, "", one},
		"200 with a Status":                    {[]any{text(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)}, Unknown, "", one},
		"200 with another Node":                {[]any{text(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n2","uid":"a","resourceVersion":"11"}}`)}, Unknown, "", one},
		"conflict, then a proxy's 200 in JSON": {[]any{409, text(`{}`)}, Unknown, "", read},
		"gone, then a proxy's list":            {[]any{gone("n1"), gone("n1"), text(`{}`)}, Unknown, "", listed},

		// client-go would repeat these requests, and the last answer would hide the first.
		"503 with Retry-After, then 403":      {[]any{later{503}, 403}, Unknown, "", one},
		"503 with Retry-After, then conflict": {[]any{later{503}, 409, "11"}, Unknown, "", one},
		"429 with Retry-After":                {[]any{later{429}, "11"}, Refused, "", one},
		"429 of a proxy with Retry-After":     {[]any{later{html(429)}, "11"}, Unknown, "", one},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer(t, c.answers...)
			n, got, err := Write(t.Context(), s.client(), cordon)
			if got != c.want || (err == nil) != (c.want == Written) {
				t.Errorf("%v, error %v; want %v", got, err, c.want)
			}
			if n == nil && c.version != "" || n != nil && n.ResourceVersion != c.version {
				t.Errorf("Node %+v, expected version %q", n, c.version)
			}
			if seen := s.seen(); fmt.Sprint(seen) != fmt.Sprint(c.requests) {
				t.Errorf("requests %q, want %q", seen, c.requests)
			}
		})
	}
	s := newAPIServer(t, "11")
	s.Close()
	if _, got, _ := Write(t.Context(), s.client(), cordon); got != Unknown {
		t.Errorf("API server that is down: %v, expected unknown", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, got, _ := Write(ctx, newAPIServer(t, "11").client(), cordon); got != Unknown {
		t.Errorf("canceled request: %v, expected unknown", got)
	}
}

// TestClientsRepeatNothing checks that each kind of client sends each request only once.
func TestClientsRepeatNothing(t *testing.T) {
	s := newAPIServer(t, later{503})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", s.URL)
	must(t, os.WriteFile(file, []byte(config), 0o600))
	followed, err := New(Options{Identity: v1alpha1.IdentityHost, Paths: []string{file}, QPS: 100, Burst: 100}).Client()
	must(t, err)
	limited, err := followed.Limited(100, 100)
	must(t, err)
	for name, client := range map[string]API{
		"Credential": followed, "ConnectConfig": s.client(), "Limited": limited,
	} {
		before := len(s.seen())
		if _, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err == nil {
			t.Errorf("%s: 503 is not an error", name)
		}
		if n := len(s.seen()) - before; n != 1 {
			t.Errorf("%s: %d requests, want 1", name, n)
		}
	}
}

// TestSendNeedsAPrecondition checks that a write without a resourceVersion is refused, because the API server would
// apply it to any version.
func TestSendNeedsAPrecondition(t *testing.T) {
	s := newAPIServer(t, "11")
	if n, got, err := Write(t.Context(), s.client(), Patch{Node: "n1", Unschedulable: new(true)}); n != nil || got != Refused || err == nil {
		t.Errorf("%v, %v, expected a refusal", got, err)
	}
	if seen := s.seen(); len(seen) > 0 {
		t.Errorf("sent %q", seen)
	}
}

func TestOutcomeOfWrappedErrors(t *testing.T) {
	gone := fmt.Errorf("writing: %w", apierrors.NewNotFound(corev1.Resource("nodes"), "n1"))
	if got := outcome(gone, "n1"); got != Gone {
		t.Errorf("%v", got)
	}
	if got := outcome(errors.New("unexpected EOF"), "n1"); got != Unknown {
		t.Errorf("%v", got)
	}
	// A status error without a code proves nothing.
	if got := outcome(&apierrors.StatusError{}, "n1"); got != Unknown {
		t.Errorf("%v", got)
	}
	for o, want := range map[Outcome]string{Written: "written", Conflict: "conflict", Gone: "gone", Refused: "refused", Unknown: "unknown"} {
		if o.String() != want {
			t.Errorf("%q, want %q", o, want)
		}
	}
}

func TestSettle(t *testing.T) {
	patch := "PATCH " + cordonBody
	for name, c := range map[string]struct {
		answers  []any
		version  string // "" means that the Node is gone
		requests []string
	}{
		"carried out at the second try": {[]any{"11", "12"}, "12", []string{patch, "GET"}},
		"carried out at the first try":  {[]any{409, "11"}, "11", []string{patch, "GET"}},
		"nothing to change":             {[]any{"10", "10"}, "10", []string{patch, "GET"}},
		"gone":                          {[]any{gone("n1"), gone("n1"), list{}}, "", []string{patch, "GET", "LIST"}},
		"a proxy's 404":                 {[]any{html(404), html(404), 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"a proxy's 200 in JSON":         {[]any{text(`{}`), text(`{}`), 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"no answer":                     {[]any{cut{}, 503, 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		// A write with the old resourceVersion always conflicts, whoever wrote the new version.
		"answered by the read alone": {[]any{cut{}, "11"}, "11", []string{patch, "GET"}},
		// A refusal proves nothing about the first try, which may be delayed: the Node still has the version of the
		// write.
		"refused, then carried out": {[]any{429, "10", "11", "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"refused, and carried out":  {[]any{403, "11"}, "11", []string{patch, "GET"}},
		// A conflict is claimed by a component that does not know the Node's version.
		"a conflict that is none": {[]any{409, "10", 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"cannot be read":          {[]any{409, 503, 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer(t, c.answers...)
			failed := 0
			n, err := Settle(t.Context(), s.client(), cordon, func(err error) {
				if err == nil {
					t.Error("a try that settled nothing has no error")
				}
				failed++
			})
			if err != nil {
				t.Fatal(err)
			}
			if n == nil && c.version != "" || n != nil && n.ResourceVersion != c.version {
				t.Errorf("settled at %+v, expected version %q", n, c.version)
			}
			if got := s.seen(); fmt.Sprint(got) != fmt.Sprint(c.requests) {
				t.Errorf("requests %q, want %q", got, c.requests)
			}
			if want := len(c.requests)/2 - 1; failed != want {
				t.Errorf("%d tries failed, expected %d", failed, want)
			}
		})
	}
}

// TestSettlePauses checks that an outage of an hour does not delay the end of an uncertain write by more than ten seconds.
func TestSettlePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("away") })
		client, err := newAPI(&rest.Config{Host: "http://api.invalid"}, &http.Client{Transport: away})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		last, longest := time.Now(), time.Duration(0)
		_, _ = Settle(ctx, client, cordon, func(error) { longest, last = max(longest, time.Since(last)), time.Now() })
		if longest != 10*time.Second {
			t.Errorf("the longest pause is %v, expected 10s", longest)
		}
	})
}

func TestSettleEndsWithItsContext(t *testing.T) {
	s := newAPIServer(t, cut{})
	client := s.client()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	n, err := Settle(ctx, client, cordon, func(error) {})
	if n != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v, expected the context's error", n, err)
	}
	if len(s.seen()) == 0 {
		t.Error("there was no try")
	}
}
