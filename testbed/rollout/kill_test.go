package rollout

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// halt is a point in a turn at which a test can keep a node for any time.
type halt struct {
	name  string
	state v1alpha1.State
	// there returns when the node is kept at the point and its host's loop is idle.
	there func()
	// lift lets the node continue.
	lift func()
}

// halts returns the points of a whole turn in order. All of them are set before the turn begins, or by the point
// before.
func (s *scene) halts(name string) []halt {
	h := s.Host(name)
	s.keep("storage")
	s.keep("backup")
	s.keep("check")
	budget := s.block(name)
	unblock := h.Logind().Hold(blocker)
	var undelay func()
	seen := func(state v1alpha1.State) func() {
		return func() { s.Reaches(name, state); s.Reports(name, string(state)) }
	}
	return []halt{
		{"before-drain", v1alpha1.StateBeforeDrain, seen(v1alpha1.StateBeforeDrain), func() { s.release("storage") }},
		{"draining", v1alpha1.StateDraining, func() {
			s.Commits(name, v1alpha1.StateDraining)
			s.Reports(name, "1 pods to go")
		}, budget.lift},
		{"before-reboot", v1alpha1.StateBeforeReboot, seen(v1alpha1.StateBeforeReboot), func() { s.release("backup") }},
		{"rebooting before the commit", v1alpha1.StateRebooting, func() {
			s.Reaches(name, v1alpha1.StateRebooting)
			s.Reports(name, "Inhibited")
			if n := s.Now(name); n.Committed() {
				s.T.Errorf("%s has committed despite the inhibitor: %s", name, n.Ack)
			}
		}, func() {
			undelay = h.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "database", Why: "it flushes", Mode: "delay"})
			unblock()
		}},
		{"rebooting after the commit", v1alpha1.StateRebooting, func() {
			s.Commits(name, v1alpha1.StateRebooting)
			s.Reports(name, "the reboot that is under way")
			s.reboots(name, 1)
		}, func() {
			h.SetNextBoot(simhost.NextBoot{WithoutKubelet: true})
			undelay()
		}},
		{"rebooting in the new boot", v1alpha1.StateRebooting, func() {
			s.Must(h.WaitBoots(s.Within(rig.Soon), 2))
			s.Reports(name, "the kubelet to report Ready from this boot")
		}, func() { s.Must(h.StartKubelet()) }},
		{"before-uncordon", v1alpha1.StateBeforeUncordon, seen(v1alpha1.StateBeforeUncordon), func() {
			h.StopKubelet()
			s.Must(s.ControlPlane.SetNodeReady(s.Within(rig.Soon), name, "", false))
			s.release("check")
		}},
		{"uncordoning", v1alpha1.StateUncordoning, func() {
			s.Reaches(name, v1alpha1.StateUncordoning)
			s.Reports(name, "NotReady")
		}, func() { s.Must(h.StartKubelet()) }},
	}
}

// patient lets delay inhibitors hold up a shutdown for as long as a test needs.
func patient(o *rig.Options) { o.Fleet.Host.InhibitDelayMax = 5 * time.Minute }

// whole fails the test unless the node had one complete turn: one drain, one reboot, nothing twice.
func (s *scene) whole(name string) {
	s.T.Helper()
	s.updated(name)
	s.schedulable(name)
	s.reboots(name, 1)
	want := "idle before-drain draining before-reboot rebooting before-uncordon uncordoning idle"
	var path []string
	for _, state := range s.path(name) {
		path = append(path, state.String())
	}
	if got := strings.Join(path, " "); got != want {
		s.T.Errorf("%s went through %s\nexpected %s", name, got, want)
	}
	if n := s.marked(name); n != 1 {
		s.T.Errorf("%s was marked %d times, expected once", name, n)
	}
}

