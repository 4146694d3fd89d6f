package install

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const shop = "shop"

// scale sets the replicas of Deployment web and of StatefulSet db.
func scale(t *testing.T, replicas int32) {
	t.Helper()
	s := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	s.Name = "web"
	_, err := examplePlane().Client().AppsV1().Deployments(shop).UpdateScale(exampleSoon(t), "web", s, metav1.UpdateOptions{})
	must(t, err)
	s = &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	s.Name = "db"
	_, err = examplePlane().Client().AppsV1().StatefulSets(shop).UpdateScale(exampleSoon(t), "db", s, metav1.UpdateOptions{})
	must(t, err)
}

// A place is how many pods each of web and db has on two nodes, and how many that no node takes.
type place struct{ here, there, nowhere int }

// placed waits until the pods are so, and Ready where they run. A scheduler that has not seen a cordon yet may put a pod onto the
// wrong node: that is deleted, and its successor is put right.
func placed(t *testing.T, here, there string, want place) {
	t.Helper()
	wants := map[string]int{here: want.here, there: want.there, "": want.nowhere}
	_, err := examplePlane().WaitPods(exampleSoon(t), shop, "tier=front", fmt.Sprintf("to be %+v", want), func(pods []*corev1.Pod) bool {
		right := 0
		for _, app := range []string{"web", "db"} {
			on := map[string][]*corev1.Pod{}
			for _, p := range pods { // by name
				if p.Labels["app"] == app && p.DeletionTimestamp == nil {
					on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
				}
			}
			for node, n := range wants {
				ready := !slices.ContainsFunc(on[node], func(p *corev1.Pod) bool { return !controlplane.PodReady(p) })
				if len(on[node]) == n && (ready || node == "") {
					right++
				}
				if node != "" && len(on[node]) > n {
					last := on[node][len(on[node])-1]
					_ = examplePlane().Client().CoreV1().Pods(shop).Delete(t.Context(), last.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(last.UID))})
				}
			}
		}
		return right == 2*len(wants)
	})
	must(t, err)
}

// workloads puts one replica of web and of db on each of two nodes, and something that is never ready next to them.
func workloads(t *testing.T, here, there string) {
	t.Helper()
	_, err := examplePlane().Client().CoreV1().Namespaces().Create(exampleSoon(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}, metav1.CreateOptions{})
	must(t, err)
	template := func(app string, annotations map[string]string) (corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app, "tier": "front"}, Annotations: annotations},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{here, there}},
					}}},
				}}},
			},
		}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	cordon(t, there, true)
	front, one := map[string]string{"tier": "front"}, int32(1)
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: front}, Spec: appsv1.DeploymentSpec{Replicas: &one}}
	web.Spec.Template, web.Spec.Selector = template("web", nil)
	_, err = examplePlane().Client().AppsV1().Deployments(shop).Create(exampleSoon(t), web, metav1.CreateOptions{})
	must(t, err)
	db := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: front}, Spec: appsv1.StatefulSetSpec{Replicas: &one}}
	db.Spec.Template, db.Spec.Selector = template("db", nil)
	_, err = examplePlane().Client().AppsV1().StatefulSets(shop).Create(exampleSoon(t), db, metav1.CreateOptions{})
	must(t, err)
	placed(t, here, there, place{here: 1})
	cordon(t, here, true)
	cordon(t, there, false)
	scale(t, 2)
	placed(t, here, there, place{here: 1, there: 1})
	cordon(t, here, false)
	must(t, examplePlane().CreateWorkload(exampleSoon(t), controlplane.Workload{
		Namespace: shop, Name: "sick", Replicas: 2, PodAnnotations: map[string]string{controlplane.ReadyAnnotation: "never"},
		NodeSelector: map[string]string{corev1.LabelHostname: here},
	}))
	_, err = examplePlane().WaitPods(exampleSoon(t), shop, "app=sick", "to run", func(pods []*corev1.Pod) bool {
		return len(pods) == 2 && pods[0].Status.Phase == corev1.PodRunning && pods[1].Status.Phase == corev1.PodRunning
	})
	must(t, err)
}

// lack has both want one replica more than the cordons let be placed; supply lets it be placed on the other node.
func lack(t *testing.T, replicas int32, here, there string) (supply func()) {
	t.Helper()
	cordon(t, here, true)
	cordon(t, there, true)
	scale(t, replicas)
	placed(t, here, there, place{here: 1, there: int(replicas) - 2, nowhere: 1})
	return func() {
		t.Helper()
		cordon(t, there, false)
		placed(t, here, there, place{here: 1, there: int(replicas) - 1})
	}
}

