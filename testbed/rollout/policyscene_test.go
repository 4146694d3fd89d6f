package rollout

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// severalScene is a rig with what tests do to it and wait for.
type severalScene struct {
	t *testing.T
	*rig.Rig
	dynamic    dynamic.Interface
	kubeconfig string // a person's who may do everything
}

func newScene(t *testing.T, r *rig.Rig) *severalScene {
	t.Helper()
	s := &severalScene{t: t, Rig: r}
	config := r.ControlPlane.AdminConfig()
	config.QPS = -1
	var err error
	s.dynamic, err = dynamic.NewForConfig(config)
	s.must(err)
	s.kubeconfig, err = r.ControlPlane.Kubeconfig("ann", "system:masters")
	s.must(err)
	return s
}

func (s *severalScene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// within bounds one wait.
func (s *severalScene) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	s.t.Cleanup(cancel)
	return ctx
}

// eventually looks until cond holds, and tells what it saw last if that is not soon.
func (s *severalScene) eventually(what string, cond func(context.Context) (ok bool, saw string)) {
	s.t.Helper()
	ctx := s.within(soon)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		ok, saw := cond(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("waiting for %s: %v; last:\n%s", what, context.Cause(ctx), saw)
		case <-tick.C:
		}
	}
}

func (s *severalScene) host(name string) *simhost.Host {
	s.t.Helper()
	h := s.Fleet.Host(name)
	if h == nil {
		s.t.Fatalf("no host %s", name)
	}
	return h
}

// stage stages the new version on the hosts.
func (s *severalScene) stage(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.Referee.WantMade(name)
		s.must(s.host(name).StageUpdate(newVersion))
	}
}

// until waits until the Node is as cond wants it.
func (s *severalScene) until(name string, d time.Duration, what string, cond func(*turn.Node) bool) *turn.Node {
	s.t.Helper()
	obj, err := s.ControlPlane.WaitNode(s.within(d), name, what, func(o *corev1.Node) bool {
		if o == nil {
			return false
		}
		n := turn.FromNode(o)
		return cond(&n)
	})
	s.must(err)
	n := turn.FromNode(obj)
	return &n
}

// reaches waits until the host has said that it knows of the turn that brought its node into the state.
func (s *severalScene) reaches(name string, state v1alpha1.State) {
	s.t.Helper()
	s.until(name, soon, "to be "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.Turn != "" && n.Ack.Turn == n.Turn
	})
}

// held waits until the coordinator says that each of the nodes is held for the reason, in no turn.
func (s *severalScene) held(reason v1alpha1.Reason, names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.until(name, soon, "to be held: "+string(reason), func(n *turn.Node) bool {
			return n.State == v1alpha1.StateIdle && n.Held == reason
		})
	}
}

// updated waits until the hosts run the new version, and are back.
func (s *severalScene) updated(names ...string) {
	s.t.Helper()
	for _, name := range names {
		h := s.host(name)
		s.until(name, rolled, "to be back with "+newVersion, func(n *turn.Node) bool {
			return h.Version() == newVersion && n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready && !n.Unschedulable &&
				n.Wants == v1alpha1.WantsNothing && n.Last != nil && n.Last.Result == v1alpha1.ResultDone
		})
	}
}

// nothingBegins fails the test if one of the nodes begins its first turn although the coordinator decides, and decides again.
func (s *severalScene) nothingBegins(spare string, names ...string) {
	s.t.Helper()
	// A coordinator moves such a node whatever policies say. All that it decided with the first move is written before the second.
	s.annotate(spare, v1alpha1.AnnotationPaused, "a move")
	s.until(spare, soon, "to be paused", func(n *turn.Node) bool { return n.State == v1alpha1.StatePaused })
	s.annotate(spare, v1alpha1.AnnotationPaused, nil)
	s.until(spare, soon, "to be idle again", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
	for _, name := range names {
		obj, err := s.ControlPlane.Client().CoreV1().Nodes().Get(s.within(soon), name, metav1.GetOptions{})
		s.must(err)
		if n := turn.FromNode(obj); n.State != v1alpha1.StateIdle || n.Last != nil || n.Unschedulable {
			s.t.Errorf("%s is %s, unschedulable %t, its last turn %+v; expected that it never had one", name, n.State, n.Unschedulable, n.Last)
		}
		if n := s.host(name).Reboots(); n > 0 {
			s.t.Errorf("%s was rebooted %d times", name, n)
		}
	}
}

// annotate is a person's edit of a Node; nil removes.
func (s *severalScene) annotate(name, key string, value any) {
	s.t.Helper()
	text := "null"
	if value != nil {
		text = fmt.Sprintf("%q", value)
	}
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, text)
	_, err := s.ControlPlane.Client().CoreV1().Nodes().Patch(s.within(soon), name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: kubectlManager})
	s.must(err)
}

// lockkeeper runs a command of the product in the part of a person.
func (s *severalScene) lockkeeper(command string, args ...string) {
	s.t.Helper()
	all := append([]string{command, "--kubeconfig", s.kubeconfig}, args...)
	text, err := exec.CommandContext(s.within(soon), binary, all...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("lockkeeper %s %s: %v\n%s", command, strings.Join(args, " "), err, text)
	}
	s.t.Logf("lockkeeper %s %s:\n%s", command, strings.Join(args, " "), text)
}

// policy makes the DisruptionPolicy of that name what spec says.
func (s *severalScene) policy(name, spec string) {
	s.t.Helper()
	_, err := s.ControlPlane.ApplyPolicy(s.within(soon), name, spec)
	s.must(err)
}
