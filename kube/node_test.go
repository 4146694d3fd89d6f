package kube

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestHostIsWokenByEachVersion checks that a version of a Node without a relevant change wakes no leader, but wakes the
// host, which waits for it. Both store it.
func TestHostIsWokenByEachVersion(t *testing.T) {
	const only = `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"20"},"items":[{"metadata":{"name":"n1","uid":"a","resourceVersion":%q}}]}`
	for name, wakes := range map[string]int{"": 1, "n1": 2} {
		count := 0
		server := newAPIServer(t, text(fmt.Sprintf(only, "10")), text(fmt.Sprintf(only, "11")))
		client, asked := server.client(), "GET"
		w := WatchNodes(client, func() { count++ }, nil)
		if name != "" {
			w, asked = WatchNode(client, name, func() { count++ }), "LIST" // with a field selector
		}
		must(t, w.Load(t.Context()))
		must(t, w.Load(t.Context()))
		if count != wakes || w.Get("n1") == nil || w.Get("n1").ResourceVersion != "11" {
			t.Errorf("%q: notified %d times, shows %+v", name, count, w.Get("n1"))
		}
		if seen := server.seen(); seen[0] != asked {
			t.Errorf("%q: requests %v, expected %s", name, seen, asked)
		}
	}
}

// TestAlike checks that a kubelet's report of its images does not count as a change for a leader.
func TestAlike(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*corev1.Node)
		alike  bool
	}{
		"version":    {func(n *corev1.Node) { n.ResourceVersion = "11" }, true},
		"images":     {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }, true},
		"another's":  {func(n *corev1.Node) { n.Annotations = map[string]string{"example.org/agent": "news"} }, true},
		"label":      {func(n *corev1.Node) { n.Labels["a"] = "b" }, false},
		"annotation": {func(n *corev1.Node) { n.Annotations = map[string]string{"lockkeeper.dev/retry": "b"} }, false},
		"hook":       {func(n *corev1.Node) { n.Annotations = map[string]string{"hook.lockkeeper.dev/a": "b"} }, false},
		"cordon":     {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"a mark":     {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted"}} }, false},
		"a value":    {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Value: "b"}} }, false},
		"a taint":    {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "example.org/pool"}} }, true},
		"a note":     {func(n *corev1.Node) { n.Annotations = map[string]string{"kured.dev/kured-reboot-in-progress": "now"} }, false},
		"boot":       {func(n *corev1.Node) { n.Status.NodeInfo.BootID = "b" }, false},
		"Ready": {func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}, false},
		"deleted":   {func(n *corev1.Node) { n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"a/b"} }, false},
		"finalizer": {func(n *corev1.Node) { n.Finalizers = []string{"a/b"} }, true},
		"UID":       {func(n *corev1.Node) { n.UID = "b" }, false},
		"created":   {func(n *corev1.Node) { n.CreationTimestamp = metav1.Now() }, false},
	} {
		was, _ := strip(node("n1", "a", "10"))
		next := node("n1", "a", "10")
		c.change(next)
		if is, _ := strip(next); alike(was, is) != c.alike || sameDecision(was, is) != c.alike {
			t.Errorf("a change of %s: alike is %t", what, !c.alike)
		}
	}
}

// TestSameDecision checks that a change of the label held alone is no reason for a leader to decide, unless it is the record of why a node
// was released, and that `lockkeeper status --follow` shows it.
func TestSameDecision(t *testing.T) {
	const state, held = v1alpha1.LabelState, v1alpha1.LabelHeld
	for what, c := range map[string]struct {
		was, is map[string]string
		same    bool
	}{
		"held":              {map[string]string{state: "idle"}, map[string]string{state: "idle", held: "Stopped"}, true},
		"another reason":    {map[string]string{state: "idle", held: "Budget"}, map[string]string{state: "idle", held: "Stopped"}, true},
		"and another label": {map[string]string{state: "idle", "a": "b"}, map[string]string{state: "idle", held: "Stopped"}, false},
		"and the state":     {map[string]string{state: "idle", held: "Stopped"}, map[string]string{state: "paused"}, false},
		"and no state":      {map[string]string{state: "idle"}, map[string]string{held: "Detached"}, false},
		"released":          {map[string]string{held: "Unmanaged"}, map[string]string{held: "Detached"}, false},
		"free":              {map[string]string{held: "Unmanaged"}, nil, false},
	} {
		with := func(labels map[string]string) *corev1.Node {
			n := node("n1", "a", "10")
			n.Labels = labels
			n, _ = strip(n)
			return n
		}
		was, is := with(c.was), with(c.is)
		if sameDecision(was, is) != c.same || sameDecision(is, was) != c.same {
			t.Errorf("%s: the same for a decision is %t", what, !c.same)
		}
		if alike(was, is) || was.Labels[held] != c.was[held] || is.Labels[held] != c.is[held] {
			t.Errorf("%s: alike, or changed: %v, %v", what, was.Labels, is.Labels)
		}
	}
}

