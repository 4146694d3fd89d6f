package turns

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// hooks are other people's: pods that a DaemonSet brings to a node by its state, and people.
var hooks = map[string]func(*scene){
	"hooks-confirmed": func(s *scene) {
		s.keep("ease-out", "by-hand", "ease-in")
		s.policy("rollout: {settle: 0s}\n" +
			"hooks: {beforeDrain: [{name: ease-out}], beforeReboot: [{name: by-hand}], beforeUncordon: [{name: ease-in}]}")
		s.daemon("ease-out", v1alpha1.StateBeforeDrain)
		s.daemon("ease-in", v1alpha1.StateBeforeUncordon)
		h := s.hosts(1)[0]
		s.stage(h)

		s.reaches(h, v1alpha1.StateBeforeDrain)
		s.runs("ease-out", h.Name())
		s.statusShows(h, "ease-out: not confirmed yet")
		s.confirm(h, "ease-out") // as the pod's script does

		s.reaches(h, v1alpha1.StateBeforeReboot)
		s.runs("ease-out") // on no node
		if out, err := s.lockkeeper("confirm", h.Name(), "ease-in"); err == nil || !strings.Contains(out, "is in before-reboot, which waits for by-hand; ease-in belongs to before-uncordon") {
			s.T.Errorf("a hook of a later stage is confirmed (%v): %s", err, out)
		}
		if out, err := s.lockkeeper("confirm", h.Name(), "by-hand"); err != nil || !strings.Contains(out, "hook by-hand of before-reboot is confirmed for turn") {
			s.T.Errorf("%v: %s", err, out)
		}

		s.reaches(h, v1alpha1.StateBeforeUncordon)
		s.runs("ease-in", h.Name())
		s.confirm(h, "ease-in")
		s.ended(h, "Done: before-drain draining before-reboot rebooting before-uncordon uncordoning")
		s.runs("ease-in")
		s.did(h, 1)
	},

	// Late is not too late where the stage waits. Meanwhile the API server refuses the same name in another stage.
	"hooks-late": func(s *scene) {
		s.keep("late")
		const policy = "rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: late, timeout: 1s, onTimeout: Wait}]"
		s.policy(policy + "}")
		h := s.hosts(1)[0]
		s.stage(h)
		s.reaches(h, v1alpha1.StateBeforeDrain)
		s.reads(h, v1alpha1.ReasonOverdue)
		s.has(h.Name(), v1alpha1.ReasonOverdue)
		_, err := s.tryPolicy(policy + ", beforeUncordon: [{name: late}]}")
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.hooks.beforeUncordon") || !strings.Contains(err.Error(), "expected each name in one stage only") {
			s.T.Errorf("one name in two stages: %v", err)
		}
		if n := s.reaches(h, v1alpha1.StateBeforeDrain); n.Mark || n.Unschedulable {
			s.T.Errorf("%s is cordoned before its hook has confirmed", h.Name())
		}
		if out, err := s.lockkeeper("confirm", h.Name(), "late"); err != nil {
			s.T.Errorf("%v: %s", err, out)
		}
		s.ended(h, "Done: before-drain draining rebooting uncordoning")
		s.did(h, 1)
	},

	// No one ever confirms anything.
	"hooks-continue": func(s *scene) {
		s.keep("never-1", "never-2", "never-3")
		s.policy(`rollout: {settle: 0s}
hooks:
  beforeDrain: [{name: never-1, timeout: 1s, onTimeout: Continue}]
  beforeReboot: [{name: never-2, timeout: 1s, onTimeout: Continue}]
  beforeUncordon: [{name: never-3, timeout: 1s, onTimeout: Continue}]`)
		h := s.hosts(1)[0]
		s.stage(h)
		s.ended(h, "Done: before-drain draining before-reboot rebooting before-uncordon uncordoning")
		s.did(h, 1)
	},

	// A drained node is not rebooted before its volumes are detached.
	"volumes-detached": func(s *scene) {
		s.policy("rollout: {settle: 0s}\nhooks: {waitForVolumeDetach: true}")
		h := s.hosts(1)[0]
		s.attached(h, `[{"name":"csi/vol-1","devicePath":""}]`)
		s.stage(h)
		if n := s.reaches(h, v1alpha1.StateBeforeReboot); !n.Mark || !n.Unschedulable {
			s.T.Errorf("%s waits for its volumes: mark %t, unschedulable %t, expected a drained node", h.Name(), n.Mark, n.Unschedulable)
		}
		s.statusShows(h, "1 volume to detach: csi/vol-1")
		s.attached(h, `[]`)
		s.ended(h, "Done: draining before-reboot rebooting uncordoning")
		s.did(h, 1)
	},

	// The stage is given up, and what was done is undone; that is waited for, however long it takes.
	"hooks-abort": func(s *scene) {
		s.keep("stuck", "undo")
		s.policy(`rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}
hooks:
  beforeReboot: [{name: stuck, timeout: 1s, onTimeout: Abort}]
  beforeUncordon: [{name: undo, timeout: 1s, onTimeout: Wait}]`)
		h := s.hosts(1)[0]
		s.stage(h)
		s.until(h, "to be backed out, and to wait for the undoing", func(n *turn.Node) bool {
			return n.State == v1alpha1.StateBeforeUncordon && n.Held == v1alpha1.ReasonOverdue &&
				n.Grant != nil && n.Grant.Result == v1alpha1.ResultBackedOut && n.Grant.Reason == v1alpha1.ReasonOverdue
		})
		if out, err := s.lockkeeper("confirm", h.Name(), "stuck"); err == nil || !strings.Contains(out, "is in before-uncordon, which waits for undo; stuck belongs to before-reboot") {
			s.T.Errorf("it was too late for that (%v): %s", err, out)
		}
		s.authors.Release("undo")
		s.ended(h, "BackedOut Overdue: draining before-reboot before-uncordon uncordoning")
		s.endsFor(h, v1alpha1.ReasonOverdue)
		s.reads(h, v1alpha1.ReasonBackoff)
		s.did(h, 0)
	},

	// Something keeps the host from its reboot for too long. The turn ends without it.
	"inhibited-overdue": func(s *scene) {
		s.policy("rollout: {settle: 0s, backoff: 1h, backoffMax: 2h}\ntimeouts: {rebooting: 3s}")
		h := s.hosts(1)[0]
		defer h.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "writing a tape", Mode: "block", PID: 1})()
		s.stage(h)
		s.ended(h, "BackedOut Overdue: draining rebooting uncordoning")
		s.did(h, 0)
	},

	// One hook has done its part when the want vanishes: its word goes, and what it did is undone by a pod.
	"hooks-undone": func(s *scene) {
		s.keep("out-1", "out-2", "in")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: out-1}, {name: out-2}], beforeUncordon: [{name: in}]}")
		s.daemon("in", v1alpha1.StateBeforeUncordon)
		h := s.hosts(1)[0]
		s.stage(h)
		n := s.reaches(h, v1alpha1.StateBeforeDrain)
		s.confirm(h, "out-1")
		s.until(h, "to have out-1 confirmed", func(n *turn.Node) bool { return n.Hooks["out-1"] == n.Turn })
		s.cancel(h)
		s.until(h, "to be backed out, with no hook's word", func(now *turn.Node) bool {
			return now.Turn == n.Turn && now.State == v1alpha1.StateBeforeUncordon && len(now.Hooks) == 0
		})
		s.runs("in", h.Name())
		s.statusShows(h, "in: not confirmed yet")
		s.confirm(h, "in")
		s.ended(h, "Cancelled WantGone: before-drain before-uncordon uncordoning")
		s.did(h, 0)
	},
}

