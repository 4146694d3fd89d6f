package drain

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestOutline checks that every policy judges the outline of a pod as it judges the pod, and that the outline is small.
func TestOutline(t *testing.T) {
	label := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} }
	data := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
	}
	secret := func(p *corev1.Pod) { data(p); p.Spec.Volumes = p.Spec.Volumes[:1] }
	large := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"a": string(make([]byte, 1<<16))}
		p.Spec.Containers = make([]corev1.Container, 100)
	}
	pods := map[string]*corev1.Pod{
		"bare": aPod("p"), "with a label": aPod("p", label), "with data": aPod("p", data), "with a secret": aPod("p", secret),
		"owned": aPod("p", owned("apps/v1", "ReplicaSet", "u", true)), "not controlled": aPod("p", owned("apps/v1", "DaemonSet", "u", false)),
		"of a DaemonSet": aPod("p", owned("apps/v1", "DaemonSet", "u", true)), "a mirror": aPod("p", mirror), "finished": aPod("p", phase(corev1.PodFailed)),
		"terminating": aPod("p", terminating, label), "large": aPod("p", large, label, data),
	}
	db := []v1alpha1.PodSelector{{}}
	db[0].Selector.MatchLabels = map[string]string{"app": "db"}
	rules := map[string]v1alpha1.PodRules{
		"none": {}, "block": {Block: db}, "skip": {Skip: db}, "block a namespace": {Block: []v1alpha1.PodSelector{{Namespace: "default"}}},
		"unmanaged": {Unmanaged: v1alpha1.PodBlock}, "emptyDir": {EmptyDir: v1alpha1.PodBlock}, "skip both": {Unmanaged: v1alpha1.PodSkip, EmptyDir: v1alpha1.PodSkip},
	}
	for pod, p := range pods {
		o := Outline(p)
		for rule, r := range rules {
			if got, want := Selecting(r).Judge(o), Selecting(r).Judge(p); got != want {
				t.Errorf("%s by %s: the outline %v, the pod %v", pod, rule, got, want)
			}
		}
		if text, _ := json.Marshal(o); len(text) > 600 {
			t.Errorf("%s: an outline of %d bytes: %s", pod, len(text), text)
		}
		if identify(o) != identify(p) {
			t.Errorf("%s: the outline is of %v", pod, identify(o))
		}
	}
}
