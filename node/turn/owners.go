package turn

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// owner returns which other program works on the node, and the mark that says so; or "".
func owner(n *corev1.Node) string {
	marks := v1alpha1.Marks()
	for i := range marks {
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
		return fmt.Sprintf("%s: %s (%s)", m.Owner, mark, m.Means)
	}
	return ""
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
