package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// soon bounds what takes seconds on a machine that does nothing else.
	soon = 4 * time.Minute
	// rolled bounds a whole rollout.
	rolled = 10 * time.Minute
	// oldVersion is what hosts run at first, newVersion what is staged.
	oldVersion, newVersion = "4.1.0", "4.2.0"
	// kubectlManager is whom a person's writes are by. The referee takes a
	// cordon of kubectl's for a person's, so nothing has to be declared for it.
	kubectlManager = "kubectl-rollout"
)

// scene is a rig with what tests do to it and wait for.
type scene struct {
	t *testing.T
	*rig.Rig
	*watcher
}

// play starts a rig of hosts of which the first one or two may coordinate.
func play(t *testing.T, hosts, coordinators int, policy string, change ...func(*rig.Options)) *scene {
	t.Helper()
	o := options(t, hosts, policy)
	o.Fleet.Coordinators = coordinators
	for _, f := range change {
		f(&o)
	}
	s := &scene{t: t, Rig: start(t, o)}
	s.watcher = s.watch()
	return s
}

// config changes every host's lockkeeper.toml.
func config(table, key string, value any) func(*rig.Options) {
	return func(o *rig.Options) {
		before := o.Fleet.Host.Config
		o.Fleet.Host.Config = func(c simhost.Config) {
			if before != nil {
				before(c)
			}
			c.Set(table, key, value)
		}
	}
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// within bounds one wait.
func (s *scene) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *scene) host(name string) *simhost.Host {
	s.t.Helper()
	h := s.Fleet.Host(name)
	if h == nil {
		s.t.Fatalf("no host %s", name)
	}
	return h
}

// stage stages the new version on the hosts.
func (s *scene) stage(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.Referee.WantMade(name)
		s.must(s.host(name).StageUpdate(newVersion))
	}
}

// cancel takes the update back at its source, without a signal.
func (s *scene) cancel(name string) {
	s.t.Helper()
	s.must(s.host(name).ResetStatus())
	s.Referee.WantCancelled(name)
}

// now reads a Node from the quorum.
func (s *scene) now(name string) *turn.Node {
	s.t.Helper()
	obj, err := s.ControlPlane.Client().CoreV1().Nodes().Get(s.within(soon), name, metav1.GetOptions{})
	s.must(err)
	n := turn.FromNode(obj)
	return &n
}

// until waits until the Node is as cond wants it.
func (s *scene) until(name string, d time.Duration, what string, cond func(*turn.Node) bool) *turn.Node {
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
func (s *scene) reaches(name string, state v1alpha1.State) *turn.Node {
	s.t.Helper()
	return s.until(name, soon, "to be "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.Turn != "" && n.Ack.Turn == n.Turn
	})
}

// commits waits for the host's ack committed in the state.
func (s *scene) commits(name string, state v1alpha1.State) *turn.Node {
	s.t.Helper()
	return s.until(name, soon, "to have committed in "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.HasReport(v1alpha1.ReportCommitted)
	})
}

// held waits until the coordinator says that the node is held for the reason.
func (s *scene) held(name string, reason v1alpha1.Reason) *turn.Node {
	s.t.Helper()
	return s.until(name, soon, "to be held: "+string(reason), func(n *turn.Node) bool { return n.Held == reason })
}

// says waits until the host's own status line holds a text: its loop has gone round with these facts.
func (s *scene) says(name, text string, d time.Duration) {
	s.t.Helper()
	s.must(s.host(name).WaitNotify(s.within(d), fmt.Sprintf("saying %q", text), func(n simhost.Notify) bool {
		return strings.Contains(n.Status, text)
	}))
}

// ended waits until the node is back in idle in its host's present boot, its last turn ended so, and nothing of it left.
func (s *scene) ended(name string, result v1alpha1.Result, reason v1alpha1.Reason) *turn.Node {
	s.t.Helper()
	h := s.host(name)
	n := s.until(name, soon, fmt.Sprintf("to be idle after a turn that ended %s %s", result, reason), func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready && n.Last != nil &&
			n.Last.Result == result && n.Last.Reason == reason
	})
	if n.Turn != "" || n.Grant != nil || n.Mark || len(n.Hooks) > 0 {
		s.t.Errorf("%s is idle and still has turn %q, grant %t, mark %t, hooks %v", name, n.Turn, n.Grant != nil, n.Mark, n.Hooks)
	}
	return n
}

