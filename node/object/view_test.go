package object

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// node makes a Node; its label says which version of it a test sees.
func node(name, uid, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{"version": version},
	}}
}

// newTestView is a view without a client, with n1 at resourceVersion 10 in a list of 20. count is how often it
// notified; notify asks the view something, so that a lock held would be a deadlock.
func newTestView(t *testing.T) (v *View, count *int) {
	t.Helper()
	count = new(int)
	v = NewView(nil, "", func() {
		*count++
		v.Get("n1")
	})
	if v.Listed() {
		t.Fatal("listed before the list")
	}
	must(t, store{v}.Replace([]any{node("n1", "a", "10")}, "20"))
	if !v.Listed() || *count != 1 {
		t.Fatalf("after the list: listed is %t, notified %d times", v.Listed(), *count)
	}
	return v, count
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shows fails unless the view shows n1 as that object in that version; "" is none.
func shows(t *testing.T, v *View, uid, version string) {
	t.Helper()
	n := v.Get("n1")
	switch {
	case n == nil && version == "":
	case n == nil:
		t.Errorf("the view shows no n1, want %s at %s", uid, version)
	case string(n.UID) != uid || n.ResourceVersion != version || n.Labels["version"] != version:
		t.Errorf("the view shows n1 as %s at %s, want %q at %q", n.UID, n.ResourceVersion, uid, version)
	}
}

func TestAnswersOverlayTheWatch(t *testing.T) {
	v, count := newTestView(t)
	if !v.Overlay(node("n1", "a", "30")) {
		t.Error("what a write returned was no news")
	}
	shows(t, v, "a", "30")
	// The watch is behind: it shows what was before our write.
	must(t, store{v}.Update(node("n1", "a", "25")))
	shows(t, v, "a", "30")
	if v.Overlay(node("n1", "a", "30")) || v.Overlay(node("n1", "a", "29")) {
		t.Error("an old answer was news")
	}
	if *count != 1 {
		t.Errorf("notified %d times, want 1: who overlays knows, and the rest was no news", *count)
	}
	must(t, store{v}.Update(node("n1", "a", "31")))
	shows(t, v, "a", "31")
	// Numbers, not text.
	must(t, store{v}.Update(node("n1", "a", "100")))
	shows(t, v, "a", "100")
}

// What a kubelet writes of its images wakes nobody who looks after a fleet; the version is taken in. A host waits for it.
func TestOnlyNewsWakes(t *testing.T) {
	for name, wakes := range map[string]bool{"": false, "n1": true} {
		v, count := newTestView(t)
		v.name = name
		n := func(version string) *corev1.Node {
			n := node("n1", "a", version)
			n.Labels["version"] = "10"
			return n
		}
		next := n("11")
		next.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}}
		next.Annotations = map[string]string{"example.org/agent": "news"}
		must(t, store{v}.Update(next))
		if v.Get("n1").ResourceVersion != "11" || (*count > 1) != wakes {
			t.Errorf("%q: at %s, notified %d times", name, v.Get("n1").ResourceVersion, *count)
		}
		*count = 0
		changes := map[string]func(*corev1.Node){
			"label":      func(n *corev1.Node) { n.Labels["a"] = "b" },
			"annotation": func(n *corev1.Node) { n.Annotations = map[string]string{"lockkeeper.dev/retry": "b"} },
			"hook":       func(n *corev1.Node) { n.Annotations = map[string]string{"hook.lockkeeper.dev/a": "b"} },
			"cordon":     func(n *corev1.Node) { n.Spec.Unschedulable = true },
			"boot":       func(n *corev1.Node) { n.Status.NodeInfo.BootID = "b" },
			"Ready": func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			},
			"another UID": func(n *corev1.Node) { n.UID = "b" },
		}
		version := 12
		for what, change := range changes {
			must(t, store{v}.Update(n(strconv.Itoa(version)))) // as it was
			changed := n(strconv.Itoa(version + 1))
			change(changed)
			*count = 0
			must(t, store{v}.Update(changed))
			if *count != 1 {
				t.Errorf("%q: notified %d times of a change of %s", name, *count, what)
			}
			version += 2
		}
	}
}

