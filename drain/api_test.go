package drain

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/kube"
)

func TestAnswerOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	overBudget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	overBudget.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget db needs 3 healthy pods and has 3 currently",
	}}
	stale := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	stale.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget db is still being processed by the server.",
	}}
	invalid := apierrors.NewForbidden(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}, "db", errors.New("pdb disruptions allowed is negative"))
	invalid.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget db does not allow evicting pods currently: pdb disruptions allowed is negative",
	}}
	twoBudgets := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 500, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	}}
	// As from the webhook of KubeVirt, which moves the virtual machine of the pod to another node instead.
	const denied = `admission webhook "virt-launcher-eviction-interceptor.kubevirt.io" denied the request: Eviction triggered evacuation of VMI "shop/vm"`
	webhook := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: denied}}
	}
	for name, c := range map[string]struct {
		err  error
		want answer
	}{
		"a webhook's 403": {webhook(403), answer{kind: refused, reason: Refused, message: denied}},
		"a webhook's 409": {webhook(409), answer{kind: refused, reason: Refused, message: denied}},
		"a webhook's 429": {webhook(429), answer{kind: refused, reason: Refused, message: denied}},
		"a webhook's 500": {webhook(500), answer{kind: refused, reason: Refused, message: denied}},
		"a webhook's 503": {webhook(503), answer{kind: refused, reason: Refused, message: denied}},
		"a webhook that does not answer": {apierrors.NewInternalError(errors.New(`failed calling webhook "a.example.com": timeout`)),
			answer{kind: refused, reason: ServerError, message: `Internal error occurred: failed calling webhook "a.example.com": timeout`}},
		"accepted": {nil, answer{kind: accepted}},
		"over budget": {overBudget, answer{kind: later, reason: PodDisruptionBudget, budget: "db",
			message: "The disruption budget db needs 3 healthy pods and has 3 currently"}},
		"stale budget": {stale, answer{kind: later, reason: PodDisruptionBudget, budget: "db", retryAfter: 10 * time.Second,
			message: "The disruption budget db is still being processed by the server."}},
		"invalid budget": {invalid, answer{kind: later, reason: PodDisruptionBudget, budget: "db",
			message: "The disruption budget db does not allow evicting pods currently: pdb disruptions allowed is negative"}},
		"busy server": {apierrors.NewTooManyRequests("too many requests", 1),
			answer{kind: later, reason: TooManyRequests, retryAfter: time.Second, message: "too many requests"}},
		"two budgets": {twoBudgets, answer{kind: refused, reason: PodDisruptionBudget, message: twoBudgets.ErrStatus.Message}},
		"not found":   {apierrors.NewNotFound(pods, "a"), answer{kind: gone, reason: Refused, message: `pods "a" not found`}},
		"another UID": {apierrors.NewConflict(pods, "a", errors.New("the UID differs")), answer{kind: gone, reason: Refused,
			message: `Operation cannot be fulfilled on pods "a": the UID differs`}},
		"forbidden": {apierrors.NewForbidden(pods, "a", errors.New("no")), answer{kind: refused, reason: Refused,
			message: `pods "a" is forbidden: no`}},
		"conflicts on the budget": {apierrors.NewTimeoutError("couldn't update the budget", 10), answer{kind: later, reason: ServerError,
			retryAfter: 10 * time.Second, message: "Timeout: couldn't update the budget"}},
		"a proxy's answer": {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 502}},
			answer{kind: later, reason: Unreachable, message: "the API server answered 502"}},
		"starting": {apierrors.NewServiceUnavailable("not ready"), answer{kind: later, reason: Unreachable, message: "not ready"}},
		"away":     {errors.New("dial tcp: connection refused"), answer{kind: later, reason: Unreachable, message: "dial tcp: connection refused"}},
	} {
		if got := answerOf(c.err); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestTidy(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		" two\n\tlines\x00 ":  "two lines",
		"\x1b[31mred\x1b[0m":  "[31mred [0m",
		"bad \xff\xfe bytes":  "bad ? bytes",
		"Grüße, 世界":           "Grüße, 世界",
		"\u202eright to left": "right to left",
	} {
		if got := tidy(in, maxMessage); got != want {
			t.Errorf("tidy(%q) = %q, want %q", in, got, want)
		}
	}
	for n := range 8 {
		got := tidy(strings.Repeat("x", n)+strings.Repeat("世", 1000), maxMessage)
		if len(got) > maxMessage || len(got) < maxMessage-4 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}

// refusing returns an API server that refuses every request with the status.
func refusing(t *testing.T, code int, header ...string) (Client, *atomic.Int32) {
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		http.Error(w, "no\nluck", code)
	}))
	t.Cleanup(srv.Close)
	c, err := kube.ConnectConfig(&rest.Config{Host: srv.URL}, "host", "test", 100, 100)
	if err != nil {
		t.Fatal(err)
	}
	return c, &requests
}

