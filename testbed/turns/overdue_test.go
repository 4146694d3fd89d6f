package turns

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// overdueDrains are the three settings of drain.onTimeout, each with a pod whose budget never allows its eviction.
var overdueDrains = map[string]func(*scene){
	"drain-overdue-wait": func(s *scene) {
		s.policy("rollout: {settle: 0s}\ndrain: {timeout: 2s, onTimeout: Wait}")
		h := s.hosts(1)[0]
		release := s.block(h)
		s.stage(h)
		s.held(h, v1alpha1.ReasonOverdue)
		s.statusShows(h, "Overdue", "The disruption budget work needs")
		if n := s.reaches(h, v1alpha1.StateDraining); !n.Mark || !n.Unschedulable {
			s.T.Errorf("%s drains: mark %t, unschedulable %t", h.Name(), n.Mark, n.Unschedulable)
		}
		release()
		s.ended(h, "Done: draining rebooting uncordoning")
		s.did(h, 1)
	},

	"drain-overdue-abort": func(s *scene) {
		s.policy("rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}\ndrain: {timeout: 2s, onTimeout: Abort}")
		h := s.hosts(1)[0]
		s.block(h)
		pod := s.workPod(h.Name())
		s.stage(h)
		s.ended(h, "BackedOut Overdue: draining uncordoning")
		s.did(h, 0)
		if now := s.workPod(h.Name()); now.UID != pod.UID || now.DeletionTimestamp != nil {
			s.T.Errorf("the pod that its budget protects was replaced or is deleted: %s, before %s", now.UID, pod.UID)
		}
	},

	// What can be evicted is evicted, what a budget protects is deleted, and what drain.block selects is waited for.
	"drain-overdue-force": func(s *scene) {
		s.policy("rollout: {settle: 0s}\ndrain: {timeout: 10s, onTimeout: Force, block: [{selector: {matchLabels: {keep: " + s.name + "}}}]}")
		h := s.hosts(1)[0]
		s.block(h)
		pod := s.workPod(h.Name())
		s.stage(h)
		s.commits(h, v1alpha1.StateDraining)
		kept := s.barePod(h, "kept", map[string]string{"keep": s.name}) // before the grant it would have been a veto
		var about []corev1.Event
		s.Eventually("an Event about the pod that was deleted", func(ctx context.Context) (bool, error) {
			about = s.forced(ctx)
			return len(about) > 0, nil
		})
		e := about[0]
		if e.Namespace != pod.Namespace || e.InvolvedObject.Name != pod.Name || e.InvolvedObject.UID != pod.UID || e.Type != corev1.EventTypeWarning ||
			!strings.Contains(e.Message, "The disruption budget work needs") || !strings.Contains(e.Message, h.Name()) {
			s.T.Errorf("the Event is %+v", e)
		}
		s.blockedBy(h, v1alpha1.BlockerPod, "default/"+h.Name()+"-kept", "drain.block of its policy selects the pod")
		s.held(h, v1alpha1.ReasonOverdue)
		s.did(h, 0)
		kept()
		s.ended(h, "Done: draining rebooting uncordoning")
		s.did(h, 1)
		if about = s.forced(s.soon()); len(about) != 1 {
			s.T.Errorf("%d Events about one deleted pod: %+v", len(about), about)
		}
	},
}

// workPod returns the pod that work made on the node.
func (s *scene) workPod(node string) *corev1.Pod {
	s.T.Helper()
	list, err := cp.Client().CoreV1().Pods(node).List(s.soon(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	s.Must(err)
	if len(list.Items) != 1 {
		s.T.Fatalf("%d pods in the namespace %s, expected one", len(list.Items), node)
	}
	return &list.Items[0]
}

// forced returns the Events about pods of the scene's hosts that were deleted because their drain was overdue.
func (s *scene) forced(ctx context.Context) (all []corev1.Event) {
	s.T.Helper()
	list, err := cp.Client().CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("reason", v1alpha1.EventDrainForced).String()})
	s.Must(err)
	for _, e := range list.Items {
		if strings.HasPrefix(e.Source.Host, s.name+"-") {
			all = append(all, e)
		}
	}
	return all
}
