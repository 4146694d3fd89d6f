package controlplane

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// WaitNode waits until cond returns true for the Node. It calls cond with nil while the Node does not exist. If ctx ends, it returns an
// error that quotes what, which describes the condition. WaitNode evaluates cond whenever the Node changes, and continues while the API
// server is down.
func (cp *ControlPlane) WaitNode(ctx context.Context, name, what string, cond func(*corev1.Node) bool) (*corev1.Node, error) {
	lw := cache.NewFilteredListWatchFromClient(cp.admin.CoreV1().RESTClient(), "nodes", "", func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	})
	found, err := waitFor(ctx, lw, func(nodes []*corev1.Node) bool { return cond(first(nodes)) })
	if err != nil {
		return nil, fmt.Errorf("waiting for Node %s %s: %w; it is %s", name, what, err, describeNode(first(found)))
	}
	return first(found), nil
}

// WaitPods waits until cond returns true for the pods of a namespace with a label selector ("" for all), like [ControlPlane.WaitNode]. The
// pods are sorted by name.
func (cp *ControlPlane) WaitPods(ctx context.Context, namespace, selector, what string, cond func([]*corev1.Pod) bool) ([]*corev1.Pod, error) {
	lw := cache.NewFilteredListWatchFromClient(cp.admin.CoreV1().RESTClient(), "pods", namespace, func(o *metav1.ListOptions) {
		o.LabelSelector = selector
	})
	byName := func(pods []*corev1.Pod) []*corev1.Pod {
		slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		return pods
	}
	found, err := waitFor(ctx, lw, func(pods []*corev1.Pod) bool { return cond(byName(pods)) })
	if err != nil {
		return nil, fmt.Errorf("waiting for pods %q in %s %s: %w; they are: %s", selector, namespace, what, err, describePods(byName(found)))
	}
	return byName(found), nil
}

// WaitWorkload waits until all replicas of a Deployment are available and, if a PodDisruptionBudget with its name exists, that budget
// counts them all as healthy.
func (cp *ControlPlane) WaitWorkload(ctx context.Context, namespace, name string) error {
	deployment := cache.NewFilteredListWatchFromClient(cp.admin.AppsV1().RESTClient(), "deployments", namespace, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	})
	var want int32
	if _, err := waitFor(ctx, deployment, func(found []*appsv1.Deployment) bool {
		d := first(found)
		if d == nil || d.Status.ObservedGeneration != d.Generation {
			return false
		}
		want = *d.Spec.Replicas
		return d.Status.AvailableReplicas == want && d.Status.UpdatedReplicas == want && d.Status.Replicas == want
	}); err != nil {
		return fmt.Errorf("waiting for Deployment %s/%s to be available: %w; its pods: %s", namespace, name, err, cp.podsNow(namespace, "app="+name))
	}
	budget := cache.NewFilteredListWatchFromClient(cp.admin.PolicyV1().RESTClient(), "poddisruptionbudgets", namespace, func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	})
	if _, err := waitFor(ctx, budget, func(found []*policyv1.PodDisruptionBudget) bool {
		b := first(found)
		return b == nil || b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == want
	}); err != nil {
		return fmt.Errorf("waiting for PodDisruptionBudget %s/%s to count %d healthy pods: %w", namespace, name, want, err)
	}
	return nil
}

// WaitAllowed waits until the API server's authorizers allow the request, or refuse it if allowed is false. The authorizers watch roles and
// bindings, so they may refuse for a moment what was just granted, or allow what was just revoked.
func (cp *ControlPlane) WaitAllowed(ctx context.Context, asked authorizationv1.SubjectAccessReviewSpec, allowed bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := cp.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: asked}, metav1.CreateOptions{})
		if err == nil && r.Status.Allowed == allowed {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to be allowed %+v: %t: %w (last: %v)", asked.User, asked.ResourceAttributes, allowed, context.Cause(ctx), err)
		}
	}
}

// refusedWithin limits [ControlPlane.WaitRefused]. The API server reads admission policies once a second.
const refusedWithin = time.Minute

// WaitRefused repeats try until the API server refuses it with an error that contains message. An admission policy, a webhook or a
// definition takes effect some time after its own write was answered, and the refusal proves that it is in force. The message must be
// unique, because another policy may refuse the same write with its own message. try must have no effect, for instance as a dry run,
// because it may succeed. WaitRefused returns an error when ctx ends, or after a minute.
func (cp *ControlPlane) WaitRefused(ctx context.Context, message string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, refusedWithin)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("none")
	for tries := 1; ; tries++ {
		err := try(ctx)
		if err != nil && strings.Contains(err.Error(), message) {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for a request to be refused with %q: %w (the last of %d answers: %v)", message, context.Cause(ctx), tries, last)
		}
	}
}

// podsNow describes pods for an error message, when the caller's context has already ended.
func (cp *ControlPlane) podsNow(namespace, selector string) string {
	ctx, cancel := context.WithTimeout(cp.life, 2*time.Second)
	defer cancel()
	pods, err := cp.admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err.Error()
	}
	var all []*corev1.Pod
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	return describePods(all)
}

// waitFor follows a list of objects and returns the list as soon as cond returns true. When ctx ends it returns the last list and the
// cause.
func waitFor[T runtime.Object](ctx context.Context, lw *cache.ListWatch, cond func([]T) bool) ([]T, error) {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object)
	informer := cache.NewSharedIndexInformer(lw, example, 0, cache.Indexers{})
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke() },
		UpdateFunc: func(any, any) { poke() },
		DeleteFunc: func(any) { poke() },
	}); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(watching)
	}()
	defer func() { cancel(); <-done }()

	list := func() []T {
		var all []T
		for _, obj := range informer.GetStore().List() {
			all = append(all, obj.(T))
		}
		return all
	}
	if !cache.WaitForCacheSync(watching.Done(), informer.HasSynced) {
		return nil, context.Cause(ctx)
	}
	for {
		if all := list(); cond(all) {
			return all, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return list(), context.Cause(ctx)
		}
	}
}

func first[T any](list []*T) *T {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func describeNode(n *corev1.Node) string {
	if n == nil {
		return "absent"
	}
	ready := corev1.ConditionUnknown
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c.Status
		}
	}
	return fmt.Sprintf("ready=%s unschedulable=%t labels=%v annotations=%v", ready, n.Spec.Unschedulable, n.Labels, n.Annotations)
}

func describePods(pods []*corev1.Pod) string {
	const most = 20
	var b strings.Builder
	for i, p := range pods {
		if i == most {
			fmt.Fprintf(&b, "and %d more", len(pods)-most)
			break
		}
		fmt.Fprintf(&b, "%s on %q %s ready=%t deleted=%t; ", p.Name, p.Spec.NodeName, p.Status.Phase, PodReady(p), p.DeletionTimestamp != nil)
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}
