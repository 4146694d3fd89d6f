// Package v1alpha1 holds lockkeeper's published words: the labels and
// annotations on a Node, the values they take, and the reasons that labels,
// logs, metrics and `lockkeeper status` have in common.
//
// It is for everybody who reads or answers lockkeeper: its own rooms, and the
// authors of hooks. A hook needs three things of it. A DaemonSet selects
// nodes by [LabelState], so that its pod runs while a node is in the stage it
// cares for; the pod reads the turn's id from [AnnotationTurn]; when its work
// is done it writes that id to its own annotation, named by [HookAnnotation].
// The id matters: a confirmation of an earlier turn confirms nothing.
//
// This room imports apimachinery and the standard library only. It must not
// know how a decision is made, nor talk to anything.
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

// AddToScheme makes the objects of this package known to a scheme. The error is
// of no use to anybody but a programmer: two packages claim one name.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DisruptionPolicy{}, &DisruptionPolicyList{}, &HostUpdate{}, &HostUpdateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
