package rollout

import (
	"context"
	"slices"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// alive makes the host's loop run and publish a change, a sentinel that appears and disappears. Anything that the host
// did not do by then, it did not decide to do.
func (s *scene) alive(name string) {
	s.T.Helper()
	const sentinel = "/run/reboot-required"
	has := func(n *turn.Node) bool {
		return n.Host != nil && slices.ContainsFunc(n.Host.Changes, func(c v1alpha1.Change) bool { return c.Name == sentinel })
	}
	s.Must(s.Host(name).WriteFile(sentinel, ""))
	s.Until(name, rig.Soon, "to show a new sentinel", has)
	s.Must(s.Host(name).RemoveFile(sentinel))
	s.Until(name, rig.Soon, "to show that the sentinel is gone", func(n *turn.Node) bool { return n.Host != nil && !has(n) })
}

// nothingLeaves fails the test if a pod is evicted from a node without protected pods while its host is alive. It
// leaves two pods for a later eviction.
func (s *scene) nothingLeaves(b *blockade, evicted int) {
	s.T.Helper()
	b.lift()
	b.bait()
	name := b.node
	for range 3 {
		s.alive(name)
	}
	if got := s.evictions(); got != evicted {
		s.T.Errorf("%d pods were evicted from %s", got-evicted, name)
	}
}

var quick = config("sources", "poll_interval", 200*time.Millisecond)

// TestAdminsCordon has an admin cordon one node before there is an update, and another node while it waits for its
// turn. Both get their turns like any other node, are never marked, and stay cordoned.
func TestAdminsCordon(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	s := play(t, 3, 1, hooked)
	for _, name := range []string{"node-2", "node-3"} {
		s.forget(name)
	}
	s.Cordon("node-2")
	s.keep("backup")
	budget := s.block("node-3")
	s.stage("node-2", "node-3")
	// A node that is already unavailable needs no room in the budget. While node-2 uses the budget, node-3 has to
	// wait.
	s.Reaches("node-2", v1alpha1.StateBeforeReboot)
	s.Held("node-3", v1alpha1.ReasonBudget)
	s.Cordon("node-3")
	s.release("backup")
	s.updated("node-2")
	// Two nodes are still unavailable and one is allowed, so an admin has to uncordon one.
	s.Held("node-3", v1alpha1.ReasonBudget)
	if n := s.Now("node-2"); !n.Unschedulable {
		t.Error("node-2 was uncordoned")
	}
	s.Uncordon("node-2")
	s.Commits("node-3", v1alpha1.StateDraining)
	budget.lift()
	s.updated("node-3")
	for _, name := range []string{"node-2", "node-3"} {
		if n := s.marked(name); n != 0 {
			t.Errorf("%s was marked %d times", name, n)
		}
		s.reboots(name, 1)
	}
	if n := s.Now("node-3"); !n.Unschedulable || n.Mark {
		t.Errorf("node-3: unschedulable %t, mark %t; expected the cordon of an admin", n.Unschedulable, n.Mark)
	}
	if got := s.evictions(); got != 1 {
		t.Errorf("%d pods were evicted, expected only the one on node-3", got)
	}
}

// TestPauseInMidTurn freezes a draining node, with an annotation value that looks like "not paused".
func TestPauseInMidTurn(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"disk change", "false"} {
		t.Run(value, func(t *testing.T) {
			rig.Sample(t, 2)
			t.Parallel()
			const name = "node-2"
			s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
			budget := s.block(name)
			s.forget(name)
			s.stage(name)
			s.Commits(name, v1alpha1.StateDraining)
			s.Reports(name, "1 pods to go")
			s.Annotate(name, v1alpha1.AnnotationPaused, value)
			s.Until(name, rig.Soon, "to be frozen", func(n *turn.Node) bool {
				return n.Grant != nil && n.Grant.PausedSince != nil && n.Held == v1alpha1.ReasonPaused
			})
			s.Reports(name, string(v1alpha1.ReasonPaused))
			evicted := s.evictions()
			s.nothingLeaves(budget, evicted)
			if n := s.Now(name); n.State != v1alpha1.StateDraining || !n.Mark || !n.Unschedulable {
				t.Errorf("the paused node is %s, mark %t, unschedulable %t; expected draining with its cordon", n.State, n.Mark, n.Unschedulable)
			}
			s.Annotate(name, v1alpha1.AnnotationPaused, nil)
			s.updated(name)
			s.schedulable(name)
			s.reboots(name, 1)
			if got := s.evictions(); got != evicted+2 {
				t.Errorf("%d pods were evicted after the pause, expected 2", got-evicted)
			}
			if s.froze(name) != 1 {
				t.Errorf("frozen %d times, expected once", s.froze(name))
			}
		})
	}
}

