package turn

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Owned says which other program works on a node.
type Owned struct {
	// Owner names the program, and the mark on the Node that says so; "" if there is no such
	// mark. See [v1alpha1.Marks].
	Owner string
	// OwnerName is the program's name alone.
	OwnerName string
	// OwnerSince is since when; zero if the Node does not say.
	OwnerSince time.Time
	// Deleted reports whether the program deletes the node.
	Deleted bool
}

// owner returns which other program works on the node. A program that deletes it takes precedence.
func owner(n *corev1.Node) Owned {
	first := deletion(n)
	marks := v1alpha1.Marks()
	for i := range marks {
		if first.Deleted || first.Owner != "" && !marks[i].Deletes {
			continue
		}
		m := &marks[i]
		value, ok := find(m, n)
		switch {
		case !ok, m.Value != "" && value != m.Value, m.Not != "" && value == m.Not,
			m.Differs != "" && value == n.Annotations[m.Differs]:
			continue
		}
		mark := string(m.Kind) + " " + m.Key
		if m.Kind != v1alpha1.MarkTaint {
			// A mark whose value counts has a short one. Others may have any.
			mark += "=" + v1alpha1.OneLine(value, maxMarkValue)
		}
		first = Owned{fmt.Sprintf("%s: %s (%s)", m.Owner, mark, m.Means), m.Owner, taintedSince(m, n), m.Deletes}
	}
	return first
}

// deletion returns the owner of a Node that is being deleted, which a finalizer keeps.
func deletion(n *corev1.Node) Owned {
	if n.DeletionTimestamp.IsZero() {
		return Owned{}
	}
	o := Owned{"another program: metadata.deletionTimestamp (the Node is being deleted, and a finalizer keeps it)", "another program", n.DeletionTimestamp.Time, true}
	if slices.Contains(n.Finalizers, v1alpha1.FinalizerKarpenter) {
		o.Owner, o.OwnerName = "Karpenter: finalizer "+v1alpha1.FinalizerKarpenter+" (it deletes the node)", "Karpenter"
	}
	return o
}

// taintedSince returns since when the Node has the taint of a mark: the taint's timeAdded, or
// the value that the cluster autoscaler writes, in seconds since 1970.
func taintedSince(m *v1alpha1.Mark, n *corev1.Node) time.Time {
	for i := range n.Spec.Taints {
		switch t := &n.Spec.Taints[i]; {
		case m.Kind != v1alpha1.MarkTaint || t.Key != m.Key:
			continue
		case t.TimeAdded != nil:
			return t.TimeAdded.Time
		case t.Key == "ToBeDeletedByClusterAutoscaler":
			// A value of another form, or of another century, says nothing.
			if s, err := strconv.ParseInt(t.Value, 10, 64); err == nil && s > 0 && s < 1<<32 {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}

// maxMarkValue bounds the value of a mark in a text, in bytes.
const maxMarkValue = 100

// find returns the value of the mark's key on the Node.
func find(m *v1alpha1.Mark, n *corev1.Node) (value string, ok bool) {
	switch m.Kind {
	case v1alpha1.MarkLabel:
		value, ok = n.Labels[m.Key]
	case v1alpha1.MarkAnnotation:
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
