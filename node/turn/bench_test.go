package turn

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// BenchmarkStep is one step of a host that drains, the state in which it
// takes most of them.
func BenchmarkStep(b *testing.B) {
	o := Observation{
		Node: Node{
			Name: "n1", UID: aUID, BootID: aBoot, Ready: true, Unschedulable: true,
			Keys: v1alpha1.Keys{State: v1alpha1.StateDraining, Turn: aTurn, Mark: true, Wants: v1alpha1.WantsReboot,
				Ack: v1alpha1.Ack{Turn: aTurn, BootID: aBoot, State: v1alpha1.StateDraining, Word: v1alpha1.WordCommitted},
				Grant: &v1alpha1.Grant{Turn: aTurn, Epoch: aEpoch, NodeUID: aUID, BootID: aBoot, Wants: v1alpha1.WantsReboot, Drains: true,
					Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1"}},
		},
		Self:             v1alpha1.Host{Version: "v1", BootID: aBoot, OSVersion: "4.1"},
		ManagedByDefault: true,
		Sources:          Sources{Complete: true, Wants: v1alpha1.WantsReboot, Drains: true, Changes: []v1alpha1.Change{anUpdate}},
		Shutdown:         ShutdownNone,
		Look:             &Look{Lease: Lease{Exists: true, Holder: aEpoch}},
	}
	o.Node.RawHost = v1alpha1.FormatRecord(o.self())
	if d := Step(o); d.Do != DoDrain {
		b.Fatalf("the step is %+v, expected to drain", d)
	}
	b.ReportAllocs()
	for b.Loop() {
		Step(o)
	}
}

// BenchmarkFromNode is what it takes to read the facts of one Node object,
// which a leader does for all of them before each decision.
func BenchmarkFromNode(b *testing.B) {
	booted := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	host := v1alpha1.FormatRecord(v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "v1.2.3", NodeUID: aUID, BootID: aBoot, BootTime: booted, Started: booted, Managed: true,
		Drains: true, Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1",
	})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: aUID, ResourceVersion: "7",
		Labels:      map[string]string{v1alpha1.LabelState: string(v1alpha1.StateIdle), v1alpha1.LabelWants: string(v1alpha1.WantsReboot)},
		Annotations: map[string]string{v1alpha1.AnnotationHost: host},
	}}
	if f := FromNode(n); f.Host == nil || f.Wants != v1alpha1.WantsReboot {
		b.Fatalf("the facts are %+v, expected a host that wants a reboot", f)
	}
	b.ReportAllocs()
	for b.Loop() {
		FromNode(n)
	}
}
