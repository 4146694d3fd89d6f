package turns

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// kured puts a pod that runs kured on the host's node, and returns a function that deletes it.
func (s *scene) kured(h *simhost.Host, namespace string) (remove func()) {
	s.T.Helper()
	pods, name := cp.Client().CoreV1().Pods(namespace), h.Name()+"-kured"
	_, err := pods.Create(s.soon(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: h.Name(), TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
			Name: "kured", Image: "example.invalid/kured", Command: []string{"/usr/bin/kured"}, Args: []string{"--reboot-sentinel=/sentinel/reboot-required"},
		}}},
	}, metav1.CreateOptions{})
	s.Must(err)
	return func() {
		s.T.Helper()
		s.Must(pods.Delete(s.soon(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
}

// requestedTurn waits for the one turn of the host, which an admin requested, and checks what is recorded of the request.
func (s *scene) requestedTurn(h *simhost.Host, note string, want v1alpha1.Request) {
	s.T.Helper()
	n := s.ended(h, "Done: draining rebooting uncordoning")
	if n.Last == nil || n.Last.Request == nil || *n.Last.Request != want || n.Request != nil {
		s.T.Errorf("%s: the last turn is %+v, the request %+v", h.Name(), n.Last, n.Request)
	}
	s.did(h, 1)
	s.event(h.Name(), v1alpha1.EventGranted, "Request ("+note+")")
	s.update(h, "to have the request in its history", func(u *v1alpha1.HostUpdateStatus) bool {
		return len(u.History) == 1 && slices.Equal(u.History[0].Changes, []v1alpha1.UpdateText{v1alpha1.UpdateText("Request (" + note + ")")})
	})
	s.statusShows(h, "last turn", "Request ("+note+")")
}

// others are scenes of other programs that work on a node, and of admins who ask for a reboot.
var others = map[string]func(*scene){
	// The mark of another owner that does not delete the node holds it, takes no slot, and ends no turn.
	"owner-mark": func(s *scene) {
		s.keep("owner-mark")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: owner-mark}]}")
		hosts := s.hosts(2)
		h, other := hosts[0], hosts[1]
		s.Patch(h.Name(), map[string]any{"spec": map[string]any{"taints": []any{map[string]any{"key": "medik8s.io/drain", "effect": "NoSchedule"}}}})
		s.until(h, "to be marked", func(n *turn.Node) bool { return n.Owner != "" })
		const mark = "medik8s: taint medik8s.io/drain (the node maintenance operator drains the node, or has drained it)"
		s.stage(h)
		s.held(h, v1alpha1.ReasonOtherManager)
		s.event(h.Name(), string(v1alpha1.ReasonOtherManager), mark)
		s.statusLineHas(h, mark)
		s.statusShows(h, "held: OtherManager", mark)
		s.update(h, "to name the mark", func(u *v1alpha1.HostUpdateStatus) bool { return strings.Contains(string(u.Message), mark) })
		s.stage(other)
		s.reaches(other, v1alpha1.StateBeforeDrain)
		s.confirm(other, "owner-mark")
		s.ended(other, "Done: before-drain draining rebooting uncordoning")

		s.Patch(h.Name(), map[string]any{"spec": map[string]any{"taints": nil}})
		s.reaches(h, v1alpha1.StateBeforeDrain)
		s.Annotate(h.Name(), "weave.works/kured-reboot-in-progress", "2026-01-01T12:00:00Z")
		s.confirm(h, "owner-mark")
		s.ended(h, "Done: before-drain draining rebooting uncordoning")
		s.did(h, 1)
	},
	// A node that the cluster autoscaler is deleting takes the only slot, and is granted nothing itself. Policy and status name it, who deletes it and
	// since when.
	"owner-deletes": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		hosts := s.hosts(2)
		h, other := hosts[0], hosts[1]
		since := time.Now().Add(-time.Hour).Truncate(time.Second)
		taint := map[string]any{"key": "ToBeDeletedByClusterAutoscaler", "value": strconv.FormatInt(since.Unix(), 10), "effect": "NoSchedule"}
		s.Patch(h.Name(), map[string]any{"spec": map[string]any{"taints": []any{taint}}})
		s.until(h, "to be deleted", func(n *turn.Node) bool { return n.Deleted })
		s.stage(h)
		s.held(h, v1alpha1.ReasonOtherManager)
		s.stage(other)
		s.held(other, v1alpha1.ReasonBudget)
		name := h.Name() + " is being deleted by cluster-autoscaler since " + since.UTC().Format(time.DateTime) + " UTC"
		s.makesNoProgress(v1alpha1.ReasonBudget, "1 unavailable, 1 allowed: "+name)
		s.statusShows(other, name)
		s.statusShows(h, "held: OtherManager", "cluster-autoscaler: taint ToBeDeletedByClusterAutoscaler (it deletes the node)",
			"takes a slot: it is being deleted by cluster-autoscaler, for 1h")
		s.did(other, 0)
		// The cluster autoscaler calls it off.
		s.Patch(h.Name(), map[string]any{"spec": map[string]any{"taints": nil}})
		s.ended(h, "Done: draining rebooting uncordoning")
		s.ended(other, "Done: draining rebooting uncordoning")
	},
	// A Node that Karpenter is deleting takes the only slot until its finalizer is gone, and the Node with it.
	"owner-terminates": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		hosts := s.hosts(2)
		h, other := hosts[0], hosts[1]
		nodes := cp.Client().CoreV1().Nodes()
		s.Patch(h.Name(), map[string]any{"metadata": map[string]any{"finalizers": []string{v1alpha1.FinalizerKarpenter}}})
		s.Must(nodes.Delete(s.soon(), h.Name(), metav1.DeleteOptions{}))
		s.stage(other)
		s.held(other, v1alpha1.ReasonBudget)
		s.statusShows(other, h.Name()+" is being deleted by Karpenter since ")
		s.stage(h)
		s.held(h, v1alpha1.ReasonOtherManager)
		s.statusShows(h, "Karpenter: finalizer karpenter.sh/termination (it deletes the node)")
		s.Patch(h.Name(), map[string]any{"metadata": map[string]any{"finalizers": nil}})
		s.ended(other, "Done: draining rebooting uncordoning")
		s.did(h, 0)
	},
	// kured runs on two hosts; only in kube-system does it count.
	"kured-pod": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		hosts := s.hosts(2)
		here, elsewhere := hosts[0], hosts[1]
		gone := s.kured(here, metav1.NamespaceSystem)
		s.kured(elsewhere, metav1.NamespaceDefault)
		s.stage(here)
		s.held(here, v1alpha1.ReasonOtherManager)
		const name = "kured (Pod kube-system/kured-pod-1-kured) would reboot this host too; `kubectl -n kube-system delete Pod kured-pod-1-kured` switches it off"
		s.statusLineHas(here, name)
		s.update(here, "to name kured", func(u *v1alpha1.HostUpdateStatus) bool { return strings.Contains(string(u.Message), name) })
		s.stage(elsewhere)
		s.ended(elsewhere, "Done: draining rebooting uncordoning")
		s.held(here, v1alpha1.ReasonOtherManager)
		s.ended(here)
		gone()
		s.ended(here, "Done: draining rebooting uncordoning")
	},
	"request-invalid": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h := s.hosts(1)[0]
		s.Annotate(h.Name(), v1alpha1.AnnotationRequest, `{"action":"reboot","until":"tomorrow"}`)
		s.event(h.Name(), v1alpha1.EventInvalidIntent, "annotation lockkeeper.dev/request: ", `unknown field "until"`, "no reboot is requested")
		s.statusShows(h, "lockkeeper.dev/request: ", `unknown field "until"`)
		s.idle(h)
		s.did(h, 0)
		s.Annotate(h.Name(), v1alpha1.AnnotationRequest, `{"action":"reboot","by":"ada","reason":"memory errors"}`)
		s.requestedTurn(h, "by ada: memory errors", v1alpha1.Request{Action: "reboot", By: "ada", Reason: "memory errors"})
	},
	// Outside of its windows, a policy grants what an admin requests now, and nothing else.
	"request-now": func(s *scene) {
		field, _ := shutWindow()
		s.policy("rollout: {settle: 1h, expectedDuration: 1m, onClose: Cancel, " + field + "}")
		hosts := s.hosts(2)
		h, other := hosts[0], hosts[1]
		s.stage(other)
		s.held(other, v1alpha1.ReasonWindow)
		s.Annotate(h.Name(), v1alpha1.AnnotationRequest, `{"action":"reboot","by":"ada","reason":"memory errors"}`)
		s.held(h, v1alpha1.ReasonWindow)
		s.statusShows(h, "held: Window", "Request (by ada: memory errors)")
		s.Annotate(h.Name(), v1alpha1.AnnotationRequestNow, `{"action":"reboot","by":"ada","reason":"it cannot wait"}`)
		s.requestedTurn(h, "now, by ada: it cannot wait", v1alpha1.Request{Action: "reboot", By: "ada", Reason: "it cannot wait", Now: true})
		s.held(other, v1alpha1.ReasonWindow)
		s.did(other, 0)
	},
}