// TestAnEvictionIsOneRequest checks that client-go does not repeat an eviction without the drain's knowledge, and that the
// drain learns for how long the API server wants to be left alone. When it limits requests, only a header says so.
func TestAnEvictionIsOneRequest(t *testing.T) {
	for _, code := range []int{429, 500, 503} {
		c, requests := refusing(t, code, "Retry-After", "1")
		a := apiEvictor{client: c}.evict(t.Context(), facts{Pod: Pod{Namespace: "default", Name: "a", UID: "u"}})
		if requests.Load() != 1 {
			t.Errorf("%d: %d requests", code, requests.Load())
		}
		if a.kind == accepted || a.retryAfter != time.Second {
			t.Errorf("%d: %+v", code, a)
		}
	}
}

// slow is an API server that answers after some time.
type slow struct{ takes time.Duration }

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: 201, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))}, nil
}

// TestASlowWebhook checks that the drain waits for the answer of an API server whose webhooks take 30 s, the most that they may, and not
// indefinitely: an eviction without an answer takes the place of another one.
func TestASlowWebhook(t *testing.T) {
	for _, c := range []struct {
		takes, waits time.Duration
		kind         kind
		reason       Reason
	}{
		{30 * time.Second, 30 * time.Second, accepted, ""},
		{time.Hour, time.Minute, later, Unreachable},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api.invalid"}, &http.Client{Transport: slow{c.takes}})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			a := (apiEvictor{client: client}).evict(t.Context(), facts{Pod: Pod{Namespace: "default", Name: "a", UID: "u"}})
			if took := time.Since(began); a.kind != c.kind || a.reason != c.reason || took != c.waits {
				t.Errorf("an answer after %v: %+v after %v", c.takes, a, took)
			}
		})
	}
}

// proxied returns a client to which a proxy answers every request with 200 and JSON of its own.
func proxied(t *testing.T) kubernetes.Interface {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}`))
	}))
	t.Cleanup(srv.Close)
	c, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhatCannotBeListedIsNotEmpty(t *testing.T) {
	c, _ := refusing(t, 403)
	d := &Drainer{Client: c, Node: testNode}
	if left, err := d.Remaining(t.Context()); err == nil || left != nil {
		t.Errorf("Remaining: %v, %v", left, err)
	}
	if left, err := (&Drainer{Client: proxied(t), Node: testNode}).Remaining(t.Context()); err == nil {
		t.Errorf("Remaining, from a proxy: %v", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last Progress
	err := d.Run(ctx, func(p Progress) {
		last = p
		cancel()
	})
	if !errors.Is(err, context.Canceled) || last.Err == nil {
		t.Errorf("Run: %v, last progress %+v", err, last)
	}
}

func TestNoNode(t *testing.T) {
	c, requests := refusing(t, 403)
	d := &Drainer{Client: c}
	if _, err := d.Remaining(t.Context()); err == nil {
		t.Error("Remaining without a node")
	}
	if err := d.Run(t.Context(), nil); err == nil {
		t.Error("Run without a node")
	}
	if requests.Load() != 0 {
		t.Errorf("%d requests, expected none: an empty name would select pods without a node", requests.Load())
	}
}
