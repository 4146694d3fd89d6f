package rollout

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// remains returns everything of lockkeeper's on a Node, sorted: labels with their values, annotations, and conditions, and the cordon,
// no matter whose it is.
func (s *scene) remains(name string) string {
	s.T.Helper()
	n, err := s.ControlPlane.Client().CoreV1().Nodes().Get(s.Within(rig.Soon), name, metav1.GetOptions{})
	s.Must(err)
	ours := func(key string) bool {
		return strings.HasPrefix(key, v1alpha1.Prefix) || strings.HasPrefix(key, v1alpha1.HookPrefix)
	}
	var all []string
	for key, value := range n.Labels {
		if ours(key) {
			all = append(all, strings.TrimPrefix(key, v1alpha1.Prefix)+"="+value)
		}
	}
	for key := range n.Annotations {
		if ours(key) {
			all = append(all, strings.TrimPrefix(key, v1alpha1.Prefix))
		}
	}
	for _, c := range n.Status.Conditions {
		if strings.HasPrefix(c.Message, "lockkeeper:") {
			all = append(all, string(c.Type))
		}
	}
	if n.Spec.Unschedulable {
		all = append(all, "cordoned")
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// hasHostUpdate reports whether the node has one.
func (s *scene) hasHostUpdate(name string) bool {
	s.T.Helper()
	_, err := s.hostUpdates().Get(s.Within(rig.Soon), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		s.Must(err)
	}
	return err == nil
}

// stateDir is where the service on the host keeps its status.
func stateDir(h *simhost.Host) string { return filepath.Join(h.Root(), "run/lockkeeper") }

// TestLeave takes nodes out for good at once: one that is idle and has intents of an admin, one that drains, one whose host is dead, and
// one that has committed to its reboot. The command waits for each; after it, nothing of lockkeeper's is on the Nodes but managed=false,
// and nothing is written to them although an update is staged and the hosts start again.
func TestLeave(t *testing.T) {
	t.Parallel()
	const idle, drains, dead, reboots = "node-2", "node-3", "node-4", "node-5"
	leaving := []string{idle, drains, dead, reboots}
	s := play(t, 5, 1, "rollout: {settle: 1s, maxUnavailable: 2}", quick, patient, config("", "lifecycle_conditions", true), func(o *rig.Options) { o.Budget = 2 })
	for _, name := range leaving {
		s.forget(name)
		s.Eventually("the HostUpdate of "+name, func(context.Context) (bool, error) { return s.hasHostUpdate(name), nil })
	}
	budget := s.block(drains)
	s.stage(drains)
	s.Commits(drains, v1alpha1.StateDraining)
	s.Eventually("its conditions", func(context.Context) (bool, error) {
		return strings.Contains(s.remains(drains), "DrainInProgress"), nil
	})
	undelay := s.Host(reboots).Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "database", Why: "it flushes", Mode: "delay"})
	s.stage(reboots)
	s.Commits(reboots, v1alpha1.StateRebooting)
	// A third node gets no turn: two are unavailable. So its host dies with a plan, and with the condition that says so.
	s.stage(dead)
	s.Held(dead, v1alpha1.ReasonBudget)
	s.Eventually("its condition", func(context.Context) (bool, error) {
		return strings.Contains(s.remains(dead), "MaintenancePlanned"), nil
	})
	s.Host(dead).Kill()
	s.Host(dead).StopLockkeeper()
	s.Annotate(idle, v1alpha1.AnnotationPaused, "mine")
	s.Annotate(idle, v1alpha1.AnnotationRetry, "t0")
	s.Until(idle, rig.Soon, "to be paused", func(n *turn.Node) bool { return n.State == v1alpha1.StatePaused })

	// Nothing is changed without a confirmation, and by a dry run.
	_, said := s.starts(append([]string{"leave"}, leaving...)...).ends(64)
	s.shows(said, "leave would change 4 nodes", "add --yes", "nothing was changed")
	out, _ := s.starts(append([]string{"leave", "--dry-run"}, leaving...)...).ends(0)
	s.shows(out, "nothing is changed")
	for _, name := range leaving {
		if n := s.Now(name); n.Managed != nil {
			t.Errorf("%s has the label managed=%t", name, *n.Managed)
		}
	}
	// A wait that times out leaves the label, and can be repeated.
	_, said = s.starts("leave", "--timeout=1s", reboots).ends(4)
	s.shows(said, "Z  "+reboots+"  rebooting", "not left yet: "+reboots, "timed out after 1s")

	leave := s.starts(append([]string{"leave", "--yes"}, leaving...)...)
	for _, name := range []string{idle, drains, dead} {
		s.Eventually(name+" to leave", func(context.Context) (bool, error) {
			return strings.Contains(leave.stderr.String(), "Z  "+name+"  has left\n"), nil
		})
	}
	if got := s.evictions(); got != 0 {
		t.Errorf("%d pods were evicted", got)
	}
	if n := s.Now(reboots); n.State != v1alpha1.StateRebooting || !n.Mark {
		t.Errorf("%s has committed to its reboot, and is %q", reboots, n.State)
	}
	if leave.ProcessState != nil {
		t.Error("the command has ended before the last node has left")
	}
	undelay()
	out, said = leave.ends(0)
	s.shows(said, "  "+reboots+"  rebooting", "waits for the host to reboot", "Z  "+reboots+"  has left\n")
	s.shows(out, "4 nodes have left.", "kubectl label node "+strings.Join(leaving, " ")+" lockkeeper.dev/managed-")
	if s.Host(reboots).Version() != newVersion {
		t.Errorf("%s runs %s: its turn was not finished", reboots, s.Host(reboots).Version())
	}
	s.reboots(reboots, 1)
	s.reboots(drains, 0)

	check := func(when string) {
		for _, name := range leaving {
			if got := s.remains(name); got != "managed=false" {
				t.Errorf("%s, %s has %q, expected managed=false and nothing else", when, name, got)
			}
			if s.hasHostUpdate(name) {
				t.Errorf("%s, %s has a HostUpdate", when, name)
			}
		}
	}
	check("after the command")
	s.stage(idle)
	s.Must(s.Host(dead).StartLockkeeper())
	for _, name := range []string{idle, dead} {
		s.Reports(name, string(v1alpha1.ReasonUnmanaged))
	}
	check("later")
	out, _ = s.starts("leave", "--yes", idle).ends(0) // once more
	s.shows(out, "already labeled", "1 node has left.")
	budget.lift()
	// A node that is managed again joins as on the first day.
	s.Label(idle, v1alpha1.LabelManaged, nil)
	s.updated(idle)
}

