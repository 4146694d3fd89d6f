package turn

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestFromNode compares the facts of one Node object with what was written into it.
func TestFromNode(t *testing.T) {
	since := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(since.Add(-time.Hour)),
			Labels: map[string]string{corev1.LabelTopologyZone: "z1", LabelControlPlane: ""}},
		Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			NodeInfo:        corev1.NodeSystemInfo{BootID: "b1"},
			VolumesAttached: []corev1.AttachedVolume{{Name: "v1"}, {Name: "v2"}},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(since.Add(time.Hour))},
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)},
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(since.Add(time.Hour))},
			},
		},
	}
	f := FromNode(n)
	if f.Name != "n1" || f.UID != "u1" || f.ResourceVersion != "7" || !f.Created.Equal(since.Add(-time.Hour)) || f.BootID != "b1" ||
		!f.Unschedulable || f.Zone != "z1" || !f.ControlPlane || len(f.Volumes) != 2 || f.Volumes[1] != "v2" {
		t.Errorf("the facts are %+v", f)
	}
	for status, ready := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false} {
		n.Status.Conditions[1].Status = status
		if f := FromNode(n); f.Ready != ready || !f.ReadySince.Equal(since) {
			t.Errorf("with Ready=%s: ready %t since %v", status, f.Ready, f.ReadySince)
		}
	}
	// The API server takes 9999-12-31T23:59:59-01:00 from a kubelet, and JSON has no such year in UTC.
	n.Status.Conditions[1].LastTransitionTime = metav1.NewTime(time.Date(10000, 1, 1, 0, 59, 59, 0, time.UTC))
	if f := FromNode(n); !f.ReadySince.IsZero() {
		t.Errorf("ready since %v", f.ReadySince)
	}
	if f := FromNode(&corev1.Node{}); f.Ready || f.ControlPlane || !f.ReadySince.IsZero() {
		t.Errorf("the facts of an empty Node are %+v", f)
	}
}

// TestReports changes one thing at a time of a Node whose grant, host record and ack all belong to its turn, and says what the Node
// no longer proves.
func TestReports(t *testing.T) {
	const ours, reported, acked, report = "ours ", "reported ", "acked ", "report "
	for _, c := range []struct {
		name   string
		change func(n *Node)
		want   string
	}{
		{"nothing", func(*Node) {}, ours + reported + acked + report},
		{"no grant", func(n *Node) { n.Grant = nil }, reported + acked + report},
		{"the grant of another turn", func(n *Node) { n.Grant.Turn = "t0" }, reported + acked + report},
		{"the grant of another Node", func(n *Node) { n.Grant.NodeUID = "u0" }, reported + acked + report},
		{"no record of the host", func(n *Node) { n.Host = nil }, ours + acked + report},
		{"wants is not known", func(n *Node) { n.Wants = "" }, ours + acked + report},
		{"the record is about another Node", func(n *Node) { n.Host.NodeUID = "u0" }, ours + acked + report},
		{"the record is from another boot", func(n *Node) { n.Host.BootID = "b0" }, ours + acked + report},
		{"the ack is from another boot", func(n *Node) { n.Ack.BootID = "b0" }, ours + reported + acked},
		{"no boot is known", func(n *Node) { n.BootID, n.Host.BootID, n.Ack.BootID = "", "", "" }, ours + acked},
		{"the ack is about another turn", func(n *Node) { n.Ack.Turn = "t0" }, ours + reported},
		{"no turn", func(n *Node) { n.Turn, n.Ack.Turn = "", "" }, reported},
		{"the ack is about another state", func(n *Node) { n.Ack.State = v1alpha1.StateBeforeDrain }, ours + reported},
		{"another report", func(n *Node) { n.Ack.Report = v1alpha1.ReportSeen }, ours + reported + acked},
	} {
		n := Node{UID: "u1", BootID: "b1"}
		n.State, n.Wants, n.Turn = v1alpha1.StateDraining, v1alpha1.WantsReboot, "t1"
		n.Grant = &v1alpha1.Grant{Turn: "t1", NodeUID: "u1", BootID: "b1"}
		n.Host = &v1alpha1.Host{NodeUID: "u1", BootID: "b1"}
		n.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateDraining, Report: v1alpha1.ReportDone}
		c.change(&n)
		var got strings.Builder
		for _, p := range []struct {
			holds bool
			name  string
		}{{n.Ours(), ours}, {n.HostReported(), reported}, {n.HasAck(v1alpha1.StateDraining), acked}, {n.HasReport(v1alpha1.ReportDone), report}} {
			if p.holds {
				got.WriteString(p.name)
			}
		}
		if got.String() != c.want {
			t.Errorf("%s: %q, expected %q", c.name, got.String(), c.want)
		}
	}
}

