package client

import (
	"bytes"
	"io"
	"net/http"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// daemonPod creates a DaemonSet for the node and binds the pod that the controller creates, in place of the scheduler.
func (w *world) daemonPod(name string) *corev1.Pod {
	w.t.Helper()
	labels := map[string]string{"daemon": name}
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelHostname: w.node},
					Containers:   []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
				},
			},
		},
	}
	if _, err := w.admin.AppsV1().DaemonSets(w.space).Create(w.t.Context(), ds, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	isDaemon := func(p *corev1.Pod) bool { return p.Labels["daemon"] == name }
	pods := w.pods("with the pod of the DaemonSet", func(now []*corev1.Pod) bool { return slices.ContainsFunc(now, isDaemon) })
	p := pods[slices.IndexFunc(pods, isDaemon)]
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: w.node}}
	if err := w.admin.CoreV1().Pods(w.space).Bind(w.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// mirrorPod creates a mirror pod as its kubelet does: with the node's identity, and owned by the Node.
func (w *world) mirrorPod(name string) {
	w.t.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.t.Context(), w.node, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	yes, no := true, false
	p := w.pod(name, annotation(corev1.MirrorPodAnnotationKey, "0123abcd"), func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes,
		}}
		p.Spec.AutomountServiceAccountToken = &no
	})
	// NodeRestriction reads the owner from its own cache.
	host := w.host(&drainWire{})
	w.until("the mirror pod to be admitted", func() bool {
		_, err := host.CoreV1().Pods(w.space).Create(w.t.Context(), p, metav1.CreateOptions{})
		return err == nil
	})
}

// end deletes a terminating pod at once.
func (w *world) end(name string) {
	w.t.Helper()
	now := int64(0)
	if err := w.admin.CoreV1().Pods(w.space).Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		w.t.Fatal(err)
	}
}

// replace removes the pod at once and creates another one with the same name on the node.
func (w *world) replace(name, node string) *corev1.Pod {
	now := int64(0)
	if err := w.admin.CoreV1().Pods(w.space).Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		w.t.Error(err)
	}
	p := w.pod(name)
	p.Spec.NodeName = node
	p, err := w.admin.CoreV1().Pods(w.space).Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Error(err)
	}
	return p
}

// gone answers a request like an API server that no longer has the requested version.
func gone(req *http.Request) *http.Response {
	body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old resource version","code":410}`
	return &http.Response{
		StatusCode: http.StatusGone, Status: "410 Gone", Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader([]byte(body))),
	}
}
