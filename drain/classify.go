package drain

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Class is what a drain does about a pod.
type Class string

const (
	// Evict: the drain evicts the pod.
	Evict Class = "Evict"
	// Wait: the pod is terminating already; the drain waits for it.
	Wait Class = "Wait"
	// Block: the pod must not be evicted, and must be gone before the node is drained. Before
	// the cordon, it keeps the node from its turn. Only a Policy returns it.
	Block Class = "Block"
	// Leave: the pod stays or does not matter.
	Leave Class = "Leave"
)

// Reason is one CamelCase value: why a pod is in the class of its verdict, or why the pod of
// a Blocker is still there. A Policy may return other reasons.
type Reason string

// Reasons of verdicts.
const (
	// Managed: a controller creates the pod again on another node.
	Managed Reason = "Managed"
	// Unmanaged: nothing creates the pod again.
	Unmanaged Reason = "Unmanaged"
	// DaemonSet: its controller would create the pod again on this node at once.
	DaemonSet Reason = "DaemonSet"
	// MirrorPod: the kubelet runs it from a file; the object is a mirror of it.
	MirrorPod Reason = "MirrorPod"
	// Finished: phase Succeeded or Failed, no container runs.
	Finished Reason = "Finished"
	// Terminating: the pod has a deletionTimestamp. In a Blocker, its grace period is over
	// as well.
	Terminating Reason = "Terminating"
)

// Verdict is a pod's class and why.
type Verdict struct {
	Class  Class
	Reason Reason
}

// Classify returns what a drain does about the pod. It uses only the pod: the kubelet's
// identity may not read a DaemonSet, so Classify finds a DaemonSet's pods by their
// controller's ownerReference.
func Classify(p *corev1.Pod) Verdict {
	switch controller := metav1.GetControllerOfNoCopy(p); {
	case p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed:
		return Verdict{Leave, Finished}
	case isMirror(p):
		return Verdict{Leave, MirrorPod}
	case isDaemonSet(controller):
		return Verdict{Leave, DaemonSet}
	case p.DeletionTimestamp != nil:
		return Verdict{Wait, Terminating}
	case controller != nil:
		return Verdict{Evict, Managed}
	default:
		return Verdict{Evict, Unmanaged}
	}
}

func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// isDaemonSet checks the group too: there are DaemonSets of other groups, and what they do
// about a cordoned node is unknown.
func isDaemonSet(ref *metav1.OwnerReference) bool {
	if ref == nil || ref.Kind != "DaemonSet" {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == "apps"
}

// Policy may overrule the verdict on a pod that would be evicted or waited for: Leave skips
// it, and Block delays the drain until something else removes it. A Policy is not asked about
// pods that are left alone. A terminating pod cannot be evicted again, so Evict and Block are
// ignored for it. A Policy must be pure (the same pod, the same verdict) and fast: it is called
// at every change of a pod, from several goroutines.
type Policy func(p *corev1.Pod, v Verdict) Verdict

// Judge returns what a drain with this policy, which may be nil, does about the pod.
func (f Policy) Judge(p *corev1.Pod) Verdict {
	v := Classify(p)
	if f == nil || v.Class == Leave {
		return v
	}
	switch own := f(p, v); {
	case own.Class == Leave, v.Class == Evict && (own.Class == Block || own.Class == Evict):
		return own
	}
	return v
}

func identify(p *corev1.Pod) Pod {
	return Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// comparePods is the one stable order of pods.
func comparePods(a, b Pod) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.UID, b.UID),
	)
}
