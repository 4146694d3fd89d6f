package turn

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestReportsOfAnotherBoot checks what counts if the kubelet reports another boot than the host's records, or none: the
// records advance no turn and say nothing of what the host wants, but a commit keeps the turn from being backed out.
func TestReportsOfAnotherBoot(t *testing.T) {
	for boot, present := range map[string]bool{"b1": true, "b2": false, "": false} {
		n := Node{UID: "u", BootID: boot, Keys: v1alpha1.Keys{
			State: v1alpha1.StateApplying, Turn: "t1", Wants: v1alpha1.WantsApply, Grant: &v1alpha1.Grant{Turn: "t1", NodeUID: "u", BootID: "b1"},
			Host: &v1alpha1.Host{NodeUID: "u", BootID: "b1"}, Ack: v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateApplying, Report: v1alpha1.ReportCommitted},
		}}
		if n.HasReport(v1alpha1.ReportCommitted) != present || n.HostReported() != present || !n.Committed() {
			t.Errorf("boot %q: report %t, host %t, committed %t", boot, n.HasReport(v1alpha1.ReportCommitted), n.HostReported(), n.Committed())
		}
	}
}
