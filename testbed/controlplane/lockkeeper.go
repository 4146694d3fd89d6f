package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// The objects that [ControlPlane.ApplyLockkeeper] makes, and the identities that it gives rights to.
const (
	LockkeeperNamespace = v1alpha1.DefaultLeaseNamespace
	LockkeeperLease     = v1alpha1.DefaultLeaseName // in LockkeeperNamespace
	NodesGroup          = "system:nodes"
)

// CoordinatorUser is the coordinator's name to the API server.
var CoordinatorUser = v1alpha1.CoordinatorUser(LockkeeperNamespace)

// resources are the kinds in the manifests.
var resources = map[schema.GroupKind]schema.GroupVersionResource{
	{Kind: "Namespace"}:                                              {Version: "v1", Resource: "namespaces"},
	{Kind: "ServiceAccount"}:                                         {Version: "v1", Resource: "serviceaccounts"},
	{Group: "coordination.k8s.io", Kind: "Lease"}:                    {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "rbac.authorization.k8s.io", Kind: "Role"}:               {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}: {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// ApplyLockkeeper applies what an administrator applies before lockkeeper can run: what `lockkeeper manifests` prints. Applied
// again it puts right what was changed, and leaves the Lease's holder alone.
func (cp *ControlPlane) ApplyLockkeeper(ctx context.Context) error {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return fmt.Errorf("applying lockkeeper's objects: %w", err)
	}
	text, err := manifests.Render(manifests.Options{})
	if err != nil {
		return fmt.Errorf("applying lockkeeper's objects: %w", err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10)
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(obj); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("parsing lockkeeper's objects: %w", err)
		}
		resource, ok := resources[obj.GroupVersionKind().GroupKind()]
		if !ok {
			return fmt.Errorf("lockkeeper's objects have a %s, which this testbed cannot apply", obj.GetKind())
		}
		_, err := client.Resource(resource).Namespace(obj.GetNamespace()).
			Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "lockkeeper-testbed", Force: true})
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
}
