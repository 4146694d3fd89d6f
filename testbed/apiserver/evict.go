package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxDisrupted is the number of evicted pods in a budget's status above which it allows no more.
const maxDisrupted = 2000

// evict answers a POST of an eviction, as EvictionREST in Kubernetes' pkg/registry/core/pod/storage does: it takes a disruption from the pod's
// budget, adds a condition to the pod, and deletes it, in three writes.
func (s *Server) evict(q *request) (*answer, error) {
	e, err := q.eviction()
	if err != nil {
		return nil, err
	}
	o := &metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		o = e.DeleteOptions
	}
	q.dryRun = q.dryRun || len(o.DryRun) > 0
	it, err := s.find(q)
	if err != nil {
		return nil, err
	}
	pod := it.obj.(*corev1.Pod)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if !ended && pod.Status.Phase != corev1.PodPending && pod.DeletionTimestamp == nil {
		if err := s.takeDisruption(q, pod); err != nil {
			return nil, err
		}
	}
	if err := s.removeEvicted(q, it, o); err != nil {
		return nil, err
	}
	status := &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated}
	status.SetGroupVersionKind(statusKind)
	return &answer{code: http.StatusCreated, media: q.media, body: encodeObject(q.media, status)}, nil
}

// eviction reads the body of the request.
func (q *request) eviction() (*policyv1.Eviction, error) {
	u, err := decodeAny(q.contentType, q.body)
	e := &policyv1.Eviction{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u, e)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if e.Name != q.name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	return e, nil
}

// removeEvicted adds the condition of an eviction to the pod, and deletes it.
func (s *Server) removeEvicted(q *request, it *item, o *metav1.DeleteOptions) error {
	if p := o.Preconditions; p != nil && !q.dryRun {
		if err := q.precondition(it.obj.(metav1.Object), p); err != nil {
			return err
		}
	}
	if !q.dryRun {
		pod := it.obj.(*corev1.Pod).DeepCopy()
		want := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			Message: "Eviction API: evicting", LastTransitionTime: metav1.NewTime(s.now().UTC().Truncate(time.Second))}
		if !setCondition(&pod.Status, want) {
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			u["apiVersion"], u["kind"] = "v1", "Pod"
			internal := *q // the server's own write leaves managedFields alone
			if internal.applied = it.managed; it.managed == nil {
				internal.applied = []owner{}
			}
			if it, err = s.store(&internal, it, u); err != nil {
				return err
			}
			if p := o.Preconditions; p != nil && p.ResourceVersion != nil {
				o = o.DeepCopy()
				o.Preconditions.ResourceVersion = new(itoa(it.rev))
			}
		}
	}
	_, _, err := s.remove(q, it, o)
	return err
}

// setCondition sets a condition of a pod. It reports whether the pod had it already.
func setCondition(status *corev1.PodStatus, want corev1.PodCondition) (had bool) {
	for i, c := range status.Conditions {
		if c.Type != want.Type {
			continue
		}
		if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
		want.ObservedGeneration = c.ObservedGeneration
		status.Conditions[i] = want
		return c == want
	}
	status.Conditions = append(status.Conditions, want)
	return false
}

// budgetsOf returns the budgets that select the pod.
func (s *Server) budgetsOf(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	var all []*policyv1.PodDisruptionBudget
	t := s.tables["poddisruptionbudgets"]
	for _, name := range t.names {
		b := t.items[name].obj.(*policyv1.PodDisruptionBudget)
		if b.Namespace == pod.Namespace && selects(b, pod) {
			all = append(all, b)
		}
	}
	return all
}

// selects reports whether the budget's selector matches the pod.
func selects(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// takeDisruption takes a disruption from the pod's budget, or returns why it cannot be evicted.
func (s *Server) takeDisruption(q *request, pod *corev1.Pod) error {
	all := s.budgetsOf(pod)
	if len(all) == 0 {
		return nil
	}
	if len(all) > 1 {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	}
	b := all[0]
	if !ready(pod) {
		if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
			return nil
		}
		if b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
			return nil
		}
	}
	if err := allows(b); err != nil {
		return err
	}
	if q.dryRun {
		return nil
	}
	b = b.DeepCopy()
	if b.Status.DisruptionsAllowed--; b.Status.DisruptionsAllowed == 0 {
		setAllowed(b, s.now())
	}
	if b.Status.DisruptedPods == nil {
		b.Status.DisruptedPods = map[string]metav1.Time{}
	}
	b.Status.DisruptedPods[pod.Name] = metav1.NewTime(s.now().UTC().Truncate(time.Second))
	return s.writeBudget(b, q.user, "kube-apiserver")
}

// allows returns why a budget does not allow a disruption, nil if it does.
func allows(b *policyv1.PodDisruptionBudget) error {
	cause := func(err *apierrors.StatusError, format string, args ...any) error {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause,
			Message: "The disruption budget " + b.Name + " " + fmt.Sprintf(format, args...)})
		return err
	}
	const refused = "Cannot evict pod as it would violate the pod's disruption budget."
	forbidden := func(why string) *apierrors.StatusError {
		return apierrors.NewForbidden(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}, b.Name, errors.New(why))
	}
	switch status := &b.Status; {
	case status.ObservedGeneration < b.Generation:
		return cause(apierrors.NewTooManyRequests(refused, 10), "is still being processed by the server.")
	case status.DisruptionsAllowed < 0:
		const why = "pdb disruptions allowed is negative"
		return cause(forbidden(why), "does not allow evicting pods currently: %s", why)
	case len(status.DisruptedPods) > maxDisrupted:
		return cause(forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller"),
			"does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed > 0:
		return nil
	}
	err := apierrors.NewTooManyRequests(refused, 0)
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	explained := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case explained && c.Reason == policyv1.SyncFailedReason:
		return cause(err, "does not allow evicting pods currently because it failed sync: %s", c.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		return cause(err, "needs %d healthy pods and has %d currently", b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case explained:
		return cause(err, "does not allow evicting pods currently (%s): %s", c.Reason, c.Message)
	}
	return cause(err, "does not allow evicting pods currently")
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