// TestHostKilledInEveryState kills the host's lockkeeper with SIGKILL at every point of a turn.
func TestHostKilledInEveryState(t *testing.T) {
	t.Parallel()
	rig.SoakOnly(t)
	const name = "node-2"
	s := play(t, 2, 1, hooked, patient)
	h := s.Host(name)
	s.forget(name)
	halts := s.halts(name)
	s.stage(name)
	for _, at := range halts {
		at.there()
		before := s.Now(name)
		if before.State != at.state {
			t.Fatalf("expected the node in %s before the kill; it is %s", at.name, before.State)
		}
		pid := h.PID()
		h.Kill()
		t.Logf("killed in %s", at.name)
		s.Must(h.WaitNotify(s.Within(rig.Soon), "back after SIGKILL in "+at.name, func(n simhost.Notify) bool {
			return n.Ready && h.PID() != 0 && h.PID() != pid
		}))
		// The new process must stop at the same point of the same turn.
		at.there()
		if n := s.Now(name); n.Turn != before.Turn || n.State != at.state {
			t.Errorf("after SIGKILL in %s the node is %s in turn %q, expected turn %q", at.name, n.State, n.Turn, before.Turn)
		}
		at.lift()
	}
	s.whole(name)
}

// TestCoordinatorKilledInEveryState kills the lockkeeper that coordinates, on another host, at every point of the turn.
// That host restarts its process, and either candidate takes the turn over.
func TestCoordinatorKilledInEveryState(t *testing.T) {
	t.Parallel()
	rig.SoakOnly(t)
	const name = "node-3"
	s := play(t, 3, 2, hooked, patient,
		config("lease", "duration", 4*time.Second), config("lease", "renew_deadline", 3*time.Second))
	s.forget(name)
	halts := s.halts(name)
	s.stage(name)
	for _, at := range halts {
		at.there()
		var before *turn.Node
		var epoch string
		s.Eventually("the turn to have the epoch of the Lease", func(context.Context) (bool, error) {
			before, epoch = s.Now(name), s.Epoch()
			return before.Grant.Epoch == epoch, nil
		})
		if before.State != at.state {
			t.Fatalf("expected the node in %s before the kill of the coordinator; it is %s", at.name, before.State)
		}
		s.leader().Kill()
		t.Logf("killed the coordinator of term %s in %s", epoch, at.name)
		s.takenOver(name, epoch)
		if n := s.Now(name); n.Turn != before.Turn || n.State != at.state {
			t.Errorf("taken over in %s the node is %s in turn %q, expected turn %q", at.name, n.State, n.Turn, before.Turn)
		}
		at.lift()
	}
	s.whole(name)
}

// TestPausedProcesses stops processes (SIGSTOP) for longer than a Lease lasts. A leader that resumes no longer leads,
// and a host that resumes does nothing that it decided before.
func TestPausedProcesses(t *testing.T) {
	t.Parallel()
	const name = "node-3"
	s := play(t, 3, 2, hooked, config("lease", "duration", 4*time.Second), config("lease", "renew_deadline", 3*time.Second))
	s.forget(name)
	s.keep("storage")
	s.stage(name)
	turnID := s.Reaches(name, v1alpha1.StateBeforeDrain).Turn

	epoch, old := s.Epoch(), s.leader()
	s.Must(old.Signal(syscall.SIGSTOP))
	next := s.takenOver(name, epoch)
	s.Must(s.Host(name).Signal(syscall.SIGSTOP))
	s.Must(old.Signal(syscall.SIGCONT))
	s.release("storage")
	// The coordinator promotes the turn without a report from the stopped host.
	s.Until(name, rig.Soon, "to be draining", func(n *turn.Node) bool { return n.State == v1alpha1.StateDraining })
	s.Must(s.Host(name).Signal(syscall.SIGCONT))
	s.updated(name)
	s.whole(name)
	if n := s.Now(name); n.Last.Turn != turnID {
		t.Errorf("the last turn is %s, expected %s", n.Last.Turn, turnID)
	}
	if now := s.Epoch(); now != next {
		t.Logf("the term %s was followed by %s", next, now)
	}
}
