package turn

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// LabelControlPlane marks control-plane nodes; kubeadm, k3s and RKE2 set it.
const LabelControlPlane = "node-role.kubernetes.io/control-plane"

// Node is what a Node object says. The decisions of the host and of the coordinator are
// made from it.
type Node struct {
	Name            string
	UID             string
	ResourceVersion string
	Created         time.Time
	// BootID is status.nodeInfo.bootID: the boot that the kubelet last reported. Reports
	// from another boot do not count.
	BootID string
	Ready  bool
	// ReadySince is when Ready last changed; zero if the Node does not say.
	ReadySince    time.Time
	Unschedulable bool
	Zone          string
	ControlPlane  bool
	// Labels are all labels of the Node. They are shared with the object; do not change
	// them.
	Labels map[string]string
	// Volumes are the names in status.volumesAttached.
	Volumes []string
	Owned

	v1alpha1.Keys
}

// FromNode reads the facts of a Node object.
func FromNode(n *corev1.Node) Node {
	f := Node{
		Name: n.Name, UID: string(n.UID), ResourceVersion: n.ResourceVersion,
		Created:       n.CreationTimestamp.Time,
		BootID:        n.Status.NodeInfo.BootID,
		Unschedulable: n.Spec.Unschedulable,
		Zone:          n.Labels[corev1.LabelTopologyZone],
		Labels:        n.Labels,
		Owned:         owner(n),
		Keys:          v1alpha1.ReadKeys(n.Labels, n.Annotations),
	}
	for _, v := range n.Status.VolumesAttached {
		f.Volumes = append(f.Volumes, string(v.Name))
	}
	_, f.ControlPlane = n.Labels[LabelControlPlane]
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if f.Ready = c.Status == corev1.ConditionTrue; v1alpha1.Encodable(c.LastTransitionTime.Time) {
				f.ReadySince = c.LastTransitionTime.Time
			}
		}
	}
	if f.HostReported() {
		// A leader of thousands of Nodes compares these in each decision. Equal strings in the same
		// memory are compared without reading it.
		f.Host.NodeUID, f.Host.BootID = f.UID, f.BootID
	}
	return f
}

// InTurn reports whether the node is in a turn.
func (n *Node) InTurn() bool { return n.State.InTurn() }

// Ours reports whether the grant on the Node can be read and belongs to this Node object
// and this turn. A restored backup, or a user's edit, may have left another grant.
func (n *Node) Ours() bool {
	return n.Grant != nil && n.Grant.Turn == n.Turn && n.Grant.NodeUID == n.UID
}

// HostReported reports whether the host of this Node object wrote host and wants in the
// boot that the kubelet reports. Otherwise what the host wants is unknown: it has
// neither vanished nor grown.
func (n *Node) HostReported() bool {
	return n.Host != nil && n.Wants.Known() && n.Host.NodeUID == n.UID &&
		n.Host.BootID == n.BootID && n.BootID != ""
}

// HasAck reports whether the ack is about this turn and state s, from any boot.
func (n *Node) HasAck(s v1alpha1.State) bool {
	return n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == s
}

// HasReport reports whether the ack has this report about this turn and the present
// state, from the boot that the kubelet reports. Only such a report advances a turn: a
// host that rebooted by itself during the drain has not drained.
func (n *Node) HasReport(report v1alpha1.Report) bool {
	return n.HasAck(n.State) && n.Ack.Report == report && n.Ack.BootID == n.BootID && n.BootID != ""
}

// Committed reports whether the turn can no longer be backed out. That is so in
// rebooting and applying after committed, done or failed, from any boot. In rebooting it
// is also so once the kubelet reports another boot than the grant's. A reboot that was
// called cannot be called off, and the host may not have had the time to report it.
func (n *Node) Committed() bool {
	if n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying {
		return false
	}
	if n.HasAck(n.State) {
		switch n.Ack.Report {
		case v1alpha1.ReportCommitted, v1alpha1.ReportDone, v1alpha1.ReportFailed:
			return true
		}
	}
	return n.State == v1alpha1.StateRebooting && n.Rebooted()
}

// Rebooted reports whether the kubelet reports another boot than the grant's.
func (n *Node) Rebooted() bool {
	return n.Grant != nil && n.BootID != "" && n.BootID != n.Grant.BootID
}

// Plan returns the plan of the turn, from the grant.
func (n *Node) Plan() Plan {
	if n.Grant == nil {
		return Plan{}
	}
	return PlanOf(n.Grant)
}
