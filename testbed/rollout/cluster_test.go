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

// TestOnlyNode updates a cluster of one: there is nowhere to drain to, so it is not drained, and its own coordinator reboots
// itself.
func TestOnlyNode(t *testing.T) {
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
		t.Errorf("it was marked %d times and went through %v; expected no drain", s.marked(name), s.path(name))
	}
	if got := s.evictions(); got != evicted {
		t.Errorf("%d pods were evicted", got-evicted)
	}
}

// TestSilentHost takes a host's lockkeeper away. Its node, first in the queue, is taken back and reported, the others roll, and
// it gets its turn when its host speaks again.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	const silent = "node-1" // the first of its zone, and no coordinator's host
	// The others have to be heard in that time, or they are backed out for an hour.
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
		t.Errorf("the silent host's node is %s, held %q, unschedulable %t, last %+v", n.State, n.Held, n.Unschedulable, n.Last)
	}
	s.Must(s.Host(silent).StartLockkeeper())
	s.updated(silent)
	s.reboots(silent, 1)
}

// TestFailedUpdate boots one host into its old version: the line stops, until a person says retry. The receiver of
// notifications does not answer meanwhile, which delays nothing; when it answers, it receives each once.
func TestFailedUpdate(t *testing.T) {
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
	s.schedulable("node-2") // it is healthy, so it is given back
	s.Held("node-1", v1alpha1.ReasonHalted)
	s.Held("node-3", v1alpha1.ReasonHalted)
	// The engine stages the same again: the node is not granted what has failed on it.
	s.stage("node-2")
	s.Held("node-2", v1alpha1.ReasonFailed)
	s.reboots("node-2", 1)
	for _, name := range []string{"node-1", "node-3"} {
		s.reboots(name, 0)
		if path := s.path(name); len(path) != 0 && !slices.Equal(path, []v1alpha1.State{v1alpha1.StateIdle}) {
			t.Errorf("%s went through %v while the line was stopped", name, path)
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

// TestHostThatDoesNotComeBack keeps its slot, is called overdue, and stops the line; when it comes back it is done.
func TestHostThatDoesNotComeBack(t *testing.T) {
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
		t.Errorf("it is %s, mark %t; expected rebooting, its slot taken", n.State, n.Mark)
	}
	if p1, p3 := s.path("node-1"), s.path("node-3"); len(p1) > 1 || len(p3) > 1 {
		t.Errorf("meanwhile the others went through %v and %v", p1, p3)
	}
	s.Must(s.Host(name).PowerOn())
	s.updated(name, "node-1", "node-3")
	s.schedulable(name)
}

// TestNodeDeletedInMidTurn deletes the Node object of a host that was drained. The slot is free; the new Node object, which
// the kubelet's restart makes, is another one, and begins again.
func TestNodeDeletedInMidTurn(t *testing.T) {
	t.Parallel()
	const name = "node-2"
	s := play(t, 3, 1, hooked)
	s.keep("backup")
	s.stage(name)
	first := s.Reaches(name, v1alpha1.StateBeforeReboot)
	s.Must(s.ControlPlane.Client().CoreV1().Nodes().Delete(s.Within(rig.Soon), name, metav1.DeleteOptions{}))
	// The other one gets its turn: the slot is free.
	s.release("backup")
	s.stage("node-1")
	s.updated("node-1")
	s.reboots(name, 0)
	s.Host(name).StopKubelet()
	s.Must(s.Host(name).StartKubelet())
	s.updated(name)
	if n := s.Now(name); n.UID == first.UID || n.Last.Turn == first.Turn {
		t.Errorf("it is the Node %s with the last turn %s, expected others than %s and %s", n.UID, n.Last.Turn, first.UID, first.Turn)
	}
	s.schedulable(name)
	s.reboots(name, 1)
}

// longLease is a Lease that no one waits out: longer than any wait here.
const longLease = 4 * time.Minute

// TestLeaderHandover ends terms in the middle of a rollout: a leader that is stopped, a Lease that is blanked, and one that is
// deleted, which stops everything until it is made again.
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

	// A clean stop gives the Lease back, so that the other candidate need not wait for its end: nothing here would last so long.
	epoch, old := s.Epoch(), s.leader()
	old.StopLockkeeper()
	epoch = s.takenOver(name, epoch)
	if s.leader() == old {
		t.Errorf("%s was stopped and leads", old.Name())
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
		t.Errorf("without a Lease it went on to %s", n.State)
	}
	s.Must(s.ControlPlane.ApplyLockkeeper(s.Within(rig.Soon)))
	s.takenOver(name, epoch)
	s.release("check")
	s.whole(name)
}

// leaderless waits until no host says that it coordinates.
func (s *scene) leaderless() error {
	for _, h := range s.Fleet.Hosts {
		err := h.WaitNotify(s.Within(rig.Soon), "not coordinating", func(n simhost.Notify) bool { return !strings.HasPrefix(n.Status, "coordinates") })
		if err != nil {
			return err
		}
	}
	return nil
}
