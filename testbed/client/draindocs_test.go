package client

import (
	"net/http"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// These tests have what Kubernetes' documentation says about drains and evictions; docs/drain.md has the whole list.

// TestEvictionIsGraceful checks that a pod is evicted although no controller creates it again and it has an emptyDir
// volume, that it keeps its own grace period, and that it shows that it was evicted.
func TestEvictionIsGraceful(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "graceful")
	const grace = int64(600)
	pod := w.create(w.pod("cache", annotation(controlplane.StopsAfterAnnotation, "1h"), func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(grace)
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}))[0]
	var wire drainWire
	r := w.drain(w.host(&wire))
	now := w.pods("terminating", func(now []*corev1.Pod) bool { return len(now) == 1 && now[0].DeletionTimestamp != nil })[0]
	if got := *now.DeletionGracePeriodSeconds; got != grace {
		t.Errorf("the grace period is %d s, expected the pod's own, %d s", got, grace)
	}
	if !slices.ContainsFunc(now.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "EvictionByEvictionAPI"
	}) {
		t.Errorf("conditions %+v, expected DisruptionTarget", now.Status.Conditions)
	}
	w.end("cache")
	r.drained()
	wire.acceptedOnce(t, pod)
}

// TestUnhealthyPods checks pods that are not ready. A budget lets them go if it says AlwaysAllow, or if enough other pods
// are healthy; otherwise such a pod blocks the drain.
func TestUnhealthyPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unhealthy")
	w.addNode(w.node + "-other")
	sick := annotation(controlplane.ReadyAnnotation, "never")
	w.post(w.pod("allowed", app("allowed"), sick))
	w.post(w.pod("spare", app("spared"), sick))
	w.post(w.pod("needed", app("needed"), sick))
	w.create(w.pod("well", app("spared"), func(p *corev1.Pod) { p.Spec.NodeName += "-other" }))
	w.pods("running", func(now []*corev1.Pod) bool {
		return !slices.ContainsFunc(now, func(p *corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	})
	always := func(budget string) {
		t.Helper()
		patch := []byte(`{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
		if _, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Patch(t.Context(), budget, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.budget("allows", "allowed", 1, 0)
	w.budget("spares", "spared", 1, 1)
	w.budget("needs", "needed", 1, 0)
	always("allows")
	var wire drainWire
	r := w.drain(w.host(&wire))
	r.blocked("needed", drain.PodDisruptionBudget, "needs 1 healthy pods and has 0 currently")
	w.until("the other unhealthy pods to be gone", func() bool { return slices.Equal(w.names(), []string{"needed", "well"}) })
	always("needs")
	r.drained()
	if left := w.names(); !slices.Equal(left, []string{"well"}) {
		t.Errorf("left: %v", left)
	}
}

// TestTwoDrainsShareABudget drains two nodes at once that have a pod each of the same budget. The second pod leaves only
// when the first one has a replacement.
func TestTwoDrainsShareABudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "shared")
	too := *w
	too.node += "-too"
	w.addNode(too.node)
	w.addNode(w.node + "-new")
	w.create(w.pod("db-0"), too.pod("db-1"))
	w.budget("keep-one", w.space, 1, 2)
	var wires [2]drainWire
	drains := []*running{w.drain(w.host(&wires[0])), too.drain(too.host(&wires[1]))}
	refused := func(i int) bool { return slices.Contains(wires[i].answers(), http.StatusTooManyRequests) }
	w.until("one pod to be gone and the other to be refused", func() bool { return len(w.names()) == 1 && (refused(0) || refused(1)) })
	first := -1
	w.until("a drain to report its eviction", func() bool {
		first = slices.IndexFunc(drains, func(r *running) bool { return r.last().Evicted == 1 })
		return first >= 0
	})
	drains[first].drained()
	second := drains[1-first]
	second.blocked([]string{"db-0", "db-1"}[1-first], drain.PodDisruptionBudget, "keep-one needs 1 healthy pods and has 1 currently")
	w.create(w.pod("db-2", func(p *corev1.Pod) { p.Spec.NodeName += "-new" }))
	second.drained()
	if left := w.names(); !slices.Equal(left, []string{"db-2"}) {
		t.Errorf("left: %v", left)
	}
}

// TestNamespaceThatTerminates checks a pod whose namespace is being deleted. The API server refuses evictions in it, and
// the drain waits until the namespace's controller has deleted the pod.
func TestNamespaceThatTerminates(t *testing.T) {
	w := newWorld(t, "terminating")
	w.create(w.pod("a"))
	signalManager(t, syscall.SIGSTOP)
	defer signalManager(t, syscall.SIGCONT)
	if err := w.admin.CoreV1().Namespaces().Delete(t.Context(), w.space, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the API server to refuse new objects in the namespace", func() bool {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}
		_, err := w.admin.CoreV1().ConfigMaps(w.space).Create(t.Context(), probe, metav1.CreateOptions{})
		return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	})
	var wire drainWire
	r := w.drain(w.host(&wire))
	r.blocked("a", drain.Refused, "being terminated")
	signalManager(t, syscall.SIGCONT)
	r.drained()
	if answers := wire.answers(); slices.Contains(answers, http.StatusCreated) {
		t.Errorf("answers %v; expected the namespace's controller to delete the pod", answers)
	}
}
