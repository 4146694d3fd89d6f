package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// apiServer answers in a test's own words: real connections, so that it can cut them.
type apiServer struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	requests []string // "PATCH body" or "GET"
	answers  []any    // one for each request, in order; the last one for all that follow
}

// cut is an answer: none, the connection ends.
type cut struct{}

// html is an answer of some proxy's.
type html int

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
	switch a := answer.(type) {
	case cut:
		panic(http.ErrAbortHandler)
	case html:
		w.WriteHeader(int(a))
		fmt.Fprint(w, "<html>words of a proxy's</html>")
	case int:
		write(a, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(a), Message: "no"})
	case string: // a Node at that resourceVersion
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

func TestSendSaysWhatBecameOfIt(t *testing.T) {
	for _, c := range []struct {
		answer any
		want   Outcome
	}{
		{"11", Written},
		{409, Conflict},
		{404, Gone},
		{400, Refused}, {401, Refused}, {403, Refused}, {413, Refused}, {422, Refused}, {429, Refused}, {html(403), Refused},
		// Whether these were carried out, nobody knows: a proxy or a webhook may have given up on the way back.
		{408, Unknown}, {500, Unknown}, {502, Unknown}, {503, Unknown}, {504, Unknown}, {html(502), Unknown}, {html(200), Unknown}, {cut{}, Unknown},
	} {
		s := newAPIServer(t, c.answer)
		n, got, err := Send(t.Context(), s.client(), cordon)
		if got != c.want || (err == nil) != (c.want == Written) || (n == nil) != (c.want != Written) {
			t.Errorf("%v: %v, Node %v, error %v; want %v", c.answer, got, n != nil, err, c.want)
		}
		if seen := s.seen(); len(seen) != 1 || seen[0] != "PATCH "+cordonBody {
			t.Errorf("%v: requests %q", c.answer, seen)
		}
	}
	s := newAPIServer(t, "11")
	s.Close()
	if _, got, _ := Send(t.Context(), s.client(), cordon); got != Unknown {
		t.Errorf("an API server that is away: %v, want unknown", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, got, _ := Send(ctx, newAPIServer(t, "11").client(), cordon); got != Unknown {
		t.Errorf("a request that was called off: %v, want unknown", got)
	}
}

// To the API server an empty resourceVersion is none, and the write one to whatever is there.
func TestSendNeedsAPrecondition(t *testing.T) {
	s := newAPIServer(t, "11")
	if n, got, err := Send(t.Context(), s.client(), Patch{Node: "n1", Unschedulable: new(true)}); n != nil || got != Refused || err == nil {
		t.Errorf("%v, %v, want a refusal", got, err)
	}
	if seen := s.seen(); len(seen) > 0 {
		t.Errorf("sent %q", seen)
	}
}

func TestOutcomeOfWrappedErrors(t *testing.T) {
	gone := fmt.Errorf("writing: %w", apierrors.NewNotFound(metav1.Unversioned.WithResource("nodes").GroupResource(), "n1"))
	if got := outcome(gone); got != Gone {
		t.Errorf("%v", got)
	}
	if got := outcome(errors.New("unexpected EOF")); got != Unknown {
		t.Errorf("%v", got)
	}
	// A status error without a code says nothing.
	if got := outcome(&apierrors.StatusError{}); got != Unknown {
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
		version  string // "" is gone
		requests []string
	}{
		"carried out at the second try": {[]any{"11", "12"}, "12", []string{patch, "GET"}},
		"carried out at the first try":  {[]any{409, "11"}, "11", []string{patch, "GET"}},
		"nothing to change":             {[]any{"10", "10"}, "10", []string{patch, "GET"}},
		"gone":                          {[]any{404, 404}, "", []string{patch, "GET"}},
		"no answer":                     {[]any{cut{}, 503, 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		// A write with the old resourceVersion is a conflict whenever it comes, whoever made the new one.
		"answered by the read alone": {[]any{cut{}, "11"}, "11", []string{patch, "GET"}},
		// A refusal says nothing of the first try, which may be held up: the Node is still what it was written to.
		"refused, then carried out": {[]any{429, "10", "11", "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"refused, and carried out":  {[]any{403, "11"}, "11", []string{patch, "GET"}},
		// The word for a conflict from somebody who does not hold the Node's version.
		"a conflict that is none": {[]any{409, "10", 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
		"cannot be read":          {[]any{409, 503, 409, "11"}, "11", []string{patch, "GET", patch, "GET"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer(t, c.answers...)
			tries := 0
			n, err := Settle(t.Context(), s.client(), cordon, func() { tries++ })
			if err != nil {
				t.Fatal(err)
			}
			if n == nil && c.version != "" || n != nil && n.ResourceVersion != c.version {
				t.Errorf("settled at %+v, want version %q", n, c.version)
			}
			if got := s.seen(); fmt.Sprint(got) != fmt.Sprint(c.requests) {
				t.Errorf("requests %q, want %q", got, c.requests)
			}
			if tries != len(c.requests)/2 {
				t.Errorf("said %d times that it is alive, want %d", tries, len(c.requests)/2)
			}
		})
	}
}

func TestSettleEndsWithItsContext(t *testing.T) {
	s := newAPIServer(t, cut{})
	client := s.client()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	n, err := Settle(ctx, client, cordon, nil)
	if n != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v, want the context's error", n, err)
	}
	if len(s.seen()) == 0 {
		t.Error("it never tried")
	}
}
