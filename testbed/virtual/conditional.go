package virtual

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// conditional checks that lockkeeper's writes of Nodes and pods name the object that they were decided for: the resourceVersion of the
// Node, or the UID of the pod. Without that, a write that is late hits a later object of the same name, which needs more faults at the
// right moments than seeds have. A Node's version must be one that the store has reached, except right after it was set back. It also checks that a
// host deletes no pod, instead of evicting it, unless a policy that applies to the host has allowed that.
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
		switch version, ok := conditionalOn(body); {
		case !ok:
			c.f.problem("Precondition: %s: %s %s has no %s", c.host, r.Method, r.URL.Path, what)
		case version > c.f.Server.Revision() && min(c.f.sinceRewind(), c.f.exec.sinceAnswered(c.host)) > noticesRewind:
			c.f.problem("Rewind: %s: %s %s names version %d %v after the store was set back, and the store is at %d",
				c.host, r.Method, r.URL.Path, version, c.f.sinceRewind().Round(time.Second), c.f.Server.Revision())
		}
	}
	if version := r.URL.Query().Get("resourceVersion"); version != "" && fromQuorum(r) {
		c.f.problem("Quorum: %s: %s %s for version %s may be answered from a cache that is minutes old", c.host, r.Method, r.URL.Path, version)
	}
	if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/pods/") && !c.f.mayForce(c.host) {
		c.f.problem("Force: %s deletes %s, and no policy that applies to it has allowed that", c.host, r.URL.Path)
	}
	return c.next.RoundTrip(r)
}

// allowForce notes which hosts a policy lets delete the pods that they cannot evict: the canary policy lets only canaryHost.
func (f *Fleet) allowForce(policy string, spec *v1alpha1.DisruptionPolicySpec) {
	switch {
	case spec.Drain.OnTimeout != v1alpha1.OnTimeoutForce:
	case policy == canaryPolicy:
		f.canaryForced.Store(true)
	default:
		f.forced.Store(true)
	}
}

// mayForce reports whether a policy has ever let the host delete pods. That it no longer does is not checked: hosts learn it late.
func (f *Fleet) mayForce(host string) bool {
	return f.forced.Load() || host == canaryHost && f.canaryForced.Load()
}

// fromQuorum reports whether the request is a read that has to come from the quorum. The API server in memory has no cache, so only the request
// shows that it does not.
func fromQuorum(r *http.Request) bool {
	return r.Method == http.MethodGet && !r.URL.Query().Has("watch") &&
		(strings.HasPrefix(r.URL.Path, "/api/v1/nodes") || strings.HasPrefix(r.URL.Path, leasesPath))
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

// noticesRewind is how long a process may take to notice that the store was set back, unless its reads are not answered: one of its watches may hang for
// ten minutes.
const noticesRewind = 12 * time.Minute

// sinceRewind returns how long ago the store was set back.
func (f *Fleet) sinceRewind() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.rewound)
}

// conditionalOn reports whether the body of a request, a patch or options in protobuf or JSON, has a precondition. version is the
// resourceVersion that a patch names.
func conditionalOn(body []byte) (version int64, ok bool) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		var patch metav1.PartialObjectMetadata
		if json.Unmarshal(body, &patch) != nil {
			return 0, false
		}
		version, err = strconv.ParseInt(patch.ResourceVersion, 10, 64)
		return version, err == nil
	}
	switch o := obj.(type) {
	case *metav1.DeleteOptions:
		return 0, o.Preconditions != nil && o.Preconditions.UID != nil
	case *policyv1.Eviction:
		return 0, o.DeleteOptions != nil && o.DeleteOptions.Preconditions != nil && o.DeleteOptions.Preconditions.UID != nil
	}
	return 0, false
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

// readWithin is how old the reads before a commit may be when the host sends it.
const readWithin = 10 * time.Second

// informed checks that a host's process reads before each commit: its Node, after that the Lease, both for this commit alone and within
// [readWithin]. A commit that is sent again without that may land under an emergency stop or in another leader's term, which needs more
// faults at the right moments than seeds have.
type informed struct {
	f    *Fleet
	host string
	next http.RoundTripper

	mu          sync.Mutex
	node, lease time.Time // when the process asked for what it has read since its last commit; lease is never before node
}

// RoundTrip sends a request, and checks it.
func (i *informed) RoundTrip(r *http.Request) (*http.Response, error) {
	path, asked := r.URL.Path, time.Now()
	if r.Method == http.MethodPatch && strings.HasPrefix(path, "/api/v1/nodes/") && r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if strings.HasSuffix(describe(i.host, roleHost, r, body).Class, ","+string(v1alpha1.ReportCommitted)) {
			i.commits(asked)
		}
	}
	resp, err := i.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusOK && r.Method == http.MethodGet {
		i.read(path, asked)
	}
	return resp, err
}

func (i *informed) read(path string, asked time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case path == nodePath(i.host):
		i.node, i.lease = asked, time.Time{}
	case path == leasePath && !i.node.IsZero():
		i.lease = asked
	}
}

func (i *informed) commits(at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	// A store that was set back gives its versions out again, so a process may take what it has read before for reads of what it commits to.
	if (i.lease.IsZero() || at.Sub(i.node) >= readWithin) && !(i.f.wasRewound() && i.f.sinceRewind() < readWithin) {
		i.f.problem("Informed: %s: a commit without a read of its Node, and of the Lease after that, within %v", i.host, readWithin)
	}
	i.node, i.lease = time.Time{}, time.Time{}
}
