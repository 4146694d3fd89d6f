package virtual

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// policyHold is a version of the store since which a policy begins no turns, or does again.
type policyHold struct {
	version int64
	policy  string
	why     string // "" if it begins turns
}

// closed is why a policy with a window begins no turns: the window of [policyChange] opens hours after the plan.
const closed = "closed"

// noteHold notes what a write makes of a policy.
func (f *Fleet) noteHold(w *apiserver.Write) {
	h := policyHold{w.Revision, w.Name, "deleted"}
	if w.Object != nil {
		h.why = f.holds(w.Object)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policyHolds = append(f.policyHolds, h)
}

// holds returns why the policy begins no turns, or "".
func (f *Fleet) holds(obj runtime.Object) string {
	switch spec := f.specOf(obj); {
	case spec.Paused:
		return "paused"
	case spec.Mode == v1alpha1.PolicyModeObserve:
		return "observing"
	case len(spec.Rollout.Windows) > 0:
		return closed
	}
	return ""
}

// restoredHolds forgets what was before the store was set back.
func (f *Fleet) restoredHolds() {
	var now []policyHold
	for _, obj := range f.Server.List("disruptionpolicies") {
		m, err := meta.Accessor(obj)
		f.must(err)
		now = append(now, policyHold{0, m.GetName(), f.holds(obj)})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policyHolds = now
}

// told checks that a leader begins no turn by a policy when its process has read that the policy is paused, observing, closed or deleted.
// It counts what has arrived, so that no late watch, no frozen process and no late write is an excuse. A store that was set back is one.
type told struct {
	f    *Fleet
	host string
	next http.RoundTripper

	mu    sync.Mutex
	knows []known
	// begun is what a watch has brought that the process has not checked against the store yet. It drops the watch if it cannot.
	begun   []known
	checked bool
}

// known is a version of the policies, and when the process has learned of it.
type known struct {
	at      time.Time
	version int64
}

// decidesWithin is how long a leader may still decide by what it had read before.
const decidesWithin = time.Second

// arrives takes a list, an event of a watch, or the policy that a write of its status returned.
func (t *told) arrives(r *request, text []byte) {
	type object struct {
		Metadata struct{ ResourceVersion string }
	}
	var e struct {
		object        // of a list, or the policy
		Object object // of an event of a watch
	}
	if r.Resource != "disruptionpolicies" || json.Unmarshal(text, &e) != nil {
		return
	}
	version, err := strconv.ParseInt(cmp.Or(e.Object.Metadata.ResourceVersion, e.Metadata.ResourceVersion), 10, 64)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch now := time.Now(); {
	case showsVersion(r):
		for _, k := range t.begun {
			t.knows = append(t.knows, known{now, k.version})
		}
		t.begun, t.checked = nil, true
	case r.Verb == "watch" && !t.checked:
		t.begun = append(t.begun, known{now, version})
	default:
		t.knows = append(t.knows, known{now, version})
	}
}

// showsVersion reports whether a list only shows the version of the store, after a watch has begun: what it lists may reach the process before
// the watch does.
func showsVersion(r *request) bool {
	u, err := url.Parse(r.URI)
	return err == nil && u.Query().Get("limit") == "1"
}

// RoundTrip sends a request, and checks it.
func (t *told) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == policiesPath && r.URL.Query().Has("watch") {
		t.mu.Lock()
		t.begun, t.checked = nil, false
		t.mu.Unlock()
	}
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") && r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		if g := begins(body); g != nil {
			t.grants(g)
		}
	}
	return t.next.RoundTrip(r)
}

// begins returns the grant of a patch that begins a turn for an update, or nil.
func begins(body []byte) *v1alpha1.Grant {
	var doc written
	if json.Unmarshal(body, &doc) != nil || doc.Metadata.Annotations[v1alpha1.AnnotationTurn] == nil {
		return nil
	}
	text := doc.Metadata.Annotations[v1alpha1.AnnotationGrant]
	if text == nil {
		return nil
	}
	g, err := v1alpha1.ParseGrant(*text)
	if err != nil || g == nil || !g.Wants.Something() {
		return nil
	}
	return g
}

func (t *told) grants(g *v1alpha1.Grant) {
	if strings.HasPrefix(g.Turn, stolenTurn) || !t.f.ahead.first(g.Turn, "policy") || t.f.wasRewound() && t.f.sinceRewind() < noticesRewind {
		return // a leader takes over what a thief has begun; and of a turn that has begun, every promotion has the grant too
	}
	before, now := int64(-1), int64(-1) // what the process knew a moment before the decision, and what it knows
	t.mu.Lock()
	for _, k := range slices.Backward(t.knows) {
		if t.f.wasRewound() && time.Since(k.at) > t.f.sinceRewind() {
			break // of a store that is gone
		}
		now = max(now, k.version)
		if g.StartedAt.Sub(k.at) >= decidesWithin {
			before = max(before, k.version) // what comes late may be older than what it knew
		}
	}
	t.mu.Unlock()
	why := t.f.held(g.Policy, before, now)
	if why == "" || why == closed && g.Request != nil && g.Request.Now {
		return
	}
	t.f.problem("Policy: %s began the turn %s, which it decided on at %s, by the policy %s, and had read that this is %s",
		t.host, g.Turn, g.StartedAt.Sub(t.f.began), g.Policy, why)
}

// held returns why the policy began no turns from one version of the store to another, or "" if it began some.
func (f *Fleet) held(policy string, from, to int64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range slices.Backward(f.policyHolds) {
		switch {
		case h.policy != policy || h.version > to:
		case h.why == "" || h.version <= from:
			return h.why
		}
	}
	return ""
}
