package faultproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// A Request is one request as a rule sees it. It uses the terms of RBAC.
type Request struct {
	Proxy string    // the proxy's name
	Time  time.Time // when the proxy had read it
	// Verb is get, list, watch, create, update, patch, delete or deletecollection. If the path is not a resource's, such as /readyz, it is
	// the method in lower case.
	Verb string
	// Group is "" for the core group. Name is also set from a field selector on metadata.name.
	Group, Resource, Namespace, Name, Subresource string
	// Number counts the requests of this proxy with the same Verb, Resource and Subresource, from 1.
	Number int
	// Label is the name from Options.Label.
	Label string
	// URI is the path with its query.
	URI string
	// Body is the body of a write. It is nil for other requests and in a [Record].
	Body []byte
}

// Write reports whether the request changes something, that is, whether it is not a get, list or watch.
func (r *Request) Write() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Is reports whether the request has the verb and is for the resource, written as "nodes" or "pods/eviction".
func (r *Request) Is(verb, resource string) bool {
	name := r.Resource
	if r.Subresource != "" {
		name += "/" + r.Subresource
	}
	return r.Verb == verb && name == resource
}

// String returns a short description of the request.
func (r *Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.Verb, r.Resource)
	if r.Resource == "" {
		b.WriteString(r.URI)
	}
	if r.Subresource != "" {
		b.WriteString("/" + r.Subresource)
	}
	if r.Name != "" {
		b.WriteString(" " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
	}
	if r.Label != "" {
		fmt.Fprintf(&b, " (%s)", r.Label)
	}
	return b.String()
}

// Object decodes the body of a create or an update, in any encoding.
func (r *Request) Object() (runtime.Object, error) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.Body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("the body of %s: %w", r, err)
	}
	return obj, nil
}

// Patch decodes the JSON body of a patch.
func (r *Request) Patch() (map[string]any, error) {
	var doc map[string]any
	if err := json.Unmarshal(r.Body, &doc); err != nil {
		return nil, fmt.Errorf("the body of %s: %w", r, err)
	}
	return doc, nil
}

// Describe returns the description of a request, without Proxy, Time, Number, Label and Body.
func Describe(hr *http.Request) Request {
	r := Request{Verb: strings.ToLower(hr.Method), URI: hr.URL.RequestURI()}
	parts := strings.Split(strings.Trim(hr.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		r.Group, parts = parts[1], parts[3:]
	default:
		return r
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		r.Namespace, parts = parts[1], parts[2:]
	}
	r.Resource = parts[0]
	if len(parts) > 1 {
		r.Name = parts[1]
	}
	if len(parts) > 2 {
		r.Subresource = strings.Join(parts[2:], "/")
	}
	query := hr.URL.Query()
	if r.Name == "" {
		for selector := range strings.SplitSeq(query.Get("fieldSelector"), ",") {
			if name, ok := strings.CutPrefix(selector, "metadata.name="); ok {
				r.Name = name
			}
		}
	}
	watch := query.Get("watch")
	switch hr.Method {
	case http.MethodGet:
		switch {
		case watch == "1" || watch == "true":
			r.Verb = "watch"
		case len(parts) == 1:
			r.Verb = "list"
		}
	case http.MethodPost:
		r.Verb = "create"
	case http.MethodPut:
		r.Verb = "update"
	case http.MethodDelete:
		if len(parts) == 1 {
			r.Verb = "deletecollection"
		}
	}
	return r
}
