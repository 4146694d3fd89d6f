package turn

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// BenchmarkFromNode is what it takes to read the facts of one Node object,
// which a leader does for all of them before each decision.
func BenchmarkFromNode(b *testing.B) {
	booted := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	host := v1alpha1.FormatRecord(v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "v1.2.3", NodeUID: "u1", BootID: "b1", BootTime: booted, Started: booted, Managed: true,
		Drains: true, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}}, OSVersion: "4.1",
	})
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "u1", ResourceVersion: "7",
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
