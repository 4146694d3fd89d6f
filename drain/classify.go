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
	// Evict: the pod is asked to leave.
	Evict Class = "Evict"
	// Wait: the pod is on its way out already; it is only waited for.
	Wait Class = "Wait"
	// Block: the pod must not be evicted and yet must be gone before the node
	// is drained. Classify never says so; a Policy may.
	Block Class = "Block"
	// Leave: the pod stays or does not matter.
	Leave Class = "Leave"
)

// Reason is one CamelCase word that says why: of a verdict why the pod is in
// its class, of a Blocker why the pod is still there. A Policy may bring
// words of its own.
type Reason string

// Reasons of verdicts.
const (
	// Managed: a controller will create the pod anew elsewhere.
	Managed Reason = "Managed"
	// Unmanaged: nobody will create the pod anew.
	Unmanaged Reason = "Unmanaged"
	// DaemonSet: the DaemonSet would put the pod back on the node at once.
	DaemonSet Reason = "DaemonSet"
	// MirrorPod: the kubelet runs it from a file; the API's object is a mirror.
	MirrorPod Reason = "MirrorPod"
	// Finished: phase Succeeded or Failed, no container runs.
	Finished Reason = "Finished"
	// Terminating: the pod has a deletionTimestamp. As a Blocker's reason: and
	// its grace period is over.
	Terminating Reason = "Terminating"
)

// Verdict is a pod's class and why.
type Verdict struct {
	Class  Class
	Reason Reason
}

// Classify says what a drain does about the pod, from the pod alone: a
// DaemonSet's pods are known by their controller's ownerReference, because
// the kubelet's identity may not read the DaemonSet.
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

// isDaemonSet asks for the group too: there are other DaemonSets than that of
// apps, and what they do about a cordoned node is not known here.
func isDaemonSet(ref *metav1.OwnerReference) bool {
	if ref == nil || ref.Kind != "DaemonSet" {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == "apps"
}

// Policy may overrule the verdict on a pod that would be evicted or waited
// for: Leave to skip it, Block to let it hold up the drain until somebody
// else removes it. It is not asked about pods that are left alone, and a pod
// that is terminating cannot be evicted again: Evict and Block are then
// ignored. It must be pure (the same pod, the same verdict) and quick, for it
// is asked at every change of a pod, from several goroutines.
type Policy func(p *corev1.Pod, v Verdict) Verdict

func (f Policy) judge(p *corev1.Pod, v Verdict) Verdict {
	if f == nil || v.Class == Leave {
		return v
	}
	said := f(p, v)
	switch said.Class {
	case Leave:
		return said
	case Block, Evict:
		if v.Class == Evict {
			return said
		}
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
