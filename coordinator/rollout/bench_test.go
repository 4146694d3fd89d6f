package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// BenchmarkDecide is one decision over a fleet of which nobody wants anything
// (idle), over one of which everybody waits for the one that has its turn
// (rolling), which is the most work that a fleet makes for hours, and over one
// of which one is granted its turn and everybody else waits (granting), for which
// they are sorted. `make bench` sets 10,000 nodes beside 1,000.
func BenchmarkDecide(b *testing.B) {
	for _, kind := range []string{"idle", "rolling", "granting"} {
		for _, nodes := range []int{1_000, 10_000, 50_000} {
			b.Run(fmt.Sprintf("%s/nodes=%d", kind, nodes), func(b *testing.B) {
				s := fleetOf(nodes, kind)
				out := rollout.Decide(s)
				granted := 0
				for _, v := range out.Verdicts {
					if v.Move != nil && v.Move.Disturbs() {
						granted++
					}
				}
				if len(out.Verdicts) != nodes || (kind == "rolling") != (out.InTurn == 1) || (kind == "granting") != (granted == 1) || (kind == "idle") != (out.Wanting == 0) {
					b.Fatalf("%d verdicts, %d in a turn, %d granted one, %d want something: not the fleet that was meant", len(out.Verdicts), out.InTurn, granted, out.Wanting)
				}
				b.ReportAllocs()
				for b.Loop() {
					rollout.Decide(s)
				}
			})
		}
	}
}

// fleetOf is a fleet in the order of names, as a leader has it.
func fleetOf(nodes int, kind string) rollout.Snapshot {
	s := rollout.Snapshot{Now: atNoon, Epoch: "e1", Self: "node-00000", Policies: policy.Set{policy.Default()}}
	booted := atNoon.Add(-48 * time.Hour)
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		n := turn.Node{
			Name: name, UID: name + "-uid", ResourceVersion: "7", Created: booted, BootID: "b1", Ready: true, Zone: fmt.Sprint("zone-", i%3),
			Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing, Host: &v1alpha1.Host{
				Protocol: v1alpha1.Protocol, NodeUID: name + "-uid", BootID: "b1", BootTime: booted.Add(time.Duration(i%977) * time.Second),
				Managed: true, OSVersion: "4.1"}},
		}
		if kind != "idle" {
			n.Wants, n.Host.Drains, n.Host.Changes = v1alpha1.WantsReboot, true, anUpdate
		}
		if kind == "rolling" && i == nodes/2 {
			n.State, n.Turn, n.Mark, n.Unschedulable = v1alpha1.StateDraining, "t1", true, true
			n.Grant = &v1alpha1.Grant{
				Turn: "t1", Epoch: "e1", NodeUID: n.UID, BootID: "b1", Wants: v1alpha1.WantsReboot, Drains: true, Changes: anUpdate, OSVersion: "4.1",
				Policy: s.Policies[0].Name, Terms: s.Policies[0].Terms, StartedAt: atNoon.Add(-time.Minute), StageAt: atNoon.Add(-time.Minute),
			}
			n.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateDraining, Report: v1alpha1.ReportCommitted}
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}
