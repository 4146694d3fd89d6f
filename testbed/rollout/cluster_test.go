package rollout

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestOnlyNode updates a cluster with one node: pods have no other node to move to, so the host does not drain, and the
// coordinator reboots its own host.
func TestOnlyNode(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-1"
	s := play(t, 1, 1, "rollout: {settle: 1s}")
	s.forget(name)
	s.block(name)
	evicted := s.evictions()
	s.stage(name)
	s.updated(name)
	s.reboots(name, 1)
	if s.marked(name) != 0 || slices.Contains(s.path(name), v1alpha1.StateDraining) {
		t.Errorf("marked %d times, states %v; expected no drain", s.marked(name), s.path(name))
	}
	if got := s.evictions(); got != evicted {
		t.Errorf("%d pods were evicted", got-evicted)
	}
}

// TestSilentHost stops the lockkeeper of one host. The coordinator backs out the turn of that node, which is first in
// the queue, and reports it. The other nodes roll, and the node gets its turn when its host reports again.
func TestSilentHost(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const silent = "node-1" // the first of its zone, and not a candidate
	// The other hosts have to report within this timeout, or the coordinator backs out their turns for an hour.
	s := play(t, 3, 0, "{rollout: {settle: 1s, backoff: 1h}, timeouts: {seen: 20s}}", func(o *rig.Options) {
		o.Fleet.Zones = []string{"a", "b", "c"}
		o.Fleet.Each = func(i int, o *simhost.Options) { o.Coordinator = i == 2 }
	})
	s.forget(silent)
	s.Stop("until all want something")
	s.stage("node-1", "node-2", "node-3")
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		s.Until(name, rig.Soon, "to want a reboot", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsReboot })
	}
	s.Host(silent).StopLockkeeper()
	s.resume()
	s.Held(silent, v1alpha1.ReasonHostSilent)
	s.updated("node-2", "node-3")
	n := s.Now(silent)
	if n.State != v1alpha1.StateIdle || n.Held != v1alpha1.ReasonHostSilent || n.Unschedulable ||
		n.Last == nil || n.Last.Result != v1alpha1.ResultBackedOut || n.Last.Reason != v1alpha1.ReasonHostSilent {
		t.Errorf("the node of the silent host is %s, held %q, unschedulable %t, last %+v", n.State, n.Held, n.Unschedulable, n.Last)
	}
	s.Must(s.Host(silent).StartLockkeeper())
	s.updated(silent)
	s.reboots(silent, 1)
}

// TestFailedUpdate boots one host into its old version. The rollout stops until an admin runs `lockkeeper retry`. In
// the meantime the receiver of notifications does not answer, which delays nothing. When it answers, it gets each
// notification once.
func TestFailedUpdate(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	receiver := newReceiver(t)
	s := play(t, 3, 1, "rollout: {settle: 1s}", func(o *rig.Options) { o.Fleet.Zones = []string{"c", "a", "b"} },
		config("notify", "url", receiver.URL), config("notify", "cluster", "here"), config("notify", "on", []string{"turn-ended", "failed", "halted", "held", "stop"}))
	s.Host("node-2").SetNextBoot(simhost.NextBoot{Rollback: true})
	s.Stop("until all want something")
	s.stage("node-1", "node-2", "node-3")
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		s.Until(name, rig.Soon, "to want a reboot", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsReboot })
	}
	s.forget("node-1")
	s.forget("node-3")
	s.resume()
	failed := s.ended("node-2", v1alpha1.ResultFailed, v1alpha1.ReasonNotUpdated)
	s.schedulable("node-2") // it is healthy, so it finishes its turn
	s.Held("node-1", v1alpha1.ReasonHalted)
	s.Held("node-3", v1alpha1.ReasonHalted)
	// The engine stages the same update again. The node gets no turn for an update that failed on it.
	s.stage("node-2")
	s.Held("node-2", v1alpha1.ReasonFailed)
	s.reboots("node-2", 1)
	for _, name := range []string{"node-1", "node-3"} {
		s.reboots(name, 0)
		if path := s.path(name); len(path) != 0 && !slices.Equal(path, []v1alpha1.State{v1alpha1.StateIdle}) {
			t.Errorf("%s went through %v while the rollout was halted", name, path)
		}
	}
	if got := receiver.messages(); len(got) > 0 {
		t.Errorf("a receiver that does not answer has accepted %v", got)
	}
	receiver.answer()
	before := []string{"stop Stopped", "stop StopLifted", "failed NotUpdated [node-2] " + failed.Last.Turn, "halted Halted " + controlplane.TestPolicy}
	s.received(receiver, before...)
	s.Annotate("node-2", v1alpha1.AnnotationRetry, failed.Last.Turn)
	s.updated("node-1", "node-2", "node-3")
	s.reboots("node-2", 2)
	after := []string{"halted Released " + controlplane.TestPolicy}
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		after = append(after, "turn-ended  ["+name+"] "+s.Now(name).Last.Turn)
	}
	s.received(receiver, append(before, after...)...)
}

