package client

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// pod returns the metadata and the spec of a group's pods.
func (f *fleet) pod(g *group) corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"group": g.name},
			Annotations: map[string]string{controlplane.StopsAfterAnnotation: "1h"}, // see endPod
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(g.grace), PriorityClassName: g.priority,
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
		},
	}
	if g.mark != "" {
		t.Labels["mark"] = g.mark
	}
	if g.emptyDir {
		t.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	switch g.obstacle {
	case finalizer:
		t.Finalizers = []string{"example.com/held"}
	case notReady:
		t.Annotations[controlplane.ReadyAnnotation] = "never"
	}
	return t
}

// create creates what the group is made of.
func (f *fleet) create(g *group) error {
	ctx, apps := f.ctx, f.w.admin.AppsV1()
	t, name := f.pod(g), metav1.ObjectMeta{Name: g.name}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"group": g.name}}
	var err error
	switch g.kind {
	case replica:
		_, err = apps.ReplicaSets(f.w.space).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: name, Spec: appsv1.ReplicaSetSpec{
			Replicas: &g.replicas, Selector: selector, Template: t}}, metav1.CreateOptions{})
	case member:
		_, err = apps.StatefulSets(f.w.space).Create(ctx, &appsv1.StatefulSet{ObjectMeta: name, Spec: appsv1.StatefulSetSpec{
			Replicas: &g.replicas, Selector: selector, Template: t, PodManagementPolicy: appsv1.ParallelPodManagement}}, metav1.CreateOptions{})
	case daemon:
		t.Spec.NodeSelector = map[string]string{corev1.LabelHostname: f.w.node}
		_, err = apps.DaemonSets(f.w.space).Create(ctx, &appsv1.DaemonSet{ObjectMeta: name, Spec: appsv1.DaemonSetSpec{
			Selector: selector, Template: t}}, metav1.CreateOptions{})
	case mirror:
		f.w.mirrorPod(g.name)
	default:
		p := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
		p.Name, p.Spec.NodeName = g.name, f.w.node
		_, err = f.w.admin.CoreV1().Pods(f.w.space).Create(ctx, p, metav1.CreateOptions{})
	}
	if err != nil || g.budget.text == "" {
		return err
	}
	return f.createBudget(g, g.name)
}

func (f *fleet) createBudget(g *group, name string) error {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": g.name}}}}
	field, value, _ := strings.Cut(g.budget.text, " ")
	n := intstr.Parse(value)
	if field == "minAvailable" {
		b.Spec.MinAvailable = &n
	} else {
		b.Spec.MaxUnavailable = &n
	}
	_, err := f.w.admin.PolicyV1().PodDisruptionBudgets(f.w.space).Create(f.ctx, b, metav1.CreateOptions{})
	return err
}

