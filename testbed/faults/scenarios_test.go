package faults

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/lifecycle"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// scenario is a course of events with one turn of the guest. play calls arm at the first point where the kill may
// happen. It returns when the update is staged and nothing blocks the turn any more.
type scenario struct {
	name string
	play func(f *killFleet, arm func())
}

var (
	// plain is only a turn.
	plain = scenario{"a turn", func(f *killFleet, arm func()) {
		arm()
		f.stage()
	}}
	// midway arms during the turn, for writes that happen all the time.
	midway = scenario{"the middle of a turn", func(f *killFleet, arm func()) {
		f.Keep("backup")
		f.stage()
		f.reaches(v1alpha1.StateBeforeReboot)
		arm()
		f.killed()
		f.Release("backup")
	}}
	// comesBack sets managed=false on a node and removes it again before the node's turn.
	comesBack = scenario{"managed=false and back", func(f *killFleet, arm func()) {
		arm()
		f.Label(guest, v1alpha1.LabelManaged, "false")
		f.until(guest, "to be unmanaged", func(n *turn.Node) bool {
			return n.State == v1alpha1.StateAbsent && n.Held == v1alpha1.ReasonUnmanaged
		})
		f.Label(guest, v1alpha1.LabelManaged, nil)
		f.until(guest, "to be idle again", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })
		f.stage()
	}}
	// handover stops the coordinator during the turn, so that a successor takes over.
	handover = scenario{"a handover during the turn", func(f *killFleet, arm func()) {
		f.Keep("storage")
		f.stage()
		epoch := f.reaches(v1alpha1.StateBeforeDrain).Grant.Epoch
		arm()
		f.Must(f.Fleet.Host(leader).Signal(syscall.SIGTERM))
		f.until(guest, "to be taken over", func(n *turn.Node) bool { return n.Grant != nil && n.Grant.Epoch != epoch })
		f.killed()
		f.Release("storage")
	}}
	// waits has a node wait for the budget, which a cordoned node uses up. The node then stops wanting a reboot, and
	// later wants one again.
	waits = scenario{"a want that waits", func(f *killFleet, arm func()) {
		held := func() {
			f.until(guest, "to be held", func(n *turn.Node) bool { return n.Held == v1alpha1.ReasonBudget })
		}
		f.Patch(leader, map[string]any{"spec": map[string]any{"unschedulable": true}})
		arm()
		f.stage()
		held()
		f.Must(f.guest().ResetStatus())
		f.Referee.WantCancelled(guest)
		f.until(guest, "to want nothing and not to be held", func(n *turn.Node) bool {
			return n.Held == "" && n.Wants == v1alpha1.WantsNothing
		})
		f.stage()
		held()
		f.Referee.AdminUncordon(leader)
		f.Patch(leader, map[string]any{"spec": map[string]any{"unschedulable": nil}})
	}}
	scenarios = []*scenario{&plain, &midway, &comesBack, &handover, &waits}
)

// stage stages the guest's next update.
func (f *killFleet) stage() {
	f.T.Helper()
	f.update++
	f.Referee.WantMade(guest)
	f.Must(f.guest().StageUpdate(f.version()))
}

func (f *killFleet) version() string { return fmt.Sprintf("4.%d.0", f.update) }

// reaches waits until the guest's host has acknowledged the turn in this state.
func (f *killFleet) reaches(state v1alpha1.State) *turn.Node {
	f.T.Helper()
	return f.until(guest, "to be "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.Turn != "" && n.Ack.Turn == n.Turn && n.Grant != nil
	})
}

// killed waits until the gun has fired, if it is loaded.
func (f *killFleet) killed() {
	f.T.Helper()
	f.gun.mu.Lock()
	hit := f.gun.hit
	f.gun.mu.Unlock()
	if hit == nil {
		return
	}
	select {
	case <-hit:
	case <-f.Within(rig.Soon).Done():
		f.T.Fatal("the write at which the process is killed does not come")
	}
}