// TestHostThatDoesNotComeBack checks that such a host keeps its slot, becomes overdue and halts the rollout, and that
// its turn finishes when the host comes back.
func TestHostThatDoesNotComeBack(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 3, 1, "{rollout: {settle: 1s}, timeouts: {rebooting: 3s}}", func(o *rig.Options) { o.Fleet.Zones = []string{"c", "a", "b"} })
	s.Host(name).SetNextBoot(simhost.NextBoot{StayDown: true})
	s.stage(name)
	s.Must(s.Host(name).WaitDown(s.Within(rig.Soon)))
	s.stage("node-1", "node-3")
	s.forget("node-1")
	s.forget("node-3")
	s.Held(name, v1alpha1.ReasonOverdue)
	s.Held("node-1", v1alpha1.ReasonHalted)
	s.Held("node-3", v1alpha1.ReasonHalted)
	if n := s.Now(name); n.State != v1alpha1.StateRebooting || !n.Mark {
		t.Errorf("the node is %s, mark %t; expected rebooting with its slot", n.State, n.Mark)
	}
	if p1, p3 := s.path("node-1"), s.path("node-3"); len(p1) > 1 || len(p3) > 1 {
		t.Errorf("the other nodes went through %v and %v", p1, p3)
	}
	s.Must(s.Host(name).PowerOn())
	s.updated(name, "node-1", "node-3")
	s.schedulable(name)
}

// TestNodeDeletedInMidTurn deletes the Node object of a drained host, which frees the slot. The kubelet creates a new
// Node object at its restart, and that Node starts from scratch.
func TestNodeDeletedInMidTurn(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 3, 1, hooked)
	s.keep("backup")
	s.stage(name)
	first := s.Reaches(name, v1alpha1.StateBeforeReboot)
	s.Must(s.ControlPlane.Client().CoreV1().Nodes().Delete(s.Within(rig.Soon), name, metav1.DeleteOptions{}))
	// The slot is free, so the other node gets its turn.
	s.release("backup")
	s.stage("node-1")
	s.updated("node-1")
	s.reboots(name, 0)
	s.Host(name).StopKubelet()
	s.Must(s.Host(name).StartKubelet())
	s.updated(name)
	if n := s.Now(name); n.UID == first.UID || n.Last.Turn == first.Turn {
		t.Errorf("the Node has the UID %s and the last turn %s; expected both to differ from %s and %s", n.UID, n.Last.Turn, first.UID, first.Turn)
	}
	s.schedulable(name)
	s.reboots(name, 1)
}

// longLease is the duration of a Lease that does not expire during any wait here.
const longLease = 4 * time.Minute

// TestLeaderHandover ends terms during a rollout: it stops the leader, blanks the Lease, and deletes the Lease. The
// deletion stops everything until the Lease exists again.
func TestLeaderHandover(t *testing.T) {
	t.Parallel()
	const name = "node-3"
	s := play(t, 3, 2, hooked, config("lease", "duration", longLease), config("lease", "renew_deadline", longLease*3/4))
	s.keep("storage")
	s.keep("backup")
	s.keep("check")
	s.forget(name)
	s.stage(name)
	s.Reaches(name, v1alpha1.StateBeforeDrain)

	// A clean stop releases the Lease, so the other candidate does not wait for it to expire. No wait here would be
	// long enough for that.
	epoch, old := s.Epoch(), s.leader()
	old.StopLockkeeper()
	epoch = s.takenOver(name, epoch)
	if s.leader() == old {
		t.Errorf("%s leads although it was stopped", old.Name())
	}
	s.Must(old.StartLockkeeper())
	s.release("storage")
	s.Reaches(name, v1alpha1.StateBeforeReboot)

	s.PatchLease(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	epoch = s.takenOver(name, epoch)

	leases := s.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace)
	s.Must(leases.Delete(s.Within(rig.Soon), v1alpha1.DefaultLeaseName, metav1.DeleteOptions{}))
	s.Must(s.leaderless())
	s.release("backup")
	for range 3 {
		s.alive(name)
	}
	if n := s.Now(name); n.State != v1alpha1.StateBeforeReboot {
		t.Errorf("the node reached %s without a Lease", n.State)
	}
	s.Must(s.ControlPlane.ApplyLockkeeper(s.Within(rig.Soon)))
	s.takenOver(name, epoch)
	s.release("check")
	s.whole(name)
}

// leaderless waits until no host reports that it coordinates.
func (s *scene) leaderless() error {
	for _, h := range s.Fleet.Hosts {
		err := h.WaitNotify(s.Within(rig.Soon), "not coordinating", func(n simhost.Notify) bool { return !strings.HasPrefix(n.Status, "coordinates") })
		if err != nil {
			return err
		}
	}
	return nil
}
