package rollout

import (
	"os/exec"
	"strings"

	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// heldIdle waits until the coordinator says that each of the nodes is held for the reason, in no turn.
func (s *scene) heldIdle(reason v1alpha1.Reason, names ...string) {
	s.T.Helper()
	for _, name := range names {
		s.Until(name, rig.Soon, "to be held: "+string(reason), func(n *turn.Node) bool {
			return n.State == v1alpha1.StateIdle && n.Held == reason
		})
	}
}

// back waits until the hosts run the new version, and their nodes are schedulable.
func (s *scene) back(names ...string) {
	s.T.Helper()
	s.updated(names...)
	for _, name := range names {
		s.schedulable(name)
	}
}

// nothingBegins fails the test if one of the nodes begins its first turn although the coordinator decides, and decides again.
func (s *scene) nothingBegins(spare string, names ...string) {
	s.T.Helper()
	// A coordinator moves such a node whatever policies say. All that it decided with the first move is written before the second.
	s.Annotate(spare, v1alpha1.AnnotationPaused, "a move")
	s.Until(spare, rig.Soon, "to be paused", func(n *turn.Node) bool { return n.State == v1alpha1.StatePaused })
	s.Annotate(spare, v1alpha1.AnnotationPaused, nil)
	s.Until(spare, rig.Soon, "to be idle again", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
	for _, name := range names {
		if n := s.Now(name); n.State != v1alpha1.StateIdle || n.Last != nil || n.Unschedulable {
			s.T.Errorf("%s is %s, unschedulable %t, its last turn %+v; expected that it never had one", name, n.State, n.Unschedulable, n.Last)
		}
		if n := s.Host(name).Reboots(); n > 0 {
			s.T.Errorf("%s was rebooted %d times", name, n)
		}
	}
}

// lockkeeper runs a command of the product as a person who may do everything.
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

// dynamic returns a client of a person who may do everything.
func (s *scene) dynamic() dynamic.Interface {
	s.T.Helper()
	config := s.ControlPlane.AdminConfig()
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	s.Must(err)
	return client
}

// policy makes the DisruptionPolicy of that name what spec says.
func (s *scene) policy(name, spec string) {
	s.T.Helper()
	_, err := s.ControlPlane.ApplyPolicy(s.Within(rig.Soon), name, spec)
	s.Must(err)
}
