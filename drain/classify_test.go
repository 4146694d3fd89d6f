package drain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const testNode = "n1"

// aPod returns a running pod on testNode. Its UID is its name with "-uid".
func aPod(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec:       corev1.PodSpec{NodeName: testNode},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, m := range mods {
		m(p)
	}
	return p
}

func owned(apiVersion, kind string, uid types.UID, controller bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: apiVersion, Kind: kind, Name: "owner", UID: uid, Controller: &controller,
		})
	}
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

func priority(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &n }
}

func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{"kubernetes.io/config.mirror": "0123abcd"}
}

func terminating(p *corev1.Pod) {
	now := metav1.Now()
	p.DeletionTimestamp = &now
}

func TestClassify(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want Verdict
	}{
		"replica":                      {aPod("p", owned("apps/v1", "ReplicaSet", "u", true)), Verdict{Evict, Managed}},
		"nobody's":                     {aPod("p"), Verdict{Evict, Unmanaged}},
		"owned without a controller":   {aPod("p", owned("apps/v1", "DaemonSet", "u", false)), Verdict{Evict, Unmanaged}},
		"pending":                      {aPod("p", phase(corev1.PodPending)), Verdict{Evict, Unmanaged}},
		"phase unknown":                {aPod("p", phase(corev1.PodUnknown)), Verdict{Evict, Unmanaged}},
		"daemon":                       {aPod("p", owned("apps/v1", "DaemonSet", "u", true)), Verdict{Leave, DaemonSet}},
		"daemon of a later version":    {aPod("p", owned("apps/v2", "DaemonSet", "u", true)), Verdict{Leave, DaemonSet}},
		"somebody else's DaemonSet":    {aPod("p", owned("apps.kruise.io/v1alpha1", "DaemonSet", "u", true)), Verdict{Evict, Managed}},
		"core group DaemonSet":         {aPod("p", owned("v1", "DaemonSet", "u", true)), Verdict{Evict, Managed}},
		"daemon on its way out":        {aPod("p", owned("apps/v1", "DaemonSet", "u", true), terminating), Verdict{Leave, DaemonSet}},
		"mirror":                       {aPod("p", mirror, owned("v1", "Node", "u", true)), Verdict{Leave, MirrorPod}},
		"mirror on its way out":        {aPod("p", mirror, terminating), Verdict{Leave, MirrorPod}},
		"succeeded":                    {aPod("p", phase(corev1.PodSucceeded)), Verdict{Leave, Finished}},
		"failed":                       {aPod("p", phase(corev1.PodFailed)), Verdict{Leave, Finished}},
		"finished and on its way out":  {aPod("p", phase(corev1.PodFailed), terminating), Verdict{Leave, Finished}},
		"terminating":                  {aPod("p", terminating), Verdict{Wait, Terminating}},
		"terminating, with controller": {aPod("p", terminating, owned("apps/v1", "ReplicaSet", "u", true)), Verdict{Wait, Terminating}},
	} {
		if got := Classify(c.pod); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestPolicy(t *testing.T) {
	say := func(c Class) Policy { return func(*corev1.Pod, Verdict) Verdict { return Verdict{c, "Mine"} } }
	running, leaving, daemon := aPod("p"), aPod("p", terminating), aPod("p", owned("apps/v1", "DaemonSet", "u", true))
	for name, c := range map[string]struct {
		policy Policy
		pod    *corev1.Pod
		want   Verdict
	}{
		"none":                     {nil, running, Verdict{Evict, Unmanaged}},
		"skip":                     {say(Leave), running, Verdict{Leave, "Mine"}},
		"skip a terminating pod":   {say(Leave), leaving, Verdict{Leave, "Mine"}},
		"block":                    {say(Block), running, Verdict{Block, "Mine"}},
		"block a terminating pod":  {say(Block), leaving, Verdict{Wait, Terminating}},
		"evict a terminating pod":  {say(Evict), leaving, Verdict{Wait, Terminating}},
		"evict a daemon":           {say(Evict), daemon, Verdict{Leave, DaemonSet}},
		"wait for one that is not": {say(Wait), running, Verdict{Evict, Unmanaged}},
		"nonsense":                 {say("Nonsense"), running, Verdict{Evict, Unmanaged}},
	} {
		if got := c.policy.Judge(c.pod); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