func TestRelistKeepsNewerOwnWrites(t *testing.T) {
	v, _ := newTestView(t)
	v.Overlay(node("n1", "a", "30"))
	must(t, store{v}.Replace([]any{node("n1", "a", "10"), node("n2", "b", "24")}, "25"))
	shows(t, v, "a", "30")
	if v.Get("n2") == nil || len(v.Nodes()) != 2 {
		t.Errorf("%d nodes, want n1 and n2", len(v.Nodes()))
	}
	must(t, store{v}.Replace([]any{node("n1", "a", "40")}, "45"))
	shows(t, v, "a", "40")
	if len(v.Nodes()) != 1 {
		t.Errorf("%d nodes, want n1 alone: n2 is not in the list", len(v.Nodes()))
	}
}

func TestMissingInAListIsGone(t *testing.T) {
	v, _ := newTestView(t)
	v.Overlay(node("n1", "a", "30")) // written before the list of 35, which shows that it was deleted since
	must(t, store{v}.Replace(nil, "35"))
	shows(t, v, "", "")
}

func TestCreatedAfterTheListStays(t *testing.T) {
	v, _ := newTestView(t)
	// A read showed a Node that was created when the list was on its way.
	v.Overlay(node("n1", "new", "33"))
	must(t, store{v}.Replace([]any{node("n1", "a", "10")}, "31"))
	shows(t, v, "new", "33")
	must(t, store{v}.Replace(nil, "32"))
	shows(t, v, "new", "33")
	must(t, store{v}.Replace(nil, "34"))
	shows(t, v, "", "")
}

func TestDeletedAndCreatedAgain(t *testing.T) {
	v, _ := newTestView(t)
	// Our own read was faster than the watch.
	v.Overlay(node("n1", "new", "33"))
	must(t, store{v}.Delete(node("n1", "a", "32")))
	shows(t, v, "new", "33")
	must(t, store{v}.Add(node("n1", "new", "33")))
	shows(t, v, "new", "33")
	must(t, store{v}.Delete(node("n1", "new", "34")))
	shows(t, v, "", "")
}

func TestDeletedWhateverWeWrote(t *testing.T) {
	v, _ := newTestView(t)
	v.Overlay(node("n1", "a", "30"))
	must(t, store{v}.Delete(node("n1", "a", "31")))
	shows(t, v, "", "")
}

// A leader's write is answered late, when the watch has shown the end of the Node already. Taken in, it would take a
// slot for ever: no watch tells again of what was deleted.
func TestAnswerAfterTheDeletion(t *testing.T) {
	v, count := newTestView(t)
	must(t, store{v}.Delete(node("n1", "a", "31")))
	before := *count
	if v.Overlay(node("n1", "a", "30")) {
		t.Error("the answer to a write of a deleted Node was news")
	}
	shows(t, v, "", "")
	if *count != before {
		t.Error("it notified of nothing")
	}
	if !v.Overlay(node("n1", "new", "32")) {
		t.Error("a Node created after the deletion was no news")
	}
	shows(t, v, "new", "32")
}

func TestForget(t *testing.T) {
	v, count := newTestView(t)
	// The Node was not found, and meanwhile the watch shows its successor.
	must(t, store{v}.Delete(node("n1", "a", "31")))
	must(t, store{v}.Add(node("n1", "new", "32")))
	before := *count
	v.Forget("n1", "10")
	shows(t, v, "new", "32")
	if *count != before {
		t.Error("it notified although nothing was forgotten")
	}
	v.Forget("n1", "32")
	shows(t, v, "", "")
	if *count != before+1 {
		t.Error("it did not notify")
	}
	v.Forget("n1", "32")
	if *count != before+1 {
		t.Error("it notified of a Node that it did not know")
	}
}