func TestStripKeepsWhatDecisionsAreMadeOf(t *testing.T) {
	n := node("n1", "a", "10")
	n.CreationTimestamp = metav1.Now()
	n.Annotations = map[string]string{"lockkeeper.dev/turn": "t", "hook.lockkeeper.dev/backup": "t", "example.org/agent": "bulk"}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	n.Spec.Unschedulable = true
	n.Status.NodeInfo.BootID = "boot"
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}
	s, _ := strip(n)
	if s.Name != "n1" || s.UID != "a" || s.ResourceVersion != "10" || !s.CreationTimestamp.Equal(&n.CreationTimestamp) ||
		s.Labels["version"] != "10" || s.Annotations["lockkeeper.dev/turn"] != "t" || !s.Spec.Unschedulable || s.Status.NodeInfo.BootID != "boot" ||
		len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("the stripped Node is %+v", s)
	}
	if s.Annotations["hook.lockkeeper.dev/backup"] != "t" {
		t.Error("the confirmation of a hook was dropped")
	}
	if s.ManagedFields != nil || s.Status.Images != nil || len(s.Annotations) != 2 {
		t.Error("the large fields of the Node were kept")
	}
}

// A mark of another owner decides, so it is kept, and so is the annotation that it is compared with.
func TestStripKeepsMarks(t *testing.T) {
	for _, m := range v1alpha1.Marks() {
		n := node("n1", "a", "10")
		bare, _ := strip(node("n1", "a", "10"))
		n.Annotations, n.Spec.Taints = map[string]string{m.Differs: "a", "example.org/agent": "bulk"}, []corev1.Taint{{Key: "example.org/pool"}}
		if compared, _ := strip(n); m.Differs != "" && compared.Annotations[m.Differs] != "a" {
			t.Errorf("%s was dropped", m.Differs)
		}
		switch m.Kind {
		case v1alpha1.MarkTaint:
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: m.Key, Value: "b", Effect: corev1.TaintEffectNoSchedule})
		case v1alpha1.MarkAnnotation:
			n.Annotations[m.Key] = "b"
		case v1alpha1.MarkLabel:
			n.Labels[m.Key] = "b"
		}
		s, _ := strip(n)
		kept := s.Annotations[m.Key] == "b" || s.Labels[m.Key] == "b" || slices.ContainsFunc(s.Spec.Taints, func(t corev1.Taint) bool { return t.Key == m.Key })
		if !kept || alike(bare, s) || s.Annotations["example.org/agent"] != "" || len(s.Spec.Taints) > 1 {
			t.Errorf("the %s %s: stripped to %+v, taints %v", m.Kind, m.Key, s.Annotations, s.Spec.Taints)
		}
	}
}

// TestVolumesCountBeforeAReboot checks that the names of attached volumes are kept, and wake a leader, only in the
// state that waits for them.
func TestVolumesCountBeforeAReboot(t *testing.T) {
	for state, counts := range map[string]bool{"draining": false, "before-reboot": true} {
		n := func(device string, volumes ...corev1.UniqueVolumeName) *corev1.Node {
			n := node("n1", "a", "10")
			n.Labels["lockkeeper.dev/state"] = state
			for _, name := range volumes {
				n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name, DevicePath: device})
			}
			kept, _ := strip(n)
			return kept
		}
		two := n("/dev/a", "csi/a", "csi/b")
		if !alike(two, n("/dev/b", "csi/a", "csi/b")) {
			t.Errorf("%s: a device path counts as a change", state)
		}
		one := n("/dev/a", "csi/a")
		if alike(two, one) == counts {
			t.Errorf("%s: a detached volume counts as a change: %t", state, !counts)
		}
		if kept := one.Status.VolumesAttached; (len(kept) == 1 && kept[0].Name == "csi/a") != counts || len(kept) > 1 {
			t.Errorf("%s: kept %v", state, kept)
		}
	}
}

// TestStripKeepsWhoDeletesANode checks that a leader sees since when a Node is being deleted, and by whom. A host sees the exclusions that it has set.
func TestStripKeepsWhoDeletesANode(t *testing.T) {
	n := node("n1", "a", "10")
	n.Finalizers, n.DeletionTimestamp = []string{"karpenter.sh/termination"}, new(metav1.Now())
	n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1767268800", TimeAdded: new(metav1.Now())}}
	s, _ := strip(n)
	if len(s.Spec.Taints) != 1 || s.Spec.Taints[0] != n.Spec.Taints[0] || s.DeletionTimestamp != n.DeletionTimestamp || len(s.Finalizers) != 1 {
		t.Errorf("%+v, %+v", s.Spec.Taints, s.ObjectMeta)
	}
	n.DeletionTimestamp = nil
	if s, _ := strip(n); len(s.Finalizers) > 0 {
		t.Errorf("finalizers of a Node that stays: %v", s.Finalizers)
	}
	const scaleDown = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	n.Annotations = map[string]string{scaleDown: "true"}
	if s, _ := strip(n); s.Annotations[scaleDown] != "" {
		t.Error("a leader keeps an exclusion, which no decision of its uses")
	}
	if s, _ := stripOwn(n); s.Annotations[scaleDown] != "true" {
		t.Error("a host does not see its exclusion")
	}
}