// TestEmergencyStopInMidDrain stops everything with one write to the Lease, which changes no Node.
func TestEmergencyStopInMidDrain(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 3, 2, "rollout: {settle: 1s}", quick)
	budget := s.block(name)
	s.stage(name)
	s.Commits(name, v1alpha1.StateDraining)
	s.Reports(name, "1 pods to go")
	s.Stop("smoke in rack 4")
	began := time.Now()
	s.stage("node-3")
	s.Held(name, v1alpha1.ReasonStopped)
	s.Held("node-3", v1alpha1.ReasonStopped)
	s.Reports(name, "Stopped")
	t.Logf("the host stopped %v after the write", time.Since(began).Round(time.Millisecond))
	evicted := s.evictions()
	s.nothingLeaves(budget, evicted)
	if n := s.Now("node-3"); n.InTurn() {
		t.Errorf("node-3 got its turn during the stop: %s", n.State)
	}
	s.resume()
	began = time.Now()
	s.Until(name, rig.Soon, "to continue after the stop", func(n *turn.Node) bool {
		return n.State != v1alpha1.StateDraining || n.HasReport(v1alpha1.ReportDone)
	})
	t.Logf("the node continued %v after the stop was lifted", time.Since(began).Round(time.Millisecond))
	s.updated(name, "node-3")
	s.reboots(name, 1)
}

// TestEmergencyStopBeforeTheCommit sets the stop while an inhibitor keeps the host from committing to the reboot, and
// then removes the inhibitor.
func TestEmergencyStopBeforeTheCommit(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
	unblock := s.Host(name).Logind().Hold(blocker)
	s.stage(name)
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, "Inhibited")
	s.Stop("smoke")
	s.Held(name, v1alpha1.ReasonStopped)
	unblock()
	s.Reports(name, "Stopped")
	for range 3 {
		s.alive(name)
	}
	if n := s.Now(name); n.Committed() {
		t.Errorf("committed during the stop: %s", n.Ack)
	}
	s.reboots(name, 0)
	s.resume()
	s.updated(name)
	s.reboots(name, 1)
}

// TestLastLookBeforeTheCommit changes what a host has to read right before its commit, while an inhibitor keeps it from
// committing: no process leads any more, and the drained node has a new pod.
func TestLastLookBeforeTheCommit(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
	budget := s.block(name)
	budget.lift()
	unblock := s.Host(name).Logind().Hold(blocker)
	s.stage(name)
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, "Inhibited")
	epoch := s.Epoch()
	s.Host("node-1").StopLockkeeper()
	s.Eventually("the stopped leader to release the Lease", func(context.Context) (bool, error) { return s.Epoch() == "", nil })
	budget.bait()
	evicted := s.evictions()
	unblock()
	s.Reports(name, string(v1alpha1.ReasonHandover))
	for range 3 {
		s.alive(name)
	}
	if n := s.Now(name); n.Committed() {
		t.Errorf("committed to a turn of a term that is over: %s", n.Ack)
	}
	s.Must(s.Host("node-1").StartLockkeeper())
	s.takenOver(name, epoch)
	s.updated(name)
	s.reboots(name, 1)
	if got := s.evictions(); got != evicted+1 {
		t.Errorf("%d pods were evicted before the commit, expected only the late one", got-evicted)
	}
}