// TestCommitted says for each state and report whether the turn can still be backed out.
func TestCommitted(t *testing.T) {
	reports := []v1alpha1.Report{"", v1alpha1.ReportSeen, v1alpha1.ReportRefused, v1alpha1.ReportCommitted, v1alpha1.ReportDone, v1alpha1.ReportFailed}
	for _, c := range []struct {
		state     v1alpha1.State
		grantBoot string
		boot      string
		want      []bool // by report
	}{
		{v1alpha1.StateDraining, "b1", "b1", []bool{false, false, false, false, false, false}},
		{v1alpha1.StateDraining, "b0", "b1", []bool{false, false, false, false, false, false}},
		{v1alpha1.StateBeforeUncordon, "b0", "b1", []bool{false, false, false, false, false, false}},
		{v1alpha1.StateRebooting, "b1", "b1", []bool{false, false, false, true, true, true}},
		{v1alpha1.StateRebooting, "b0", "b1", []bool{true, true, true, true, true, true}},
		{v1alpha1.StateRebooting, "b1", "", []bool{false, false, false, true, true, true}},
		{v1alpha1.StateApplying, "b1", "b1", []bool{false, false, false, true, true, true}},
		{v1alpha1.StateApplying, "b0", "b1", []bool{false, false, false, true, true, true}},
	} {
		for i, report := range reports {
			n := Node{BootID: c.boot}
			n.State, n.Turn = c.state, "t1"
			n.Grant = &v1alpha1.Grant{Turn: "t1", BootID: c.grantBoot}
			if report != "" {
				n.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b0", State: c.state, Report: report}
			}
			if got := n.Committed(); got != c.want[i] {
				t.Errorf("%s granted for boot %q, now in %q, report %q: committed %t, expected %t", c.state, c.grantBoot, c.boot, report, got, c.want[i])
			}
		}
	}
	n := Node{BootID: "b1"}
	n.State, n.Turn = v1alpha1.StateRebooting, "t1"
	n.Ack = v1alpha1.Ack{Turn: "t0", BootID: "b1", State: v1alpha1.StateRebooting, Report: v1alpha1.ReportCommitted}
	if n.Committed() || n.Rebooted() {
		t.Error("a turn with no readable grant is committed by another turn's report, or has rebooted")
	}
}

func TestPlanOfGrant(t *testing.T) {
	var n Node
	if got := n.Plan(); got != (Plan{}) {
		t.Errorf("without a grant the plan is %+v", got)
	}
	for _, c := range []struct {
		grant v1alpha1.Grant
		want  Plan
	}{
		{v1alpha1.Grant{Wants: v1alpha1.WantsReboot, Drains: true}, Plan{Drains: true, Reboots: true}},
		{v1alpha1.Grant{Wants: v1alpha1.WantsReboot}, Plan{Reboots: true}},
		{v1alpha1.Grant{Wants: v1alpha1.WantsDrain, Drains: true}, Plan{Drains: true}},
		{v1alpha1.Grant{Wants: v1alpha1.WantsApply}, Plan{}},
	} {
		n.Grant = &c.grant
		if got := n.Plan(); got != c.want {
			t.Errorf("%s, drains %t: the plan is %+v, expected %+v", c.grant.Wants, c.grant.Drains, got, c.want)
		}
	}
}