// ready waits until the group's pods are what the plan says, and its budget has counted them.
func (f *fleet) ready(g *group) {
	f.w.until("the pods of "+g.name+" to run", func() bool {
		runs, ready := f.judge.running(g)
		return runs == g.replicas && (ready == runs || g.obstacle == notReady)
	})
	pods := f.w.admin.CoreV1().Pods(f.w.space)
	if g.kind == finished {
		if _, err := pods.Patch(f.ctx, g.name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status"); err != nil {
			f.t.Fatal(err)
		}
	}
	if g.obstacle == twoBudgets {
		if err := f.createBudget(g, g.name+"-too"); err != nil {
			f.t.Fatal(err)
		}
	}
	if g.budget.text == "" {
		return
	}
	healthy := g.replicas
	if g.obstacle == notReady {
		healthy = 0
	}
	f.w.until("the budget of "+g.name+" to count its pods", func() bool {
		b, err := f.w.admin.PolicyV1().PodDisruptionBudgets(f.w.space).Get(f.ctx, g.name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == healthy && b.Status.ExpectedPods == g.replicas
	})
	if g.obstacle != notReady {
		f.judge.keep(g, g.budget.keeps)
	}
}

// lift removes a group's obstacle, as a user does.
func (f *fleet) lift(ctx context.Context, g *group) {
	f.hold(g, false)
	var err error
	budgets := f.w.admin.PolicyV1().PodDisruptionBudgets(f.w.space)
	pods := f.w.admin.CoreV1().Pods(f.w.space)
	patch := func(text string) {
		_, err = budgets.Patch(ctx, g.name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
	}
	if g.obstacle.overruled && f.plan.onTimeout == "Force" {
		return // the drain goes over it
	}
	switch g.obstacle {
	case tightBudget:
		f.judge.keep(g, -1)
		patch(`{"spec":{"minAvailable":null,"maxUnavailable":"100%"}}`)
	case twoBudgets:
		f.judge.keep(g, -1)
		if err = budgets.Delete(ctx, g.name+"-too", metav1.DeleteOptions{}); err == nil {
			patch(`{"spec":{"minAvailable":null,"maxUnavailable":"100%"}}`)
		}
	case notReady:
		patch(`{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
	case finalizer:
		for _, s := range f.judge.on(g) {
			if _, err = pods.Patch(ctx, s.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); apierrors.IsNotFound(err) {
				err = nil
			}
		}
	case deadKubelet, byPolicy, byUnmanaged, byEmptyDir:
		f.userDeletes(g)
	}
	if err != nil && ctx.Err() == nil {
		f.judge.breaks("removing %s: %v", g.obstacle.name, err)
	}
}

// userDeletes deletes the group's pods that are on drained nodes: at once, unless the drain is to see them terminate.
func (f *fleet) userDeletes(g *group) {
	for _, s := range f.judge.on(g) {
		f.judge.act(s.uid)
		o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.uid)), GracePeriodSeconds: new(int64)}
		if g.kind == leaving && s.deleting.IsZero() {
			o.GracePeriodSeconds = new(max(g.grace, 1))
		}
		if err := f.w.admin.CoreV1().Pods(f.w.space).Delete(f.ctx, s.name, o); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && f.ctx.Err() == nil {
			f.judge.breaks("deleting %s: %v", s.name, err)
		}
	}
}

// late creates a pod that names a drained node, unless its drain is over.
func (f *fleet) late(ctx context.Context) {
	pauseFor(ctx, time.Duration(300+f.random(4000))*time.Millisecond)
	h := f.hosts[f.random(len(f.hosts))]
	f.binding.Lock()
	defer f.binding.Unlock()
	if h.isDone() || ctx.Err() != nil {
		return
	}
	t := f.pod(f.lateG)
	p := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	p.GenerateName, p.Spec.NodeName = "late-", h.node
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Job", Name: "j", UID: "j", Controller: new(true)}}
	if _, err := f.w.admin.CoreV1().Pods(f.w.space).Create(ctx, p, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
		f.judge.breaks("creating a late pod: %v", err)
	}
}

// move deletes a pod of each StatefulSet that nothing protects, at any time. The pod comes back under its name, on another node.
func (f *fleet) move(ctx context.Context) {
	for _, g := range f.plan.groups {
		if g.kind != member || g.fate != goes || g.obstacle != nil || g.budget.text != "" {
			continue
		}
		pauseFor(ctx, time.Duration(f.random(1000))*time.Millisecond)
		for _, s := range f.judge.on(g)[:min(1, len(f.judge.on(g)))] {
			f.judge.act(s.uid)
			o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.uid)), GracePeriodSeconds: new(int64)}
			if err := f.w.admin.CoreV1().Pods(f.w.space).Delete(ctx, s.name, o); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				f.judge.breaks("moving %s: %v", s.name, err)
			}
		}
	}
}

// fleetGuard is a webhook that refuses evictions, of the groups that have it as their obstacle.
type fleetGuard struct {
	fleets sync.Map // *fleet by namespace
	server *httptest.Server
}

const (
	guardLabel = "testbed.lockkeeper.dev/guarded"
	guardProbe = "probe"
)

func newFleetGuard(t *testing.T) *fleetGuard {
	t.Helper()
	g := &fleetGuard{}
	g.server = httptest.NewTLSServer(g)
	t.Cleanup(g.server.Close)
	fail, none, seconds, url := admissionv1.Fail, admissionv1.SideEffectClassNone, int32(20), g.server.URL
	rule := func(op admissionv1.OperationType, resource string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{op},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}}}
	}
	hooks := drainPlane().Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet-guard"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "guard.example.com",
			ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{
				Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw})},
			Rules:             []admissionv1.RuleWithOperations{rule(admissionv1.Create, "pods/eviction"), rule(admissionv1.Delete, "pods")},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{guardLabel: "true"}},
			FailurePolicy:     &fail, SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		if err := hooks.Delete(context.Background(), "fleet-guard", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return g
}

// ServeHTTP answers the API server.
func (g *fleetGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionreview.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q := review.Request
	review.Response = &admissionreview.AdmissionResponse{UID: q.UID, Allowed: true}
	if code := g.refuses(q); code != 0 {
		review.Response.Allowed, review.Response.Result = false, &metav1.Status{Code: code, Message: guardText}
	}
	_ = json.NewEncoder(w).Encode(review)
}

// refuses returns the status with which the webhook refuses a request; 0: it does not.
func (g *fleetGuard) refuses(q *admissionreview.AdmissionRequest) int32 {
	if q.Name == guardProbe {
		return http.StatusForbidden
	}
	v, ok := g.fleets.Load(q.Namespace)
	if !ok {
		return 0
	}
	f := v.(*fleet)
	group := f.judge.groupNamed(q.Name)
	if group == nil || !f.holds(group) || f.ended.Load() {
		return 0
	}
	evicts := q.Operation == admissionreview.Create
	switch group.obstacle {
	case guardAll:
		if evicts || strings.HasPrefix(q.UserInfo.Username, "system:node:") {
			return http.StatusForbidden
		}
	case guard403:
		if evicts {
			return http.StatusForbidden
		}
	case guard429:
		if evicts {
			return http.StatusTooManyRequests
		}
	case guard500:
		if evicts {
			return http.StatusInternalServerError
		}
	}
	return 0
}

// protect returns when the API server asks the webhook about the fleet's pods.
func (g *fleetGuard) protect(f *fleet) error {
	g.fleets.Store(f.w.space, f)
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, guardLabel)
	if _, err := f.w.admin.CoreV1().Namespaces().Patch(f.ctx, f.w.space, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	probe := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: guardProbe, Namespace: f.w.space}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	return drainPlane().WaitRefused(f.ctx, guardText, func(ctx context.Context) error {
		return f.w.admin.CoreV1().Pods(f.w.space).EvictV1(ctx, probe)
	})
}

// fleetPriorities creates the priority classes of the groups.
func fleetPriorities(t *testing.T) {
	t.Helper()
	for name, value := range map[string]int32{"fleet-low": -10, "fleet-high": 1000} {
		_, err := drainPlane().Client().SchedulingV1().PriorityClasses().Create(t.Context(),
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{})
		must(t, err)
	}
}
