package drain

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outline returns a pod with only the fields of p that a verdict by [Selecting] depends on. A
// caller that judges the same pods again when the rules change keeps a few hundred bytes of each
// instead of kilobytes.
func Outline(p *corev1.Pod) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, DeletionTimestamp: p.DeletionTimestamp,
		},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}
	if isMirror(p) {
		o.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
	}
	if ref := metav1.GetControllerOf(p); ref != nil {
		o.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	if hasEmptyDir(p) {
		o.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	return o
}
