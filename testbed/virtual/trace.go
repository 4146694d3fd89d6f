package virtual

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// request is one request as a plan sees it.
type request struct {
	faultproxy.Request
	// Process is the host whose process sends the request, and Role the identity that it uses.
	Process string
	Role    role
	// Class describes the request from the general to the particular, separated by commas: role, verb, resource with its subresource and,
	// for a write, what it changes. See [matches].
	Class string
	// Detail is the part of a write's body that a reader of the trace needs.
	Detail string
}

// describe returns the description of a request with that body.
func describe(process string, by role, hr *http.Request, body []byte) *request {
	r := &request{Request: faultproxy.Describe(hr), Process: process, Role: by}
	r.Body, r.Time = body, time.Now()
	resource := cmp.Or(r.Resource, hr.URL.Path)
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	parts := []string{string(by), r.Verb, resource}
	if r.Write() {
		var more []string
		more, r.Detail = changes(&r.Request)
		parts = append(parts, more...)
	}
	r.Class = strings.Join(parts, ",")
	return r
}

// matches reports whether a request or an event of the class is one of the wanted class: it is the same, or begins with all of its parts.
func matches(wanted, class string) bool {
	return class == wanted || strings.HasPrefix(class, wanted+",")
}

// written is what the description of a write reads from a patch of a Node.
type written struct {
	Metadata struct {
		Labels, Annotations map[string]*string
	}
	Spec struct{ Unschedulable *bool }
}

// changes returns the last parts of a write's class, and the part of its body for the trace. A patch is JSON; a create or an update may be
// protobuf.
func changes(r *faultproxy.Request) (parts []string, detail string) {
	var doc written
	err := json.Unmarshal(r.Body, &doc)
	switch {
	case r.Is("update", "leases"):
		if obj, err := r.Object(); err == nil {
			if l, ok := obj.(*coordinationv1.Lease); ok && (l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "") {
				return []string{"release"}, "holder="
			} else if ok {
				return []string{"hold"}, "holder=" + *l.Spec.HolderIdentity
			}
		}
	case err != nil:
		return nil, ""
	case r.Is("patch", "nodes"):
		return nodeChange(&doc), nodeDetail(&doc)
	}
	return nil, v1alpha1.OneLine(string(r.Body), maxDetail)
}

// nodeChange returns what a write to a Node is about: the state, or else the report, or else what the host publishes, or else held.
func nodeChange(doc *written) []string {
	if state, ok := doc.Metadata.Labels[v1alpha1.LabelState]; ok {
		return []string{"state", value(state)}
	}
	if ack := doc.Metadata.Annotations[v1alpha1.AnnotationAck]; ack != nil {
		a, err := v1alpha1.ParseAck(*ack)
		if err != nil {
			return []string{"ack"}
		}
		return []string{"ack", string(a.State), string(a.Report)}
	}
	if _, ok := doc.Metadata.Annotations[v1alpha1.AnnotationHost]; ok {
		return []string{"host"}
	}
	if _, ok := doc.Metadata.Labels[v1alpha1.LabelHeld]; ok {
		return []string{"held"}
	}
	return nil
}

// maxDetail and maxValue bound what the trace keeps of a body and of one value in it, in bytes.
const maxDetail, maxValue = 400, 100

// nodeDetail returns the labels, annotations and the cordon that a write to a Node changes, in the order of their keys.
func nodeDetail(doc *written) string {
	var parts []string
	for _, m := range []map[string]*string{doc.Metadata.Labels, doc.Metadata.Annotations} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			name := strings.TrimPrefix(key, v1alpha1.Prefix)
			parts = append(parts, name+"="+v1alpha1.OneLine(value(m[key]), maxValue))
		}
	}
	if u := doc.Spec.Unschedulable; u != nil {
		parts = append(parts, fmt.Sprintf("unschedulable=%t", *u))
	}
	return v1alpha1.OneLine(strings.Join(parts, " "), maxDetail)
}

// value returns the text, or "-" for a key that is removed.
func value(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

// entry is one line of a trace: a request, or something else that happened.
type entry struct {
	At      time.Time
	Process string
	Node    string // the Node that it is about, "" if it is about none
	What    string // the request's first line, or what happened
	Detail  string
	Answer  string
	Took    time.Duration
	Faults  []string // what was done to the request
	Write   bool
	Lease   bool // it is about the Lease
	Request bool // it is a request and not a fault or a note
}

// trace records what the processes of one run sent and what was done to them. Its methods are safe for concurrent use.
type trace struct {
	start time.Time

	mu      sync.Mutex
	entries []*entry
}

// newTrace returns a trace whose times count from now.
func newTrace() *trace { return &trace{start: time.Now()} }

// request adds a request. The caller completes the entry with update.
func (t *trace) request(r *request) *entry {
	e := &entry{
		At: r.Time, Process: r.Process, What: string(r.Role) + " " + r.String(), Detail: r.Detail, Answer: "(no answer yet)",
		Write: r.Write(), Lease: r.Resource == "leases", Request: true,
	}
	if r.Resource == "nodes" {
		e.Node = r.Name
	} else if r.Role != roleCoordinator {
		e.Node = r.Process
	}
	t.add(e)
	return e
}

// note adds a line about a host, or about the cluster if node is "".
func (t *trace) note(node, format string, args ...any) {
	t.add(&entry{At: time.Now(), Process: node, Node: node, What: fmt.Sprintf(format, args...)})
}

func (t *trace) add(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, e)
}

// update changes an entry under the trace's lock.
func (t *trace) update(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
}

// all returns copies of the entries, in the order in which they were added.
func (t *trace) all() []entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]entry, len(t.entries))
	for i, e := range t.entries {
		all[i] = *e
	}
	return all
}

// String returns all lines.
func (t *trace) String() string { return t.format(t.all()) }

// essential returns what a reader needs to see why a rule was broken at a time: the writes about the nodes, to the Lease and to policies,
// every fault and note, every request that a fault changed, and all of the last requests before that time.
func (t *trace) essential(nodes []string, at time.Time, last int) []entry {
	all := slices.DeleteFunc(t.all(), func(e entry) bool { return e.At.After(at) })
	var kept []entry
	for i, e := range all {
		about := e.Node == "" || slices.Contains(nodes, e.Node)
		if !e.Request || len(e.Faults) > 0 || e.Write && (about || e.Lease) || i >= len(all)-last {
			kept = append(kept, e)
		}
	}
	return kept
}

// format returns one line for each entry.
func (t *trace) format(entries []entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%12v %-4s %s", e.At.Sub(t.start).Round(time.Millisecond), e.Process, e.What)
		if e.Detail != "" {
			fmt.Fprintf(&b, " {%s}", e.Detail)
		}
		if e.Request {
			fmt.Fprintf(&b, " -> %s", e.Answer)
			if e.Took >= time.Millisecond {
				fmt.Fprintf(&b, " in %v", e.Took.Round(time.Millisecond))
			}
		}
		for _, f := range e.Faults {
			fmt.Fprintf(&b, " [%s]", f)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