// run plays a scenario, with a kill at p unless p is nil, and checks the turn.
func (f *killFleet) run(s *scenario, p *point) {
	f.T.Helper()
	f.Must(f.Referee.Sync(f.Within(rig.Soon)))
	ended, reboots, pids := f.turns(), f.guest().Reboots(), f.pids()
	s.play(f, func() {
		if p != nil {
			f.gun.arm(*p)
		}
	})
	f.killed()
	h := f.guest()
	n := f.until(guest, "to be back with "+f.version(), func(n *turn.Node) bool {
		return h.Version() == f.version() && n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready &&
			n.Wants == v1alpha1.WantsNothing && n.Last != nil && n.Turn == "" && n.HostReported()
	})
	if n.Last.Result != v1alpha1.ResultDone || n.Last.Reason != "" {
		f.T.Errorf("the turn ended %s %s, expected Done", n.Last.Result, n.Last.Reason)
	}
	if n.Unschedulable || n.Mark || n.Grant != nil || len(n.Hooks) > 0 {
		f.T.Errorf("idle after the turn: unschedulable %t, mark %t, grant %t, hooks %v", n.Unschedulable, n.Mark, n.Grant != nil, n.Hooks)
	}
	f.published(n.Last.Turn)
	f.unconditional()
	if got := h.Reboots() - reboots; got != 1 {
		f.T.Errorf("%d reboots, expected one", got)
	}
	f.Must(f.WaitWork(f.Within(rig.Soon)))
	f.Must(f.Referee.Sync(f.Within(rig.Soon)))
	got := f.turns()
	ended[v1alpha1.ResultDone]++
	if !slices.Equal(flat(got), flat(ended)) {
		f.T.Errorf("turns by result: %v, expected %v", got, ended)
	}
	if p != nil && slices.Equal(pids, f.pids()) {
		f.T.Error("the gun did not kill a process")
	}
	f.gun.reset()
	f.classified()
}

// published waits until the guest's HostUpdate contains nothing of the turn except its record.
func (f *killFleet) published(turnID string) {
	f.T.Helper()
	client, err := kube.ConnectConfig(f.ControlPlane.AdminConfig(), "testbed", "", 20, 20)
	f.Must(err)
	ctx := f.Within(rig.Soon)
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		u, err := kube.ReadHostUpdate(ctx, client, guest)
		if err == nil && u != nil {
			s := &u.Status
			if string(s.BootID) == f.guest().BootID() && s.State == "idle" && s.Wants == v1alpha1.WantsNothing && s.Turn == nil && s.Drain == nil &&
				len(s.Blockers) == 0 && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionComplete) &&
				meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionBlocked) && len(s.History) > 0 && string(s.History[0].Turn) == turnID {
				tick.Stop()
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.T.Fatalf("after turn %s the HostUpdate is still %+v (%v)", turnID, u, err)
		}
	}
}

// unconditional waits until the guest has no lifecycle condition.
func (f *killFleet) unconditional() {
	f.T.Helper()
	_, err := f.ControlPlane.WaitNode(f.Within(rig.Soon), guest, "to have no lifecycle condition", func(n *corev1.Node) bool {
		return n != nil && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return slices.Contains(lifecycle.Types, c.Type) })
	})
	f.Must(err)
}

func (f *killFleet) pids() []int {
	return []int{f.Fleet.Host(leader).PID(), f.guest().PID()}
}

// turns counts the finished turns by their result.
func (f *killFleet) turns() map[v1alpha1.Result]int { return f.Referee.Report().Turns }

func flat(m map[v1alpha1.Result]int) []string {
	var all []string
	for k, v := range m {
		if v != 0 {
			all = append(all, fmt.Sprint(k, v))
		}
	}
	slices.Sort(all)
	return all
}

// leads waits until a host coordinates.
func (f *killFleet) leads() {
	f.T.Helper()
	ctx := f.Within(rig.Soon)
	leases := f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace)
	for tick := time.Tick(50 * time.Millisecond); ; {
		l, err := leases.Get(ctx, v1alpha1.DefaultLeaseName, metav1.GetOptions{})
		f.Must(err)
		if h := l.Spec.HolderIdentity; h != nil && *h != "" && time.Since(l.Spec.RenewTime.Time) < time.Second {
			return
		}
		<-tick
	}
}
