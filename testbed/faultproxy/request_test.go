package faultproxy

import (
	"net/http/httptest"
	"testing"
)

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		method, uri string
		want        Request
	}{
		{"GET", "/api/v1/nodes/n1", Request{Verb: "get", Resource: "nodes", Name: "n1"}},
		{"GET", "/api/v1/nodes?limit=500", Request{Verb: "list", Resource: "nodes"}},
		{"GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1&watch=true", Request{Verb: "watch", Resource: "nodes", Name: "n1"}},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", Request{Verb: "list", Resource: "pods"}},
		{"PATCH", "/api/v1/nodes/n1?fieldManager=x", Request{Verb: "patch", Resource: "nodes", Name: "n1"}},
		{"PATCH", "/api/v1/nodes/n1/status", Request{Verb: "patch", Resource: "nodes", Name: "n1", Subresource: "status"}},
		{"POST", "/api/v1/namespaces/a/pods/p/eviction", Request{Verb: "create", Resource: "pods", Namespace: "a", Name: "p", Subresource: "eviction"}},
		{"GET", "/api/v1/namespaces/a", Request{Verb: "get", Resource: "namespaces", Name: "a"}},
		{"PUT", "/api/v1/namespaces/a/finalize", Request{Verb: "update", Resource: "namespaces", Name: "a", Subresource: "finalize"}},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", Request{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: "a", Name: "l"}},
		{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", Request{Verb: "create", Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}},
		{"DELETE", "/api/v1/namespaces/a/pods", Request{Verb: "deletecollection", Resource: "pods", Namespace: "a"}},
		{"DELETE", "/api/v1/namespaces/a/pods/p", Request{Verb: "delete", Resource: "pods", Namespace: "a", Name: "p"}},
		{"GET", "/readyz", Request{Verb: "get"}},
		{"GET", "/apis/apps/v1", Request{Verb: "get"}},
	} {
		got := Describe(httptest.NewRequest(c.method, "http://proxy"+c.uri, nil))
		got.URI = ""
		if got.String() != c.want.String() || got.Group != c.want.Group || got.Subresource != c.want.Subresource {
			t.Errorf("%s %s is %+v, expected %+v", c.method, c.uri, got, c.want)
		}
	}
}