// updated waits until the hosts run the new version, and are back.
func (s *scene) updated(names ...string) {
	s.t.Helper()
	for _, name := range names {
		h := s.host(name)
		s.until(name, rolled, "to be back with "+newVersion, func(n *turn.Node) bool {
			return h.Version() == newVersion && n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready &&
				n.Wants == v1alpha1.WantsNothing && n.Last != nil && n.Last.Result == v1alpha1.ResultDone
		})
	}
}

// schedulable fails the test unless the node is, and without a mark.
func (s *scene) schedulable(name string) {
	s.t.Helper()
	if n := s.now(name); n.Unschedulable || n.Mark {
		s.t.Errorf("%s: unschedulable %t, mark %t; expected neither", name, n.Unschedulable, n.Mark)
	}
}

// reboots fails the test unless the host's logind was told to reboot so often.
func (s *scene) reboots(name string, want int) {
	s.t.Helper()
	if got := s.host(name).Reboots(); got != want {
		s.t.Errorf("%s was rebooted %d times, expected %d", name, got, want)
	}
}

// evictions is how many pods were evicted up to now.
func (s *scene) evictions() int {
	s.t.Helper()
	s.must(s.Referee.Sync(s.within(soon)))
	return s.Referee.Report().Evictions
}

// patch is a person's edit of a Node; a nil value removes.
func (s *scene) patch(name string, doc map[string]any) {
	s.t.Helper()
	body, err := json.Marshal(doc)
	s.must(err)
	_, err = s.ControlPlane.Client().CoreV1().Nodes().Patch(s.within(soon), name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: kubectlManager})
	s.must(err)
}

// tryPatch is patch with a resourceVersion; it tells whether the Node was still that one.
func (s *scene) tryPatch(name string, doc map[string]any) bool {
	s.t.Helper()
	body, err := json.Marshal(doc)
	s.must(err)
	_, err = s.ControlPlane.Client().CoreV1().Nodes().Patch(s.within(soon), name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: kubectlManager})
	if apierrors.IsConflict(err) {
		return false
	}
	s.must(err)
	return true
}

func (s *scene) annotate(name, key string, value any) {
	s.t.Helper()
	s.patch(name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
}

func (s *scene) label(name, key string, value any) {
	s.t.Helper()
	s.patch(name, map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}})
}

// cordon is a person's.
func (s *scene) cordon(name string) {
	s.t.Helper()
	s.patch(name, map[string]any{"spec": map[string]any{"unschedulable": true}})
}

// uncordon is a person's; the referee has to be told, because nothing on a Node tells who removed a field.
func (s *scene) uncordon(name string) {
	s.t.Helper()
	s.Referee.AdminUncordon(name)
	s.patch(name, map[string]any{"spec": map[string]any{"unschedulable": nil}})
}

func (s *scene) patchLease(doc map[string]any) {
	s.t.Helper()
	body, err := json.Marshal(doc)
	s.must(err)
	_, err = s.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Patch(s.within(soon),
		v1alpha1.DefaultLeaseName, types.MergePatchType, body, metav1.PatchOptions{FieldManager: kubectlManager})
	s.must(err)
}

// stop sets the emergency stop, goes lifts it.
func (s *scene) stop(why any) {
	s.t.Helper()
	s.patchLease(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationStop: why}}})
}

func (s *scene) goes() {
	s.t.Helper()
	s.stop(nil)
}

// epoch is the present term, "" if nobody leads.
func (s *scene) epoch() string {
	s.t.Helper()
	l, err := s.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Get(s.within(soon),
		v1alpha1.DefaultLeaseName, metav1.GetOptions{})
	s.must(err)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// leader is the host that coordinates; the test fails if there is none for long.
func (s *scene) leader() *simhost.Host {
	s.t.Helper()
	var name string
	eventually(s, "somebody to lead", func(context.Context) (led bool, err error) {
		name, _, led = strings.Cut(s.epoch(), "_")
		return led, nil
	})
	return s.host(name)
}

// takenOver waits until a term other than epoch has made the node's turn its own.
func (s *scene) takenOver(name, epoch string) string {
	s.t.Helper()
	n := s.until(name, soon, "to be taken over by another term than "+epoch, func(n *turn.Node) bool {
		return n.Grant != nil && n.Grant.Epoch != epoch
	})
	return n.Grant.Epoch
}
