package rollout_test

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// A budget of two lets two nodes be unavailable, but never two of the control
// plane: a stale leader's late grant of the second is backed out, although
// the budget would hold it.
func TestLateGrantOfASecondControlPlaneNode(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	p := policy.Default()
	p.MaxUnavailable.Number = 2
	node := func(name, epoch string, controlPlane bool) turn.Node {
		return turn.Node{
			Name: name, UID: "uid-" + name, ResourceVersion: "1", Created: now.Add(-time.Hour), BootID: "boot-" + name, Ready: true,
			ControlPlane: controlPlane,
			Keys: v1alpha1.Keys{
				State: v1alpha1.StateDraining, Wants: v1alpha1.WantsReboot, Turn: "turn-" + name,
				Host: &v1alpha1.Host{Protocol: 1, NodeUID: "uid-" + name, BootID: "boot-" + name, Managed: true, Drains: true},
				Ack:  v1alpha1.Ack{Turn: "turn-" + name, BootID: "boot-" + name, State: v1alpha1.StateDraining, Report: v1alpha1.ReportSeen},
				Grant: &v1alpha1.Grant{
					Turn: "turn-" + name, Epoch: epoch, NodeUID: "uid-" + name, BootID: "boot-" + name, Wants: v1alpha1.WantsReboot,
					Drains: true, Terms: p.Terms, StartedAt: now, StageAt: now,
				},
			},
		}
	}
	move := func(o rollout.Outcome, i int) *rollout.Move { return o.Verdicts[i].Move }

	out := rollout.Decide(rollout.Snapshot{Now: now, Epoch: "new", Policies: policy.Set{p}, Nodes: []turn.Node{node("a", "new", true), node("b", "old", true)}})
	if m := move(out, 1); m == nil || m.To != v1alpha1.StateUncordoning || m.Reason != v1alpha1.ReasonOverBudget {
		t.Errorf("the late grant: %+v, expected it backed out", m)
	}

	out = rollout.Decide(rollout.Snapshot{Now: now, Epoch: "new", Policies: policy.Set{p}, Nodes: []turn.Node{node("a", "old", true), node("b", "old", true)}})
	if m := move(out, 0); m == nil || m.To != v1alpha1.StateUncordoning {
		t.Errorf("the first of two foreign turns: %+v, expected it backed out", m)
	}
	if m := move(out, 1); m != nil || out.Verdicts[1].Held != v1alpha1.ReasonHandover {
		t.Errorf("the second: %+v held %q, expected it to wait for the first", m, out.Verdicts[1].Held)
	}

	out = rollout.Decide(rollout.Snapshot{Now: now, Epoch: "new", Policies: policy.Set{p}, Nodes: []turn.Node{node("a", "old", true), node("b", "old", false)}})
	for i := range 2 {
		if m := move(out, i); m == nil || m.To != v1alpha1.StateDraining || m.Grant.Epoch != "new" {
			t.Errorf("one of the control plane and a worker: %+v, expected both taken over", m)
		}
	}
}