// keep has the authors of hooks confirm nothing until they are released.
func (s *scene) keep(hooks ...string) {
	for _, hook := range hooks {
		s.authors.Keep(hook)
	}
}

// cancel takes the update back at its source.
func (s *scene) cancel(h *simhost.Host) {
	s.T.Helper()
	s.Must(h.ResetStatus())
	if s.Referee != nil {
		s.Referee.WantCancelled(h.Name())
	}
}

// daemon makes a DaemonSet for the scene's hosts in a state.
func (s *scene) daemon(name string, state v1alpha1.State) {
	s.T.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if _, err := cp.Client().CoreV1().Namespaces().Create(s.soon(), namespace, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		s.Must(err)
	}
	labels := map[string]string{"hook": name}
	_, err := cp.Client().AppsV1().DaemonSets(s.name).Create(s.soon(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{sceneLabel: s.name, v1alpha1.LabelState: string(state)},
				Containers:   []corev1.Container{{Name: "hook", Image: "example.invalid/hook"}},
			}},
		},
	}, metav1.CreateOptions{})
	s.Must(err)
}

// attached says, as a kubelet does, which volumes are attached to the host's node.
func (s *scene) attached(h *simhost.Host, volumes string) {
	s.T.Helper()
	body := []byte(`{"status":{"volumesAttached":` + volumes + `}}`)
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.MergePatchType, body, metav1.PatchOptions{}, "status")
	s.Must(err)
}

// runs waits until the DaemonSet's pods run on these nodes, and are nowhere else.
func (s *scene) runs(name string, nodes ...string) {
	s.T.Helper()
	_, err := cp.WaitPods(s.soon(), s.name, "hook="+name, "to run on "+strings.Join(nodes, ", "), func(pods []*corev1.Pod) bool {
		return len(pods) == len(nodes) && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return !slices.Contains(nodes, p.Spec.NodeName) || !controlplane.PodReady(p) || p.DeletionTimestamp != nil
		})
	})
	s.Must(err)
}
