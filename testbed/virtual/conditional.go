package virtual

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// conditional checks that lockkeeper's writes of Nodes and pods name the object that they were decided for: the resourceVersion of the
// Node, or the UID of the pod. Without that, a write that is late hits a later object of the same name, which needs more faults at the
// right moments than seeds have.
type conditional struct {
	f    *Fleet
	host string
	next http.RoundTripper
}

// RoundTrip sends a request, and checks it.
func (c conditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if what := precondition(r); what != "" {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !conditionalOn(body) {
			c.f.problem("Precondition: %s: %s %s has no %s", c.host, r.Method, r.URL.Path, what)
		}
	}
	return c.next.RoundTrip(r)
}

// precondition returns what the request has to name, or "".
func precondition(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.Body == nil || len(parts) < 4:
	case r.Method == http.MethodPatch && parts[2] == "nodes":
		return "resourceVersion"
	case r.Method == http.MethodDelete && len(parts) == 6 && parts[4] == "pods", r.Method == http.MethodPost && parts[len(parts)-1] == "eviction":
		return "UID"
	}
	return ""
}

// conditionalOn reports whether the body of a request, a patch or options in protobuf or JSON, has a precondition.
func conditionalOn(body []byte) bool {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		var patch metav1.PartialObjectMetadata
		return json.Unmarshal(body, &patch) == nil && patch.ResourceVersion != ""
	}
	switch o := obj.(type) {
	case *metav1.DeleteOptions:
		return o.Preconditions != nil && o.Preconditions.UID != nil
	case *policyv1.Eviction:
		return o.DeleteOptions != nil && o.DeleteOptions.Preconditions != nil && o.DeleteOptions.Preconditions.UID != nil
	}
	return false
}

// mostWrites bounds how often a process may write its host's Node within a minute: the host's loop 90 times, the conditions 22 times.
const mostWrites = 120

// paced checks that a host's process does not write its Node all the time.
type paced struct {
	f    *Fleet
	host string
	next http.RoundTripper

	mu       sync.Mutex
	writes   []time.Time // within the last minute
	reported bool
}

// RoundTrip sends a request, and counts it.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		p.count()
	}
	return p.next.RoundTrip(r)
}

func (p *paced) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.writes = append(slices.DeleteFunc(p.writes, func(at time.Time) bool { return now.Sub(at) > time.Minute }), now)
	if len(p.writes) > mostWrites && !p.reported {
		p.reported = true
		p.f.problem("Quiet: %s: more than %d writes to its Node within a minute", p.host, mostWrites)
	}
}
