package controlplane

import (
	"context"
	"fmt"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var deleteNow = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}

// onNode selects a node by the hostname label that CreateNode sets on each Node.
func onNode(name string) map[string]string { return map[string]string{corev1.LabelHostname: name} }

// workload creates a Deployment with a budget and waits for its pods.
func workload(t *testing.T, w Workload) []*corev1.Pod {
	t.Helper()
	ctx := soon(t)
	if err := shared.CreateWorkload(ctx, w); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Client().CoreV1().Namespaces().Delete(context.Background(), w.Namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err := shared.WaitWorkload(ctx, w.Namespace, w.Name); err != nil {
		t.Fatal(err)
	}
	return pods(t, w.Namespace, "there", func(ps []*corev1.Pod) bool { return len(ps) == int(w.Replicas) })
}

func pods(t *testing.T, namespace, what string, cond func([]*corev1.Pod) bool) []*corev1.Pod {
	t.Helper()
	return must(shared.WaitPods(soon(t), namespace, "", what, cond))(t)
}

func budget(n int) *intstr.IntOrString { v := intstr.FromInt(n); return &v }

func TestPodsOfHostsRun(t *testing.T) {
	readyHost(t, shared, "pods-a")
	for _, p := range workload(t, Workload{Namespace: "pods-run", Name: "web", Replicas: 3, NodeSelector: onNode("pods-a")}) {
		if p.Spec.NodeName != "pods-a" || p.Status.Phase != corev1.PodRunning || !PodReady(p) || p.Status.PodIP == "" {
			t.Errorf("pod %s: on %q, %s, ready=%t, IP %q", p.Name, p.Spec.NodeName, p.Status.Phase, PodReady(p), p.Status.PodIP)
		}
	}
}

// TestHostsNodeIsNotKwoks checks that KWOK simulates a host's pods and leaves the Node and its Lease to the kubelet.
func TestHostsNodeIsNotKwoks(t *testing.T) {
	readyHost(t, shared, "pods-b")
	must(shared.CreateNode(soon(t), NodeSpec{Name: "pods-ballast", Ballast: true}))(t)
	t.Cleanup(func() { _ = shared.Client().CoreV1().Nodes().Delete(context.Background(), "pods-ballast", deleteNow) })
	workload(t, Workload{Namespace: "pods-node", Name: "web", Replicas: 1, NodeSelector: onNode("pods-b")})
	ready := func(n *corev1.Node) bool { return n != nil && nodeReady(n) == corev1.ConditionTrue }
	ballast := must(shared.WaitNode(soon(t), "pods-ballast", "to be Ready", ready))(t)
	if ballast.Status.NodeInfo.BootID == "" {
		t.Error("a ballast node has no boot id")
	}
	ctx := soon(t)
	// When the ballast node has its Lease, KWOK has had time to create one for the host.
	leases := shared.Client().CoordinationV1().Leases("kube-node-lease")
	w := must(leases.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=pods-ballast"}))(t)
	defer w.Stop()
	for e := range w.ResultChan() {
		if l, ok := e.Object.(*coordinationv1.Lease); ok && l.Spec.RenewTime != nil {
			break
		}
	}
	if _, err := leases.Get(ctx, "pods-b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the host's Lease: %v, want not found", err)
	}
	host := must(shared.Client().CoreV1().Nodes().Get(ctx, "pods-b", metav1.GetOptions{}))(t)
	for _, m := range host.ManagedFields {
		if m.Manager == "kwok" {
			t.Errorf("KWOK wrote the host's Node: %s %s", m.Operation, m.FieldsV1)
		}
	}
	if !slices.ContainsFunc(ballast.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "kwok" }) {
		t.Error("KWOK's writes do not carry the name that this test looks for")
	}
}

// TestHeldPods checks that the pods of a host that is down do not change, and that they end and become ready normally when the host is
// back.
func TestHeldPods(t *testing.T) {
	silence := readyHost(t, shared, "pods-down")
	readyHost(t, shared, "pods-up")
	before := workload(t, Workload{Namespace: "pods-held", Name: "web", Replicas: 2, NodeSelector: onNode("pods-down")})
	workload(t, Workload{Namespace: "pods-other", Name: "web", Replicas: 1, NodeSelector: onNode("pods-up")})

	ctx := soon(t)
	silence()
	holdPods(t, shared, "pods-down")
	pods(t, "pods-held", "to be called not ready", func(ps []*corev1.Pod) bool {
		return len(ps) == 2 && !PodReady(ps[0]) && !PodReady(ps[1])
	})
	for _, namespace := range []string{"pods-held", "pods-other"} {
		if err := shared.Client().CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The other host's pod was deleted later and its replacement runs, so KWOK has processed the first deletion too.
	pods(t, "pods-other", "to be replaced", func(ps []*corev1.Pod) bool {
		return len(ps) == 1 && ps[0].DeletionTimestamp == nil && PodReady(ps[0])
	})
	for _, p := range before {
		held, err := shared.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("a pod was deleted on a host that is down: %v", err)
		}
		if held.DeletionTimestamp == nil || PodReady(held) || held.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s changed on a host that is down: %s", p.Name, describePods([]*corev1.Pod{held}))
		}
	}

	if err := shared.SetNodeReady(ctx, "pods-down", "boot-2", true); err != nil {
		t.Fatal(err)
	}
	pods(t, "pods-held", "to be replaced", func(ps []*corev1.Pod) bool {
		return len(ps) == 2 && !slices.ContainsFunc(ps, func(p *corev1.Pod) bool {
			return p.DeletionTimestamp != nil || !PodReady(p) || p.UID == before[0].UID || p.UID == before[1].UID
		})
	})
}

