package install

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// bare reports whether a Node has nothing of lockkeeper's but the label managed with this value, "" for none.
func bare(managed string) func(*simhost.Host, *corev1.Node) bool {
	return func(_ *simhost.Host, n *corev1.Node) bool {
		for _, keys := range []map[string]string{n.Labels, n.Annotations} {
			for key := range keys {
				if strings.HasPrefix(key, v1alpha1.Prefix) && key != v1alpha1.LabelManaged {
					return false
				}
			}
		}
		return n.Labels[v1alpha1.LabelManaged] == managed && !n.Spec.Unschedulable
	}
}

// TestUninstallAsWritten runs each line of docs/uninstall.md. To remove the package is to stop lockkeeper here.
func TestUninstallAsWritten(t *testing.T) {
	t.Parallel()
	in := managed(t, "uninstall.md")
	t.Cleanup(func() { // other tests use the same control plane
		if err := in.cp.RenewCoordinator(context.Background()); err != nil {
			t.Error(err)
		}
	})

	in.next("One host") // the variable
	in.says(in.next("One host"), 1, "node-3  has left", "1 node has left.", "\n  kubectl label node node-3 lockkeeper.dev/managed-")
	in.node("to have left", func(n *corev1.Node) bool { return bare("false")(nil, n) })
	in.hosts[2].StopLockkeeper()
	in.next("One host")
	in.node("to be as it was before", func(n *corev1.Node) bool { return bare("")(nil, n) })

	in.says(in.next("A fleet"), 1, "node-1  has left", "node-2  has left", "3 nodes have left.")
	in.until("to have left", soon, bare("false"))

	// The fleet comes back, and its coordinators go first.
	must(t, in.hosts[2].StartLockkeeper())
	for _, h := range in.hosts {
		must(t, in.label(h.Name(), `{"metadata":{"labels":{"lockkeeper.dev/managed":null}}}`))
	}
	in.until("to be idle", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] == "idle" })
	in.hosts[0].StopLockkeeper()
	in.hosts[1].StopLockkeeper()
	in.holder("to be nobody after the coordinators have gone", nobody)
	in.says(in.next("Without a coordinator"), 1, "3 nodes have left.")
	in.until("to have left without a coordinator", soon, bare("false"))

	in.hosts[2].StopLockkeeper()
	in.next("The cluster")
	out := in.next("The cluster")
	in.says(out, 1, `"disruptionpolicies.lockkeeper.dev" deleted`, `"hostupdates.lockkeeper.dev" deleted`, `namespace "lockkeeper" deleted`, `lease.coordination.k8s.io "lockkeeper" deleted`)
	in.until("to be as it was before", soon, bare(""))
	in.nothingLeft()
	if len(in.steps) > 0 {
		t.Errorf("docs/uninstall.md has steps that the test does not run: %q", in.steps)
	}
}

// label patches a Node as an administrator.
func (in *installation) label(node, patch string) error {
	_, err := in.cp.Client().CoreV1().Nodes().Patch(in.t.Context(), node, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	return err
}

// nothingLeft fails the test if the cluster has an object whose name says that it is lockkeeper's.
func (in *installation) nothingLeft() {
	in.t.Helper()
	client, err := dynamic.NewForConfig(in.cp.AdminConfig())
	must(in.t, err)
	for _, kind := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "serviceaccounts"}, {Version: "v1", Resource: "secrets"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		v1alpha1.HostUpdateResource,
	} {
		list, err := client.Resource(kind).List(in.t.Context(), metav1.ListOptions{})
		if apierrors.IsNotFound(err) && kind == v1alpha1.HostUpdateResource {
			continue
		}
		must(in.t, err)
		for i := range list.Items {
			if name := list.Items[i].GetName(); strings.Contains(name, "lockkeeper") && !strings.HasPrefix(name, "testbed") {
				in.t.Errorf("%s %s/%s is left", kind.Resource, list.Items[i].GetNamespace(), name)
			}
		}
	}
}
