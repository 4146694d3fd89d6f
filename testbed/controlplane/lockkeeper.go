package controlplane

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// The identities and objects that [ControlPlane.ApplyLockkeeper] gives rights to and makes.
const (
	LockkeeperNamespace = "lockkeeper"
	LockkeeperLease     = "lockkeeper" // in LockkeeperNamespace
	CoordinatorUser     = "lockkeeper-coordinator"
	CoordinatorGroup    = "lockkeeper:coordinators"
	NodesGroup          = "system:nodes"
)

//go:embed lockkeeper.yaml
var lockkeeperYAML []byte

// resources are the kinds in lockkeeper.yaml.
var resources = map[schema.GroupKind]schema.GroupVersionResource{
	{Kind: "Namespace"}:                                              {Version: "v1", Resource: "namespaces"},
	{Group: "coordination.k8s.io", Kind: "Lease"}:                    {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "rbac.authorization.k8s.io", Kind: "Role"}:               {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}: {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// ApplyLockkeeper applies what an administrator applies before lockkeeper can run: the namespace, the Lease, the least RBAC
// for hosts (group [NodesGroup]) and for the coordinator (group [CoordinatorGroup]). Applied again it puts right what was
// changed, and leaves the Lease's holder alone.
func (cp *ControlPlane) ApplyLockkeeper(ctx context.Context) error {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return fmt.Errorf("applying lockkeeper's objects: %w", err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(lockkeeperYAML), 4<<10)
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