// TestPodsReadyAgain checks that a pod is ready again when its host returns, as a kubelet would report.
func TestPodsReadyAgain(t *testing.T) {
	silence := readyHost(t, shared, "pods-back")
	before := workload(t, Workload{Namespace: "pods-again", Name: "web", Replicas: 1, NodeSelector: onNode("pods-back")})
	silence()
	holdPods(t, shared, "pods-back")
	pods(t, "pods-again", "to be called not ready", func(ps []*corev1.Pod) bool { return len(ps) == 1 && !PodReady(ps[0]) })
	if err := shared.SetNodeReady(soon(t), "pods-back", "boot-2", true); err != nil {
		t.Fatal(err)
	}
	pods(t, "pods-again", "to be ready again", func(ps []*corev1.Pod) bool {
		return len(ps) == 1 && ps[0].UID == before[0].UID && PodReady(ps[0])
	})
}

// TestSilentHostIsNotReady checks that the controller manager marks a silent host as not Ready after the configured grace period.
func TestSilentHostIsNotReady(t *testing.T) {
	readyHost(t, shared, "pods-silent")()
	must(shared.WaitNode(soon(t), "pods-silent", "to be called unknown", func(n *corev1.Node) bool {
		return n != nil && nodeReady(n) == corev1.ConditionUnknown
	}))(t)
}

func TestPodAnnotations(t *testing.T) {
	readyHost(t, shared, "pods-notes")
	ctx := soon(t)
	if err := shared.CreateWorkload(ctx, Workload{
		Namespace: "pods-notes", Name: "web", Replicas: 1, NodeSelector: onNode("pods-notes"),
		PodAnnotations: map[string]string{ReadyAnnotation: "never", StopsAfterAnnotation: "1h"},
	}); err != nil {
		t.Fatal(err)
	}
	p := pods(t, "pods-notes", "to run", func(ps []*corev1.Pod) bool {
		return len(ps) == 1 && ps[0].Status.Phase == corev1.PodRunning
	})[0]
	if PodReady(p) {
		t.Error("the pod is ready, although it is never to be")
	}
	// It is deleted before another pod. When that one is gone, KWOK has processed both.
	other := workload(t, Workload{Namespace: "pods-notes-2", Name: "web", Replicas: 1, NodeSelector: onNode("pods-notes")})[0]
	for _, p := range []*corev1.Pod{p, other} {
		if err := shared.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods(t, "pods-notes-2", "to be replaced", func(ps []*corev1.Pod) bool { return len(ps) == 1 && ps[0].UID != other.UID })
	if _, err := shared.Client().CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the pod that takes an hour to stop: %v", err)
	}
	if err := shared.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, deleteNow); err != nil {
		t.Error(err)
	}
	_ = shared.Client().CoreV1().Namespaces().Delete(ctx, "pods-notes", metav1.DeleteOptions{})
}

func TestEvictionAgainstBudget(t *testing.T) {
	readyHost(t, shared, "pods-evict")
	evict := func(p *corev1.Pod) error {
		return shared.Client().CoreV1().Pods(p.Namespace).EvictV1(soon(t), &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
	}
	blocked := workload(t, Workload{
		Namespace: "evict-none", Name: "web", Replicas: 2, MaxUnavailable: budget(0), NodeSelector: onNode("pods-evict"),
	})
	err := evict(blocked[0])
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("evicting against a budget of none: %v, want 429 that names a budget", err)
	}

	free := workload(t, Workload{
		Namespace: "evict-one", Name: "web", Replicas: 2, MaxUnavailable: budget(1), NodeSelector: onNode("pods-evict"),
	})
	cordon := func(on bool) { // a cordoned node prevents the replacement of the first pod before the test tries the second
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
		if _, err := shared.Client().CoreV1().Nodes().Patch(soon(t), "pods-evict", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cordon(true)
	if err := evict(free[0]); err != nil {
		t.Errorf("evicting one of a budget of one: %v", err)
	}
	if err := evict(free[1]); !apierrors.IsTooManyRequests(err) {
		t.Errorf("evicting the second before the first is replaced: %v, want 429", err)
	}
	cordon(false)
	pods(t, "evict-one", "to be replaced", func(ps []*corev1.Pod) bool {
		return len(ps) == 2 && PodReady(ps[0]) && PodReady(ps[1]) && ps[0].UID != free[0].UID && ps[1].UID != free[0].UID
	})
}

func nodeReady(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}
