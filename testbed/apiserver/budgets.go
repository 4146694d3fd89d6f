package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// disruptedFor is how long a budget counts an evicted pod that was not deleted.
const disruptedFor = 2 * time.Minute

// RunBudgets computes the status of each PodDisruptionBudget until ctx ends, delay after each write, as Kubernetes' disruption controller does.
func (s *Server) RunBudgets(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-s.changes:
			timer.Reset(delay)
		case <-timer.C:
			timer.Reset(disruptedFor)
			s.UpdateBudgets()
		case <-ctx.Done():
			return
		}
	}
}

// UpdateBudgets computes the status of each PodDisruptionBudget once.
//
// A budget with maxUnavailable, or with a percentage, needs to know how many pods there should be. It takes that from the Deployment, ReplicaSet or
// StatefulSet that controls the pods, as far as the server has it. For pods with another controller, it is the number of pods that exist.
func (s *Server) UpdateBudgets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables["poddisruptionbudgets"]
	for _, name := range append([]string(nil), t.names...) {
		b := t.items[name].obj.(*policyv1.PodDisruptionBudget).DeepCopy()
		was := b.Status.DeepCopy()
		s.judge(b)
		if !equality.Semantic.DeepEqual(was, &b.Status) {
			// A write that an interceptor refuses is repeated after the next change.
			_ = s.writeBudget(b, "system:serviceaccount:kube-system:disruption-controller", "kube-controller-manager")
		}
	}
}

// judge computes the status of a budget.
func (s *Server) judge(b *policyv1.PodDisruptionBudget) {
	var pods []*corev1.Pod
	for _, it := range s.tables["pods"].items {
		if pod := it.obj.(*corev1.Pod); pod.Namespace == b.Namespace && selects(b, pod) {
			pods = append(pods, pod)
		}
	}
	expected := int32(len(pods))
	var desired int32
	if v := b.Spec.MaxUnavailable; v != nil {
		expected = s.expected(pods)
		desired = max(0, expected-scaled(v, expected))
	} else if v := b.Spec.MinAvailable; v != nil {
		if v.Type == intstr.String {
			expected = s.expected(pods)
		}
		desired = scaled(v, expected)
	}
	now := s.now()
	disrupted := map[string]metav1.Time{}
	var healthy int32
	for _, pod := range pods {
		at, evicted := b.Status.DisruptedPods[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil:
		case evicted && !at.Add(disruptedFor).Before(now):
			disrupted[pod.Name] = at
		case ready(pod):
			healthy++
		}
	}
	b.Status.DisruptedPods = disrupted
	if len(disrupted) == 0 {
		b.Status.DisruptedPods = nil
	}
	b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.ExpectedPods = healthy, desired, expected
	b.Status.ObservedGeneration = b.Generation
	if b.Status.DisruptionsAllowed = max(0, healthy-desired); expected <= 0 {
		b.Status.DisruptionsAllowed = 0
	}
	setAllowed(b, now)
}

// scaled returns the number that a budget's field means.
func scaled(v *intstr.IntOrString, of int32) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(of), true)
	if err != nil {
		return of // an invalid budget allows nothing
	}
	return int32(n)
}

// setAllowed sets the condition of a budget that says whether it allows a disruption.
func setAllowed(b *policyv1.PodDisruptionBudget, now time.Time) {
	c := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.SufficientPodsReason, Status: metav1.ConditionTrue,
		ObservedGeneration: b.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now.UTC().Truncate(time.Second))}
	if b.Status.DisruptionsAllowed <= 0 {
		c.Reason, c.Status = policyv1.InsufficientPodsReason, metav1.ConditionFalse
	}
	meta.SetStatusCondition(&b.Status.Conditions, c)
}

// expected returns how many pods the controllers of the pods want.
func (s *Server) expected(pods []*corev1.Pod) int32 {
	var all int32
	counted := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOf(pod)
		if ref == nil {
			continue
		}
		uid, replicas, found := s.scale(pod.Namespace, ref)
		if !found {
			all++
		} else if !counted[uid] {
			counted[uid] = true
			all += replicas
		}
	}
	return all
}

// scale returns the number of pods that a controller wants, and the UID of the controller that decides it.
func (s *Server) scale(namespace string, ref *metav1.OwnerReference) (uid types.UID, replicas int32, found bool) {
	resource := map[string]string{"ReplicaSet": "replicasets", "StatefulSet": "statefulsets", "Deployment": "deployments"}[ref.Kind]
	if resource == "" {
		return "", 0, false
	}
	it := s.tables[resource].items[key(namespace, ref.Name)]
	if it == nil || it.obj.(metav1.Object).GetUID() != ref.UID {
		return "", 0, false
	}
	if owner := metav1.GetControllerOf(it.obj.(metav1.Object)); owner != nil {
		if uid, replicas, found := s.scale(namespace, owner); found {
			return uid, replicas, true
		}
	}
	n, ok := at(it.u, "spec", "replicas").(int64)
	if !ok {
		n = 1
	}
	return ref.UID, int32(n), true
}

// writeBudget stores the status of a budget.
func (s *Server) writeBudget(b *policyv1.PodDisruptionBudget, user, manager string) error {
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	u["apiVersion"], u["kind"] = policyv1.SchemeGroupVersion.String(), "PodDisruptionBudget"
	q := &request{k: kindOf("poddisruptionbudgets"), namespace: b.Namespace, name: b.Name, sub: "status", user: user, manager: manager}
	old, err := s.find(q)
	if err == nil {
		_, err = s.replace(q, old, u)
	}
	return err
}