// After a restore of etcd from a backup resourceVersions are small again. A view that kept the newer ones would show
// Nodes as they never were, until the numbers have caught up, days later.
func TestStoreSetBack(t *testing.T) {
	v, _ := newTestView(t)
	v.Overlay(node("n1", "a", "30"))
	must(t, store{v}.Update(node("n1", "a", "40")))
	must(t, store{v}.Replace([]any{node("n1", "a", "5")}, "7"))
	shows(t, v, "a", "5")
	must(t, store{v}.Update(node("n1", "a", "8")))
	shows(t, v, "a", "8")
}

func TestViewOfAnotherKind(t *testing.T) {
	v, _ := newTestView(t)
	pod := &corev1.Pod{}
	for name, err := range map[string]error{
		"Add": store{v}.Add(pod), "Update": store{v}.Update(pod), "Delete": store{v}.Delete(pod), "Replace": store{v}.Replace([]any{pod}, "50"),
	} {
		if err == nil {
			t.Errorf("%s of a Pod: no error", name)
		}
	}
	shows(t, v, "a", "10")
}

func TestErrSaysWhyNothingIsRead(t *testing.T) {
	v, count := newTestView(t)
	away := errors.New("connection refused")
	v.answered(away)
	v.answered(errors.New("connection refused again"))
	if v.Err() == nil || *count != 2 {
		t.Errorf("Err is %v, notified %d times, want an error and 2", v.Err(), *count)
	}
	v.answered(nil)
	if v.Err() != nil || *count != 3 {
		t.Errorf("Err is %v, notified %d times, want none and 3", v.Err(), *count)
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
	s := (&View{}).strip(n)
	if s.Name != "n1" || s.UID != "a" || s.ResourceVersion != "10" || !s.CreationTimestamp.Equal(&n.CreationTimestamp) ||
		s.Labels["version"] != "10" || s.Annotations["lockkeeper.dev/turn"] != "t" || !s.Spec.Unschedulable || s.Status.NodeInfo.BootID != "boot" ||
		len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("stripped to %+v", s)
	}
	if s.Annotations["hook.lockkeeper.dev/backup"] != "t" {
		t.Error("a hook's word was dropped")
	}
	if s.ManagedFields != nil || s.Status.Images != nil || len(s.Annotations) != 2 {
		t.Error("the bulk of the Node was kept")
	}
}

// TestVolumesCountBeforeAReboot: only there somebody waits for them, so that only
// there they are kept, by their names, and wake a leader.
func TestVolumesCountBeforeAReboot(t *testing.T) {
	for state, counts := range map[string]bool{"draining": false, "before-reboot": true} {
		v, count := newTestView(t)
		v.name = ""
		n := func(version string, volumes ...corev1.UniqueVolumeName) *corev1.Node {
			n := node("n1", "a", version)
			n.Labels["version"], n.Labels["lockkeeper.dev/state"] = "10", state
			for _, name := range volumes {
				n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name, DevicePath: "/dev/a" + version})
			}
			return n
		}
		must(t, store{v}.Update(n("11", "csi/a", "csi/b")))
		*count = 0
		must(t, store{v}.Update(n("12", "csi/a", "csi/b")))
		if *count != 0 {
			t.Errorf("%s: woken by a device path", state)
		}
		must(t, store{v}.Update(n("13", "csi/a")))
		if (*count == 1) != counts {
			t.Errorf("%s: notified %d times that a volume is detached", state, *count)
		}
		if kept := v.Get("n1").Status.VolumesAttached; (len(kept) == 1 && kept[0].Name == "csi/a") != counts || len(kept) > 1 {
			t.Errorf("%s: kept %v", state, kept)
		}
	}
}

// An answer that is no list must not look like a cluster without Nodes: all slots would be free.
func TestAnswerThatIsNoList(t *testing.T) {
	s := newAPIServer(t, text(`{}`))
	v := NewView(s.client(), "", func() {})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { v.Run(ctx) })
	for len(s.seen()) < 2 { // the first answer was taken in, and another one asked for
		if time.Sleep(time.Millisecond); t.Context().Err() != nil {
			t.Fatal("no requests")
		}
	}
	if v.Listed() || v.Err() == nil {
		t.Errorf("listed: %v, error: %v; want the error", v.Listed(), v.Err())
	}
}
