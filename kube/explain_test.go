package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestExplain checks the explanations of errors in the API server's own words. testbed/identity tests the other errors
// with a real API server.
func TestExplain(t *testing.T) {
	w := &connection{kubeconfig: &kubeconfig{file: "/etc/kubernetes/kubelet.conf"}, base: &url.URL{Scheme: "https", Host: "api:6443"}}
	nodes := schema.GroupResource{Resource: "nodes"}
	writing := func(err error) error { return fmt.Errorf("writing node n1: %w", err) }
	for _, c := range []struct {
		err    error
		reason v1alpha1.Reason
		want   string
	}{
		{writing(apierrors.NewForbidden(nodes, "n1", errors.New("ValidatingAdmissionPolicy 'lockkeeper-keys' with binding 'lockkeeper-keys' denied request: not for a host to change: lockkeeper.dev/state"))),
			"Forbidden", "admission policy lockkeeper-keys refuses writing node n1: not for a host to change: lockkeeper.dev/state"},
		{writing(errors.New(`admission webhook "guard.example.com" denied the request without explanation`)), "Forbidden", `admission webhook "guard.example.com" refuses writing node n1: without explanation`},
		{writing(apierrors.NewBadRequest(`admission webhook "guard.example.com" denied the request: no`)), "Forbidden", `admission webhook "guard.example.com" refuses writing node n1: no`},
		{writing(apierrors.NewInternalError(errors.New(`failed calling webhook "guard.example.com": failed to call webhook: timeout`))),
			"Forbidden", `admission webhook "guard.example.com" cannot be called, so the API server refuses writing node n1: failed to call webhook: timeout`},
		{apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New(`User "system:node:n1" cannot list resource "nodes" in API group "" at the cluster scope`)),
			"Forbidden", "system:node:n1 may not list nodes; is this the credential of this host's own kubelet, and node_name its Node?"},
		{apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "old", errors.New(`User "system:node:new" cannot get resource "nodes" in API group "" at the cluster scope: node 'new' cannot read 'old', only its own Node object`)),
			"Forbidden", "system:node:new may not get nodes (node 'new' cannot read 'old', only its own Node object); is this the credential of this host's own kubelet, and node_name its Node?"},
		{apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "lockkeeper", errors.New(`User "system:node:n1" cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "lockkeeper"`)),
			"Forbidden", "system:node:n1 may not get leases.coordination.k8s.io in namespace lockkeeper; apply the manifests: lockkeeper manifests | kubectl apply -f -"},
		{fmt.Errorf("read tcp 10.0.0.5:43210->10.0.0.1:6443: %w", syscall.ECONNRESET), "", "/etc/kubernetes/kubelet.conf: cannot reach https://api:6443: connection reset by peer; does the API server run there, and is server in this file correct?"},
		{writing(context.DeadlineExceeded), "", "/etc/kubernetes/kubelet.conf: https://api:6443 does not answer in time; if it answers other requests, look for an admission webhook whose server is away (writing node n1)"},
		{fmt.Errorf("reading node n1: %w", context.DeadlineExceeded), "", "/etc/kubernetes/kubelet.conf: https://api:6443 does not answer in time"},
		{apierrors.NewUnauthorized("Unauthorized"), "Forbidden", "/etc/kubernetes/kubelet.conf: https://api:6443 refuses its credential (401); is it this cluster's, and valid? systemctl status kubelet"},
		{apierrors.NewConflict(nodes, "n1", errors.New("changed")), "", `Operation cannot be fulfilled on nodes "n1": changed`},
		{&PluginError{Command: "mint", How: "exit status 1", Message: "no"}, "", "/etc/kubernetes/kubelet.conf: credential plugin mint: exit status 1: no"},
	} {
		got := w.explain(c.err)
		if got.Text != c.want || got.Reason != c.reason || !errors.Is(got, c.err) {
			t.Errorf("%v\n\tis %q (%s)\n\texpected %q (%s)", c.err, got.Text, got.Reason, c.want, c.reason)
		}
	}
	for err, own := range map[error]bool{writing(&PluginError{Command: "mint"}): true, writing(errors.New("no")): false} {
		if w.explain(err).Local != own || ExplainSetup(err).Local != own {
			t.Errorf("%v: the cause is on this host: expected %t", err, own)
		}
	}
	if (&Client{}).Explain(nil) != nil || ExplainSetup(nil) != nil {
		t.Error("nil has an explanation")
	}
}
