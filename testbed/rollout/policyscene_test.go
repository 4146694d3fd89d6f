package rollout

import (
	"os/exec"
	"strings"

	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// heldIdle waits until the coordinator holds each of the nodes for the reason, in idle.
func (s *scene) heldIdle(reason v1alpha1.Reason, names ...string) {
	s.T.Helper()
	for _, name := range names {
		s.Until(name, rig.Soon, "to be held: "+string(reason), func(n *turn.Node) bool {
			return n.State == v1alpha1.StateIdle && n.Held == reason
		})
	}
}

// back waits until the hosts run the new version and their nodes are schedulable.
func (s *scene) back(names ...string) {
	s.T.Helper()
	s.updated(names...)
	for _, name := range names {
		s.schedulable(name)
	}
}

// nothingBegins fails the test if one of the nodes begins its first turn while the coordinator makes two more
// decisions.
func (s *scene) nothingBegins(spare string, names ...string) {
	s.T.Helper()
	// A coordinator moves a paused node whatever the policies contain. When the second move happens, all decisions of
	// the first round are written.
	s.Annotate(spare, v1alpha1.AnnotationPaused, "a move")
	s.Until(spare, rig.Soon, "to be paused", func(n *turn.Node) bool { return n.State == v1alpha1.StatePaused })
	s.Annotate(spare, v1alpha1.AnnotationPaused, nil)
	s.Until(spare, rig.Soon, "to be idle again", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
	for _, name := range names {
		if n := s.Now(name); n.State != v1alpha1.StateIdle || n.Last != nil || n.Unschedulable {
			s.T.Errorf("%s is %s, unschedulable %t, last turn %+v; expected no turn", name, n.State, n.Unschedulable, n.Last)
		}
		if n := s.Host(name).Reboots(); n > 0 {
			s.T.Errorf("%s: %d reboots, expected none", name, n)
		}
	}
}

// lockkeeper runs a command of the product as an admin with all permissions.
func (s *scene) lockkeeper(command string, args ...string) {
	s.T.Helper()
	all := append([]string{command, "--kubeconfig", s.kubeconfig()}, args...)
	text, err := exec.CommandContext(s.Within(rig.Soon), binary, all...).CombinedOutput()
	if err != nil {
		s.T.Fatalf("lockkeeper %s %s: %v\n%s", command, strings.Join(args, " "), err, text)
	}
	s.T.Logf("lockkeeper %s %s:\n%s", command, strings.Join(args, " "), text)
}

func (s *scene) kubeconfig() string {
	s.T.Helper()
	path, err := s.ControlPlane.Kubeconfig("ann", "system:masters")
	s.Must(err)
	return path
}

// dynamic returns a client with all permissions.
func (s *scene) dynamic() dynamic.Interface {
	s.T.Helper()
	config := s.ControlPlane.AdminConfig()
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	s.Must(err)
	return client
}

// policy creates or replaces the DisruptionPolicy of that name with spec.
func (s *scene) policy(name, spec string) {
	s.T.Helper()
	_, err := s.ControlPlane.ApplyPolicy(s.Within(rig.Soon), name, spec)
	s.Must(err)
}