// TestLeaveWithoutCoordinator: the host that coordinates is gone. The command says so after a minute, and removes everything with
// --without-coordinator alone, which an instance that releases nodes makes an error.
func TestLeaveWithoutCoordinator(t *testing.T) {
	t.Parallel()
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
	s.forget("node-2")
	_, said := s.starts("leave", "--without-coordinator", "node-1").ends(1)
	s.shows(said, "an instance on node-1 releases nodes (Lease lockkeeper/lockkeeper)")
	s.Until("node-1", rig.Soon, "to be released after all", func(n *turn.Node) bool { return n.State == v1alpha1.StateAbsent })

	s.Host("node-1").StopLockkeeper()
	s.Eventually("the Lease to be released", func(context.Context) (bool, error) { return s.Epoch() == "", nil })
	_, said = s.starts("leave", "node-2").ends(1)
	s.shows(said, "no instance releases nodes: no instance holds Lease lockkeeper/lockkeeper; waiting 1m for one",
		"no instance has released nodes for 1m", "lockkeeper leave --without-coordinator node-2")
	if got := s.remains("node-2"); !strings.Contains(got, "state=idle") {
		t.Errorf("node-2 has %q", got)
	}
	out, _ := s.starts("leave", "--without-coordinator", "--all", "--yes").ends(0)
	s.shows(out, "2 nodes have left.")
	for _, name := range []string{"node-1", "node-2"} {
		if got := s.remains(name); got != "managed=false" || s.hasHostUpdate(name) {
			t.Errorf("%s has %q, HostUpdate %t", name, got, s.hasHostUpdate(name))
		}
	}
	s.Reports("node-2", string(v1alpha1.ReasonUnmanaged))
}

// TestHostLeaves has hosts give their nodes up, as the removal of the package does: one in the middle of its drain, although the label
// managed=true is on its Node, and one that no coordinator has adopted. What only an admin may remove stays.
func TestHostLeaves(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	s := play(t, 3, 1, "rollout: {settle: 1s}", quick, config("", "lifecycle_conditions", true))
	const name = "node-2"
	h := s.Host(name)
	s.forget(name)
	s.Label(name, v1alpha1.LabelManaged, "true")
	budget := s.block(name)
	s.stage(name)
	s.Commits(name, v1alpha1.StateDraining)
	out, said := s.starts("leave", "--this-host", "--root", h.Root()).ends(0)
	s.shows(said, name+" leaves; waiting up to 2m", "lockkeeper: draining")
	s.shows(out, name+" has left")
	s.Eventually("its conditions to go", func(context.Context) (bool, error) { return !strings.Contains(s.remains(name), "Maintenance"), nil })
	s.Until(name, rig.Soon, "not to be held: the label says managed=true", func(n *turn.Node) bool { return n.Held == "" })
	if got := s.remains(name); got != "last managed=true" {
		t.Errorf("it has %q", got)
	}
	if path := s.path(name); !slices.Contains(path, v1alpha1.StateUncordoning) {
		t.Errorf("it went through %v", path)
	}
	s.reboots(name, 0)
	if got := s.evictions(); got != 0 {
		t.Errorf("%d pods were evicted", got)
	}

	// Another process of the same boot still leaves.
	h.StopLockkeeper()
	_, said = s.starts("leave", "--this-host", "--root", h.Root()).ends(1)
	s.shows(said, "lockkeeper does not run on this host", "lockkeeper leave "+name)
	s.Must(h.StartLockkeeper())
	s.Reports(name, "this host leaves")
	if got := s.remains(name); strings.Contains(got, "host") || strings.Contains(got, "wants") {
		t.Errorf("after a restart it has %q", got)
	}
	// And stays if it is asked to.
	budget.lift()
	s.Must(os.Remove(filepath.Join(stateDir(h), "leaving")))
	s.Must(h.Signal(syscall.SIGHUP))
	s.updated(name)

	// Without a coordinator, and without a state, the host removes its own keys.
	s.starts("leave", "node-3").ends(0)
	s.Host("node-1").StopLockkeeper()
	s.Eventually("the Lease to be released", func(context.Context) (bool, error) { return s.Epoch() == "", nil })
	s.Label("node-3", v1alpha1.LabelManaged, nil)
	s.Until("node-3", rig.Soon, "to publish again", func(n *turn.Node) bool { return n.RawHost != "" && n.State == v1alpha1.StateAbsent })
	s.starts("leave", "--this-host", "--root", s.Host("node-3").Root()).ends(0)
	if got := s.remains("node-3"); got != "" {
		t.Errorf("node-3 has %q", got)
	}
}
