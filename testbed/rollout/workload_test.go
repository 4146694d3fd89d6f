package rollout

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

var workloads atomic.Int64

// blockade is a workload with one pod that can run on only one node, and with a PodDisruptionBudget that allows no
// eviction.
type blockade struct {
	s               *scene
	node, namespace string
}

// block puts a blockade on a node and waits until its pod runs.
func (s *scene) block(node string) *blockade {
	s.T.Helper()
	b := &blockade{s: s, node: node, namespace: fmt.Sprintf("rollout-%d", workloads.Add(1))}
	none := intstr.FromInt32(0)
	s.Must(s.ControlPlane.CreateWorkload(s.Within(rig.Soon), controlplane.Workload{
		Namespace: b.namespace, Name: "db", Replicas: 1, MaxUnavailable: &none,
		NodeSelector: map[string]string{corev1.LabelHostname: node},
	}))
	s.T.Cleanup(b.remove)
	s.Must(s.ControlPlane.WaitWorkload(s.Within(rig.Soon), b.namespace, "db"))
	return b
}

// lift allows the eviction of the pod, and returns when the disruption controller has processed the change. It does not
// check the counts of the budget, because a drain may already have evicted the pod.
func (b *blockade) lift() {
	b.s.T.Helper()
	budgets := b.s.ControlPlane.Client().PolicyV1().PodDisruptionBudgets(b.namespace)
	_, err := budgets.Patch(b.s.Within(rig.Soon), "db", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{})
	b.s.Must(err)
	b.s.Eventually("the disruption controller to see the new budget", func(ctx context.Context) (bool, error) {
		p, err := budgets.Get(ctx, "db", metav1.GetOptions{})
		return err == nil && p.Status.ObservedGeneration == p.Generation, err
	})
}

// bait puts an unprotected pod on the node. An eviction that continues takes this pod at once, while the retries for
// the blocked pod become less and less frequent.
func (b *blockade) bait() {
	b.s.T.Helper()
	_, err := b.s.ControlPlane.Client().CoreV1().Pods(b.namespace).Create(b.s.Within(rig.Soon), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bait"},
		Spec:       corev1.PodSpec{NodeName: b.node, Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}}},
	}, metav1.CreateOptions{})
	b.s.Must(err)
	_, err = b.s.ControlPlane.WaitPods(b.s.Within(rig.Soon), b.namespace, "", "to have the bait run", func(pods []*corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == "bait" && controlplane.PodReady(p) })
	})
	b.s.Must(err)
}

// remove deletes the workload before the nodes of the next test exist, which have the same names.
func (b *blockade) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), rig.Soon)
	defer cancel()
	client, now := b.s.ControlPlane.Client(), int64(0)
	_, err := client.AppsV1().Deployments(b.namespace).Patch(ctx, "db", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
	if err == nil {
		_, err = b.s.ControlPlane.WaitPods(ctx, b.namespace, "", "to be gone", func(pods []*corev1.Pod) bool {
			for _, p := range pods {
				// No kubelet removes the pods of a node that is down.
				_ = client.CoreV1().Pods(b.namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			}
			return len(pods) == 0
		})
	}
	if err == nil {
		err = client.CoreV1().Namespaces().Delete(ctx, b.namespace, metav1.DeleteOptions{})
	}
	if err != nil {
		b.s.T.Errorf("removing the workload %s: %v", b.namespace, err)
	}
}
