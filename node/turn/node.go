package turn

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// LabelControlPlane marks control-plane nodes; kubeadm, k3s and RKE2 set it.
const LabelControlPlane = "node-role.kubernetes.io/control-plane"

// Node is what both cores know of a Node object.
type Node struct {
	Name            string
	UID             string
	ResourceVersion string
	Created         time.Time
	// BootID is status.nodeInfo.bootID: the boot that the kubelet last spoke
	// from. Words from another boot do not count.
	BootID string
	Ready  bool
	// ReadySince is since when Ready has been what it is, by the kubelet or the
	// node controller; zero if the Node does not say.
	ReadySince    time.Time
	Unschedulable bool
	Zone          string
	ControlPlane  bool
	// Labels are all of the Node's; shared with the object, never changed.
	Labels map[string]string
	// Volumes are the names in status.volumesAttached.
	Volumes []string

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
		Keys:          v1alpha1.ReadKeys(n.Labels, n.Annotations),
	}
	for _, v := range n.Status.VolumesAttached {
		f.Volumes = append(f.Volumes, string(v.Name))
	}
	_, f.ControlPlane = n.Labels[LabelControlPlane]
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			f.Ready, f.ReadySince = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return f
}

// InTurn reports whether the node is in a turn.
func (n *Node) InTurn() bool { return n.State.InTurn() }

// Ours reports whether the grant on the Node can be read and is this Node
// object's and this turn's. A restored backup, or somebody's typing, may have
// left another's.
func (n *Node) Ours() bool {
	return n.Grant != nil && n.Grant.Turn == n.Turn && n.Grant.NodeUID == n.UID
}

// HostReported reports whether host and wants were written in the boot that the
// kubelet speaks from, by the host of this Node object. Otherwise what the
// host wants is not known: neither vanished nor grown.
func (n *Node) HostReported() bool {
	return n.Host != nil && n.Wants.Known() && n.Host.NodeUID == n.UID &&
		n.Host.BootID == n.BootID && n.BootID != ""
}

// Said reports whether the ack speaks of this turn and of state s, in
// whatever boot.
func (n *Node) HasAck(s v1alpha1.State) bool {
	return n.Turn != "" && n.Ack.Turn == n.Turn && n.Ack.State == s
}

// Says reports whether the ack speaks of this turn and the present state,
// from the boot that the kubelet speaks from. Only such a word lets a turn go
// on: a host that rebooted by itself in mid-drain has not drained.
func (n *Node) HasReport(word v1alpha1.Report) bool {
	return n.HasAck(n.State) && n.Ack.Report == word && n.Ack.BootID == n.BootID && n.BootID != ""
}

// Committed reports whether the turn can no longer be turned round: in
// rebooting and applying after committed, done or failed, in whatever boot it
// was said, and in rebooting as soon as the kubelet speaks from another boot
// than the one that the grant wants ended. A reboot that was called cannot be
// called back, and the host that called it may not have lived to say more.
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

// Rebooted reports whether the kubelet speaks from another boot than the one
// in the grant.
func (n *Node) Rebooted() bool {
	return n.Grant != nil && n.BootID != "" && n.BootID != n.Grant.BootID
}

// Plan is the course of a turn as the grant has it.
func (n *Node) Plan() Plan {
	if n.Grant == nil {
		return Plan{}
	}
	return Plan{Drains: n.Grant.Drains, Reboots: n.Grant.Wants == v1alpha1.WantsReboot}
}
