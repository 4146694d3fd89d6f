// Package v1alpha1 is lockkeeper's published API: the labels and annotations on a Node and
// their values, the CRD types, and the reasons, metrics, Events and journal messages.
//
// lockkeeper's own packages and the authors of hooks use it. A hook needs three things. A
// DaemonSet selects nodes by [LabelState], so that its pod runs while a node is in the
// hook's stage. The pod reads the turn's ID from [AnnotationTurn]. When its work is done,
// it writes that ID to its own annotation, see [HookAnnotation]. A confirmation with the
// ID of an earlier turn does not count.
//
// The package imports only apimachinery and the standard library. It must not know how a
// decision is made, and it does no I/O.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// controller-gen reads the next line; see `make generate`.
//
// +groupName=lockkeeper.dev

// GroupVersion is the API group of lockkeeper's own objects, and the version of
// it that this package holds.
var GroupVersion = schema.GroupVersion{Group: "lockkeeper.dev", Version: "v1alpha1"}

// PolicyResource is where the API server serves [DisruptionPolicy] objects.
var PolicyResource = GroupVersion.WithResource("disruptionpolicies")

// HostUpdateResource is where the API server serves [HostUpdate] objects.
var HostUpdateResource = GroupVersion.WithResource("hostupdates")

// AddToScheme makes the objects of this package known to a scheme. The error
// means that two packages claim one name.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DisruptionPolicy{}, &DisruptionPolicyList{}, &HostUpdate{}, &HostUpdateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
