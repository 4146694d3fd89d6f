// What controller-gen reads of the package: see `make generate`.
//
// +groupName=lockkeeper.dev

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group of lockkeeper's own objects, and the version of
// it that this package holds.
var GroupVersion = schema.GroupVersion{Group: "lockkeeper.dev", Version: "v1alpha1"}

// PolicyResource is where the API server serves [DisruptionPolicy] objects.
var PolicyResource = GroupVersion.WithResource("disruptionpolicies")

// HostUpdateResource is where the API server serves [HostUpdate] objects.
var HostUpdateResource = GroupVersion.WithResource("hostupdates")

// AddToScheme makes the objects of this package known to a scheme. The error is
// of no use to anybody but a programmer: two packages claim one name.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DisruptionPolicy{}, &DisruptionPolicyList{}, &HostUpdate{}, &HostUpdateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
