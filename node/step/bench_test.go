package step

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// BenchmarkStep is one step of a host that drains, the state in which it
// takes most of them.
func BenchmarkStep(b *testing.B) {
	o := Observation{
		Node: turn.Node{
			Name: "n1", UID: aUID, BootID: aBoot, Ready: true, Unschedulable: true,
			Keys: v1alpha1.Keys{State: v1alpha1.StateDraining, Turn: aTurn, Mark: true, Wants: v1alpha1.WantsReboot,
				Ack: v1alpha1.Ack{Turn: aTurn, BootID: aBoot, State: v1alpha1.StateDraining, Report: v1alpha1.ReportCommitted},
				Grant: &v1alpha1.Grant{Turn: aTurn, Epoch: aEpoch, NodeUID: aUID, BootID: aBoot, Wants: v1alpha1.WantsReboot, Drains: true,
					Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1"}},
		},
		Self:             v1alpha1.Host{Version: "v1", BootID: aBoot, OSVersion: "4.1"},
		ManagedByDefault: true,
		Sources:          Sources{Complete: true, Wants: v1alpha1.WantsReboot, Drains: true, Changes: []v1alpha1.Change{anUpdate}},
		Shutdown:         ShutdownNone,
		Fresh:            &FreshRead{Lease: Lease{Exists: true, Holder: aEpoch}},
	}
	o.Node.RawHost = v1alpha1.FormatRecord(o.hostRecord(v1alpha1.Ack{}))
	if d := Step(o); d.Do != DoDrain {
		b.Fatalf("the step is %+v, expected to drain", d)
	}
	b.ReportAllocs()
	for b.Loop() {
		Step(o)
	}
}
