package virtual

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	namespace = "default"
	replicas  = 2
	podGrace  = int64(30)
	// daemons is the number of a DaemonSet's pods on each Node. They are the first page of each list of its pods.
	daemons = 2
)

// runControllers plays what makes a cluster of the API server and kubelets: deployments, the scheduler, the containers of
// all kubelets that run, and the node controller.
func (f *Fleet) runControllers() {
	for i := range f.opts.Workloads {
		f.must(f.createBudget(workload(i)))
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-tick.C:
			f.judgeWaiting()
		case <-f.kick:
			if pause(f.ctx, 100*time.Millisecond) != nil {
				return
			}
		}
		f.controlNodes()
		f.controlPods()
	}
}

func workload(i int) string { return fmt.Sprintf("w%d", i+1) }

func (f *Fleet) createBudget(name string) error {
	one := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
	}}
	b.Name, b.Namespace = name, namespace
	_, err := f.Admin.PolicyV1().PodDisruptionBudgets(namespace).Create(f.ctx, b, metav1.CreateOptions{})
	return err
}

// running reports whether the host of a Node is up.
func (f *Fleet) running(node string) bool {
	m := f.machine(node)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// controlNodes marks the Nodes of hosts that have been down for a while.
func (f *Fleet) controlNodes() {
	for _, obj := range f.Server.List("nodes") {
		n := obj.(*corev1.Node)
		limit := silentAfter
		if f.running(n.Name) { // its kubelet may be cut off
			limit += kubeletStatus
		}
		if ready(n) != corev1.ConditionTrue || time.Since(heartbeat(n)) < limit {
			continue
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{condition(n, corev1.ConditionUnknown)}}})
		f.must(err)
		_, err = f.Admin.CoreV1().Nodes().Patch(f.ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		f.mustOr(err, func(err error) bool { return apierrors.IsNotFound(err) || tooLarge(err) })
	}
}

// tooLarge reports whether the store refuses the object for its size. A host that lies can make its Node that large: then the node controller
// cannot mark the Node either, and tries again.
func tooLarge(err error) bool { return strings.Contains(err.Error(), "request is too large") }

func ready(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func heartbeat(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

// controlPods creates the pods that are missing, on Nodes that accept them, and runs and stops the containers of those
// whose host is up.
func (f *Fleet) controlPods() {
	have := map[string]int{}
	load := map[string]int{}
	for _, obj := range f.Server.List("pods") {
		p := obj.(*corev1.Pod)
		load[p.Spec.NodeName]++
		up := f.running(p.Spec.NodeName)
		switch {
		case p.DeletionTimestamp == nil:
			have[p.Labels["app"]]++
			if up && p.Status.Phase != corev1.PodRunning {
				f.runPod(p)
			}
		case up && time.Since(p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds)*time.Second)) >= podStops:
			f.mustOr(f.Admin.CoreV1().Pods(p.Namespace).Delete(f.ctx, p.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.UID},
			}), gone)
		case f.Node(p.Spec.NodeName) == nil: // the pod garbage collector
			f.mustOr(f.Admin.CoreV1().Pods(p.Namespace).Delete(f.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}), gone)
		}
	}
	f.createDaemons()
	for i := range f.opts.Workloads {
		for n := have[workload(i)]; n < replicas; n++ {
			node := f.schedule(load)
			if node == "" {
				break
			}
			load[node]++
			f.createPod(workload(i), node)
		}
	}
}

func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// schedule returns the Node with the fewest pods that accepts one, or "".
func (f *Fleet) schedule(load map[string]int) (best string) {
	var names []string
	for _, obj := range f.Server.List("nodes") {
		n := obj.(*corev1.Node)
		if !n.Spec.Unschedulable && ready(n) == corev1.ConditionTrue && n.DeletionTimestamp == nil && f.running(n.Name) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.MinFunc(names, func(a, b string) int {
		if d := load[a] - load[b]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
}

func (f *Fleet) createPod(app, node string) {
	f.mu.Lock()
	f.pods++
	n := f.pods
	f.mu.Unlock()
	_, err := f.Admin.CoreV1().Pods(namespace).Create(f.ctx, newPod(app, fmt.Sprintf("%s-%d", app, n), node, "ReplicaSet"), metav1.CreateOptions{})
	f.must(err)
}

// createDaemons creates the pods of a DaemonSet that are missing.
func (f *Fleet) createDaemons() {
	for _, m := range f.hosts {
		for i := range daemons {
			name := fmt.Sprintf("%s-%s-%d", daemonSet, m.name, i)
			if f.Node(m.name) != nil && f.Server.Get("pods", namespace, name) == nil {
				_, err := f.Admin.CoreV1().Pods(namespace).Create(f.ctx, newPod(daemonSet, name, m.name, "DaemonSet"), metav1.CreateOptions{})
				f.must(err)
			}
		}
	}
}

// daemonSet comes before [workload] by name.
const daemonSet = "agent"

func newPod(app, name, node, controller string) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		NodeName: node, TerminationGracePeriodSeconds: new(podGrace), Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}},
	}}
	p.Name, p.Namespace, p.Labels = name, namespace, map[string]string{"app": app}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: controller, Name: app, UID: types.UID(app), Controller: new(true)}}
	return p
}

func (f *Fleet) runPod(p *corev1.Pod) {
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	_, err := f.Admin.CoreV1().Pods(p.Namespace).UpdateStatus(f.ctx, p, metav1.UpdateOptions{})
	f.mustOr(err, gone)
}
