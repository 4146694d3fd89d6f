package client

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// drainPatience bounds the wait for each expected condition.
const drainPatience = 90 * time.Second

// world contains what one test uses alone: a node, its pods in a namespace, and the administrator's client.
type world struct {
	t     *testing.T
	node  string
	space string
	admin kubernetes.Interface
}

func newWorld(t *testing.T, name string) *world {
	w := &world{t: t, node: "host-" + name, space: name, admin: drainPlane().Client()}
	w.addNode(w.node)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.space}}
	if _, err := w.admin.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the namespace's service account", func() bool {
		_, err := w.admin.CoreV1().ServiceAccounts(w.space).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return w
}

func (w *world) addNode(name string) {
	w.t.Helper()
	if _, err := drainPlane().CreateNode(w.t.Context(), controlplane.NodeSpec{Name: name, Ballast: true}); err != nil {
		w.t.Fatal(err)
	}
}

// until polls until the condition holds. Use it for conditions that no watch reports.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.After(drainPatience)
	for !cond() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// pod returns a pod that is bound to the world's node.
func (w *world) pod(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.space, Name: name, Labels: map[string]string{"app": w.space}},
		Spec: corev1.PodSpec{
			NodeName:   w.node,
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
		},
	}
	for _, m := range mods {
		m(p)
	}
	return p
}

// app sets the pod's label "app".
func app(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels["app"] = value }
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

// create creates pods as the administrator and waits until they run.
func (w *world) create(pods ...*corev1.Pod) []*corev1.Pod {
	w.t.Helper()
	made := make([]*corev1.Pod, 0, len(pods))
	for _, p := range pods {
		made = append(made, w.post(p))
	}
	w.pods("running", func(now []*corev1.Pod) bool {
		for _, p := range made {
			if !slices.ContainsFunc(now, func(q *corev1.Pod) bool { return q.UID == p.UID && controlplane.PodReady(q) }) {
				return false
			}
		}
		return true
	})
	return made
}

// post creates a pod as the administrator.
func (w *world) post(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	p, err := w.admin.CoreV1().Pods(w.space).Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// pods waits until cond accepts the pods of the namespace.
func (w *world) pods(what string, cond func([]*corev1.Pod) bool) []*corev1.Pod {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), drainPatience)
	defer cancel()
	found, err := drainPlane().WaitPods(ctx, w.space, "", what, cond)
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// names returns the names of the pods that do not terminate.
func (w *world) names() []string {
	w.t.Helper()
	list, err := w.admin.CoreV1().Pods(w.space).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	names := []string{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

// budget creates a budget for the pods of an app and waits until its status counts the healthy pods.
func (w *world) budget(name, app string, minAvailable, healthy int32) {
	w.t.Helper()
	w.budgetUnseen(name, app, minAvailable)
	w.until("the budget to count its pods", func() bool {
		b, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Get(w.t.Context(), name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == healthy
	})
}

// budgetUnseen creates a budget without waiting for the disruption controller.
func (w *world) budgetUnseen(name, app string, minAvailable int32) {
	w.t.Helper()
	least := intstr.FromInt32(minAvailable)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least,
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
	if _, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Create(w.t.Context(), b, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// release makes the budget allow every eviction.
func (w *world) release(name string) {
	w.t.Helper()
	patch := []byte(`{"spec":{"minAvailable":0}}`)
	_, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).Patch(w.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// host returns a client with the credential of the world's node. Its requests pass through the wire.
func (w *world) host(wire *drainWire) kubernetes.Interface {
	w.t.Helper()
	config, err := drainPlane().NodeConfig(w.node)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.client(config, wire)
}

func (w *world) client(config *rest.Config, wire *drainWire) kubernetes.Interface {
	w.t.Helper()
	config.Wrap(wire.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return client
}

// running is a drain that runs concurrently with the test.
type running struct {
	w      *world
	cancel context.CancelFunc
	done   chan error

	mu   sync.Mutex
	said []drain.Progress
}

func (w *world) drain(client kubernetes.Interface, opts ...func(*drain.Drainer)) *running {
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{w: w, cancel: cancel, done: make(chan error, 1)}
	d := &drain.Drainer{Client: client, Node: w.node, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)), ProgressInterval: 10 * time.Millisecond}
	for _, set := range opts {
		set(d)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		r.done <- d.Run(ctx, func(p drain.Progress) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.said = append(r.said, p)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-finished })
	return r
}

// first waits for the first report and returns it.
func (r *running) first() drain.Progress {
	r.w.t.Helper()
	r.w.until("the first report", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.said) > 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said[0]
}

// reasons returns the different reasons why the pod was reported as a blocker, in the order of the reports.
func (r *running) reasons(pod string) []drain.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []drain.Reason
	for _, p := range r.said {
		for _, b := range p.Blockers {
			if b.Name == pod && !slices.Contains(all, b.Reason) {
				all = append(all, b.Reason)
			}
		}
	}
	return all
}

func (r *running) last() drain.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.said) == 0 {
		return drain.Progress{}
	}
	return r.said[len(r.said)-1]
}

// ends waits for Run and returns its error.
func (r *running) ends() error {
	r.w.t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(drainPatience):
		r.w.t.Fatalf("the drain does not end; last progress %+v", r.last())
		return nil
	}
}

// drained waits until Run reports that no pod is left.
func (r *running) drained() {
	r.w.t.Helper()
	if err := r.ends(); err != nil {
		r.w.t.Fatal(err)
	}
}

// blocked waits until the drain reports the pod as a blocker with this reason and message. The server may give other
// reasons before.
func (r *running) blocked(pod string, why drain.Reason, words string) {
	r.w.t.Helper()
	r.w.until(fmt.Sprintf("%s to be a blocker: %s, %q", pod, why, words), func() bool {
		return slices.ContainsFunc(r.last().Blockers, func(b drain.Blocker) bool {
			return b.Name == pod && b.Reason == why && strings.Contains(b.Message, words)
		})
	})
}