// TestWaitForReplicas follows the example through turns of a node, as its DaemonSet's pod and as a unit of the host.
func TestWaitForReplicas(t *testing.T) {
	t.Parallel()
	const hook, here, there = "wait-for-replicas", "replicas-a", "replicas-b"
	e := apply(t, hook)
	nodes(t, here, there)
	workloads(t, here, there)
	path := exampleTools(t, "kubectl", "awk", "sleep")
	only := "SELECTOR=tier=front"

	// It has to wait, and continues. Its pod comes although the node is cordoned already.
	supply := lack(t, 3, here, there)
	first := newTurn()
	enter(t, here, v1alpha1.StateBeforeDrain, first)
	pod := e.onlyOn(t, here)
	token := e.token(t, pod)
	p := start(t, e.script, path, e.env(t, here, token, only))
	p.says("Deployment shop/web has 1 of 2 replicas available elsewhere")
	p.says("StatefulSet shop/db has 1 of 2 replicas available elsewhere")
	rights(t, e, token, here, there, hook, first)
	if got := said(t, here, hook); got != "" {
		t.Fatalf("it has confirmed %q while replicas are lacking", got)
	}
	supply()
	confirmed(t, here, hook, first)
	p.running()
	if strings.Contains(p.log(), "sick") {
		t.Error("it speaks of a workload that the selector leaves out")
	}
	enter(t, here, v1alpha1.StateDraining, first)
	e.onlyOn(t, "")
	p.stopped()

	// The turn is cancelled while it waits, and the next one is there before it looks: that one is not its own.
	supply = lack(t, 4, here, there)
	second, third := newTurn(), newTurn()
	enter(t, here, v1alpha1.StateBeforeDrain, second)
	p = start(t, e.script, path, e.env(t, here, e.token(t, e.onlyOn(t, here)), only))
	p.says("Deployment shop/web has 2 of 3 replicas available elsewhere")
	enter(t, here, v1alpha1.StateBeforeDrain, third)
	supply()
	p.ends(0)
	if got := said(t, here, hook); got != "" {
		t.Errorf("what waited for turn %s has said %q in turn %s", second, got, third)
	}

	// It has looked, and is about to confirm, when the turn is cancelled and the next one begins.
	held := slowPatch(t)
	p = start(t, e.script, held.path(t, "awk", "sleep"), e.env(t, here, e.token(t, e.onlyOn(t, here)), only))
	held.reached(t)
	fourth := newTurn()
	enter(t, here, v1alpha1.StateBeforeDrain, fourth)
	held.release(t)
	p.ends(0)
	if got := said(t, here, hook); got != "" {
		t.Errorf("what looked in turn %s has said %q in turn %s", third, got, fourth)
	}

	onTheHost(t, here, there)
}

// A hold is a kubectl that waits before it patches.
type hold struct{ dir string }

func slowPatch(t *testing.T) hold {
	t.Helper()
	h := hold{t.TempDir()}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *' patch '*)\n\t: >%[1]s/asked\n\twhile [ ! -e %[1]s/go ]; do sleep 0.1; done\nesac\nexec %[2]s \"$@\"\n", h.dir, examplePlane().Binaries().Kubectl)
	must(t, os.WriteFile(filepath.Join(h.dir, "kubectl"), []byte(script), 0o755))
	return h
}

func (h hold) path(t *testing.T, names ...string) string {
	return exampleTools(t, append(names, filepath.Join(h.dir, "kubectl"))...)
}

func (h hold) reached(t *testing.T) {
	t.Helper()
	until(t, "the script to confirm", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "asked"))
		return err == nil
	})
}

func (h hold) release(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o644))
}

// onTheHost runs the same script as the unit does, with the kubelet's credential.
func onTheHost(t *testing.T, here, there string) {
	t.Helper()
	kubelet, err := examplePlane().NodeKubeconfig(here)
	must(t, err)
	env := []string{"KUBECONFIG=" + kubelet, "NODE_NAME=" + here, "SELECTOR=tier=front", "POLL_SECONDS=2", "HOME=" + t.TempDir()}
	script, err := filepath.Abs(filepath.Join(examples, "wait-for-replicas", "hook.sh"))
	must(t, err)
	supply := lack(t, 5, here, there)
	p := start(t, script, exampleTools(t, "kubectl", "awk", "sleep"), env)
	p.says("Forbidden")
	p.says("cannot read the replicas")
	if out, err := kubectl(t, admin(t), "apply", "-f", filepath.Join(examples, "wait-for-replicas", "host.yaml")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.says("Deployment shop/web has 3 of 4 replicas available elsewhere")
	p.running()
	supply()
	p.ends(0)
}
