package turn

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// The kinds of marks.
const (
	markTaint      = "taint"
	markLabel      = "label"
	markAnnotation = "annotation"
)

// Mark is something on a Node by which another program says that it works on the node, or
// that the node goes away.
//
// A mark holds only the node that it is on. A kubelet may set any annotation and most labels
// of its own Node, so a mark must not hold another node.
type Mark struct {
	Owner string
	Kind  string // taint, label or annotation
	Key   string
	// Value is the value that counts. If it is "", Not is the only value that does not count,
	// or Differs is the annotation whose value does not count. If all are "", every value
	// counts. An absent key never does.
	Value, Not, Differs string
	Means               string
}

const (
	mco  = "machineconfiguration.openshift.io/"
	nth  = "aws-node-termination-handler/"
	fluo = "flatcar-linux-update.v1.flatcar-linux.net/"
	cluo = "container-linux-update.v1.coreos.com/"
)

// Marks returns the marks of other owners, in the order in which they are checked. docs/marks.md
// is rendered from it.
//
// Not in the table is what does not say that a program works on the node now: keys that
// another reboot manager leaves on a node (FLUO's reboot-needed, kured's
// kured-most-recent-reboot-needed), and taints that ask the scheduler to avoid a node that
// may be replaced at some time (DeletionCandidateOfClusterAutoscaler, UpdateInProgress of the
// machine config operator, outdated-revision of Cluster API).
func Marks() []Mark { return marks }

var marks = []Mark{
	{Owner: "cluster-autoscaler", Kind: markTaint, Key: "ToBeDeletedByClusterAutoscaler", Means: "it deletes the node"},
	{Owner: "Karpenter", Kind: markTaint, Key: "karpenter.sh/disrupted", Means: "it replaces the node"},
	{Owner: "Karpenter", Kind: markTaint, Key: "karpenter.sh/disruption", Means: "it replaces the node (Karpenter before 1.0)"},
	{Owner: "medik8s", Kind: markTaint, Key: "medik8s.io/drain", Means: "the node maintenance operator drains the node, or has drained it"},
	{Owner: "medik8s", Kind: markTaint, Key: "remediation.medik8s.io/self-node-remediation", Means: "self node remediation fences the node"},
	{Owner: "an admin or medik8s", Kind: markTaint, Key: corev1.TaintNodeOutOfService, Means: "the node is shut down, and its pods are moved"},
	{Owner: "machine config operator", Kind: markAnnotation, Key: mco + "state", Not: "Done", Means: "it works on the node, or its work failed"},
	{Owner: "machine config operator", Kind: markAnnotation, Key: mco + "desiredConfig", Differs: mco + "currentConfig", Means: "it brings the node to another configuration"},
	{Owner: "machine config operator", Kind: markAnnotation, Key: mco + "desiredDrain", Differs: mco + "lastAppliedDrain", Means: "it drains or uncordons the node"},
	{Owner: "AWS node termination handler", Kind: markTaint, Key: nth + "spot-itn", Means: "AWS interrupts the spot instance"},
	{Owner: "AWS node termination handler", Kind: markTaint, Key: nth + "scheduled-maintenance", Means: "AWS has scheduled maintenance of the instance"},
	{Owner: "AWS node termination handler", Kind: markTaint, Key: nth + "asg-lifecycle-termination", Means: "the auto scaling group terminates the instance"},
	{Owner: "AWS node termination handler", Kind: markTaint, Key: nth + "rebalance-recommendation", Means: "the spot instance is likely to be interrupted"},
	{Owner: "AWS node termination handler", Kind: markLabel, Key: nth + "action", Value: "UncordonAfterReboot", Means: "it has cordoned the node for a reboot"},
	{Owner: "GKE", Kind: markLabel, Key: "cloud.google.com/active-node-maintenance", Value: "ONGOING", Means: "maintenance of the node's host"},
	{Owner: "GKE", Kind: markTaint, Key: "cloud.google.com/impending-node-termination", Means: "the node is about to be terminated"},
	{Owner: "AKS", Kind: markLabel, Key: "kubernetes.azure.com/upgrade-status", Value: "Quarantined", Means: "an upgrade could not drain the node"},
	{Owner: "AKS", Kind: markTaint, Key: "remediator.kubernetes.azure.com/unschedulable", Means: "AKS repairs the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: markAnnotation, Key: fluo + "reboot-ok", Value: "true", Means: "the node is in its turn there"},
	{Owner: "Flatcar Linux Update Operator", Kind: markAnnotation, Key: fluo + "reboot-in-progress", Value: "true", Means: "its agent drains and reboots the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: markAnnotation, Key: fluo + "agent-made-unschedulable", Value: "true", Means: "its agent has cordoned the node"},
	{Owner: "Flatcar Linux Update Operator", Kind: markLabel, Key: fluo + "before-reboot", Value: "true", Means: "its hooks before a reboot run"},
	{Owner: "Flatcar Linux Update Operator", Kind: markLabel, Key: fluo + "after-reboot", Value: "true", Means: "its hooks after a reboot run"},
	{Owner: "Container Linux Update Operator", Kind: markAnnotation, Key: cluo + "reboot-ok", Value: "true", Means: "the node is in its turn there"},
	{Owner: "Container Linux Update Operator", Kind: markAnnotation, Key: cluo + "reboot-in-progress", Value: "true", Means: "its agent drains and reboots the node"},
	{Owner: "kured", Kind: markAnnotation, Key: "kured.dev/kured-reboot-in-progress", Means: "it reboots the node, or waits for its lock"},
	{Owner: "kured", Kind: markAnnotation, Key: "weave.works/kured-reboot-in-progress", Means: "it reboots the node, or waits for its lock"},
}

// Condition says in Markdown which values of the key count, for the documentation.
func (m *Mark) Condition() string {
	switch {
	case m.Value != "":
		return "`" + m.Value + "`"
	case m.Not != "":
		return "not `" + m.Not + "`"
	case m.Differs != "":
		return "not that of `" + m.Differs + "`"
	}
	return "any"
}

// owner returns which other program works on the node, and the mark that says so; or "".
func owner(n *corev1.Node) string {
	for i := range marks {
		m := &marks[i]
		value, ok := m.find(n)
		switch {
		case !ok, m.Value != "" && value != m.Value, m.Not != "" && value == m.Not,
			m.Differs != "" && value == n.Annotations[m.Differs]:
			continue
		}
		mark := m.Kind + " " + m.Key
		if m.Kind != markTaint {
			// A mark whose value counts has a short one. Others may have any.
			mark += "=" + v1alpha1.OneLine(value, maxMarkValue)
		}
		return fmt.Sprintf("%s: %s (%s)", m.Owner, mark, m.Means)
	}
	return ""
}

// maxMarkValue bounds the value of a mark in a text, in bytes.
const maxMarkValue = 100

// find returns the value of the mark's key on the Node.
func (m *Mark) find(n *corev1.Node) (value string, ok bool) {
	switch m.Kind {
	case markLabel:
		value, ok = n.Labels[m.Key]
	case markAnnotation:
		value, ok = n.Annotations[m.Key]
	default:
		for i := range n.Spec.Taints {
			if n.Spec.Taints[i].Key == m.Key {
				return n.Spec.Taints[i].Value, true
			}
		}
	}
	return value, ok
}
