package cluster

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

func at(clock string) time.Time {
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 11, 21, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

func setHost(n *corev1.Node, change func(*v1alpha1.Host)) {
	h := v1alpha1.Host{
		Protocol: 1, Version: "v1.0.0", NodeUID: string(n.UID), BootID: "boot-" + n.Name,
		BootTime: at("03:04:05"), Started: at("03:04:35"), Managed: true, OSVersion: "3975.2.0",
	}
	change(&h)
	n.Annotations[v1alpha1.AnnotationHost] = v1alpha1.FormatRecord(h)
}

var osUpdate = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4100.0.0"}}

func wantsReboot(n *corev1.Node) {
	n.Labels[v1alpha1.LabelWants] = "reboot"
	setHost(n, func(h *v1alpha1.Host) { h.Drains, h.Changes = true, osUpdate })
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func all(changes ...func(*corev1.Node)) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, c := range changes {
			c(n)
		}
	}
}

// inTurn puts the node into the state of turn t-NAME, begun at 12:59:05.
func inTurn(s v1alpha1.State, stageAt string, word string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		wantsReboot(n)
		g := grant(n, stageAt)
		n.Labels[v1alpha1.LabelState] = string(s)
		n.Annotations[v1alpha1.AnnotationTurn] = g.Turn
		n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
		n.Annotations[v1alpha1.AnnotationAck] = g.Turn + "/" + g.BootID + "/" + string(s) + "/" + word
	}
}

func grant(n *corev1.Node, stageAt string) v1alpha1.Grant {
	return v1alpha1.Grant{
		Turn: "t-" + n.Name, Epoch: "n3_k2jd8f", NodeUID: string(n.UID), BootID: "boot-" + n.Name, Wants: v1alpha1.WantsReboot, Drains: true,
		Changes: osUpdate, OSVersion: "3975.2.0", Policy: "built-in", Terms: policy.Default().Terms, StartedAt: at("12:59:05"), StageAt: at(stageAt),
	}
}

func last(l v1alpha1.Last) func(*corev1.Node) {
	return annotation(v1alpha1.AnnotationLast, v1alpha1.FormatRecord(l))
}

// newLease returns the Lease that n3 holds.
func newLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper", Annotations: map[string]string{}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("n3_k2jd8f"), LeaseDurationSeconds: new(int32(30)),
			AcquireTime: &metav1.MicroTime{Time: at("11:04:05")}, RenewTime: &metav1.MicroTime{Time: at("13:04:00")},
		},
	}
}

// newNode returns a managed node that is idle and wants nothing, and changes it.
func newNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", CreationTimestamp: metav1.Time{Time: at("01:00:00")},
		Labels:      map[string]string{v1alpha1.LabelState: "idle", v1alpha1.LabelWants: "nothing"},
		Annotations: map[string]string{},
	}}
	n.Status.NodeInfo.BootID = "boot-" + name
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	setHost(n, func(*v1alpha1.Host) {})
	for _, c := range change {
		c(n)
	}
	return n
}

func web(n *corev1.Node) { n.Labels["pool"] = "web" }

// unmanaged is a node on which lockkeeper was never seen.
func unmanaged(n *corev1.Node) {
	n.Labels, n.Annotations = map[string]string{}, map[string]string{}
}
