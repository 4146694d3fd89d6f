package kube

import (
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// NodeWatch holds Nodes by name, stripped to what decisions are made of.
type NodeWatch = Watch[*corev1.Node, *corev1.Node]

// WatchNodes makes a Watch of all Nodes. rewound may be nil; for both callbacks see
// [WatchOptions]. Changed is not called for versions of a Node that differ in
// nothing that is held: kubelets write such statuses all the time.
func WatchNodes(client kubernetes.Interface, changed, rewound func()) *NodeWatch {
	return NewWatch(client.CoreV1().Nodes(), WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", Keep: strip, Same: alike, Changed: changed, Rewound: rewound,
	})
}

// WatchNode makes a Watch of the one Node that a host may read: its own. Changed is
// called for every version of it, because a host waits for one at a check.
func WatchNode(client kubernetes.Interface, name string, changed func()) *NodeWatch {
	return NewWatch(client.CoreV1().Nodes(), WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", FieldSelector: named(name), Keep: stripOwn, Changed: changed,
	})
}

// LeaseWatch holds one Lease, under the key namespace/name.
type LeaseWatch = Watch[*coordinationv1.Lease, *coordinationv1.Lease]

// WatchLease makes a Watch of the Lease of that name. rewound may be nil; for both
// callbacks see [WatchOptions].
func WatchLease(client kubernetes.Interface, namespace, name string, changed, rewound func()) *LeaseWatch {
	return NewWatch(client.CoordinationV1().Leases(namespace), WatchOptions[*coordinationv1.Lease, *coordinationv1.Lease]{
		Name: "leases", FieldSelector: named(name), Changed: changed, Rewound: rewound,
		Keep: func(l *coordinationv1.Lease) (*coordinationv1.Lease, bool) { return l, true },
	})
}

// named selects the object of that name.
func named(name string) string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
}

// alike reports whether two stripped versions of a Node differ in nothing but
// their version.
func alike(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.CreationTimestamp.Equal(&b.CreationTimestamp) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable && a.Status.NodeInfo.BootID == b.Status.NodeInfo.BootID &&
		slices.Equal(a.Status.Conditions, b.Status.Conditions) && slices.Equal(a.Status.VolumesAttached, b.Status.VolumesAttached) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// strip keeps what decisions are made of. Images, addresses, managed fields and
// other people's annotations are most of a Node, and those of five thousand Nodes
// take a lot of memory.
func strip(n *corev1.Node) (*corev1.Node, bool) {
	s := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, Labels: n.Labels, Annotations: ours(n.Annotations),
		},
		Spec: corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable},
	}
	s.Status.NodeInfo.BootID = n.Status.NodeInfo.BootID
	if v1alpha1.State(n.Labels[v1alpha1.LabelState]) == v1alpha1.StateBeforeReboot {
		// A busy fleet attaches and detaches volumes all day, and only this state waits
		// for that. Nothing is decided by their device paths.
		for _, v := range n.Status.VolumesAttached {
			s.Status.VolumesAttached = append(s.Status.VolumesAttached, corev1.AttachedVolume{Name: v.Name})
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return s, true
}

// stripOwn strips the host's own Node. It keeps all conditions, because the host writes
// some.
func stripOwn(n *corev1.Node) (*corev1.Node, bool) {
	s, keep := strip(n)
	s.Status.Conditions = n.Status.Conditions
	return s, keep
}

// ours returns the annotations that are lockkeeper's or its hooks'. Nothing is
// decided by what others keep on their Nodes, and change. Labels are kept: people
// select nodes by any of them.
func ours(annotations map[string]string) map[string]string {
	kept := make(map[string]string, len(annotations))
	for key, value := range annotations {
		if strings.HasPrefix(key, v1alpha1.Prefix) || strings.HasPrefix(key, v1alpha1.HookPrefix) {
			kept[key] = value
		}
	}
	return kept
}
