package kube

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// node returns a Node whose label identifies its version for a test.
func node(name, uid, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{"version": version},
	}}
}

// nodes is a Watch of unchanged Nodes. Versions with the same labels count as equal.
type nodes = Watch[*corev1.Node, *corev1.Node]

func newNodes(r Resource[*corev1.NodeList], changed, rewound func()) *nodes {
	return NewWatch(r, WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", FieldSelector: "metadata.name!=other", Changed: changed, Rewound: rewound,
		Keep: func(n *corev1.Node) (*corev1.Node, bool) { return n, n.Name != "unkept" },
		Same: func(a, b *corev1.Node) bool { return maps.Equal(a.Labels, b.Labels) },
	})
}

// canned answers lists with list, after it has called during. It supports no watches.
type canned struct {
	list   *corev1.NodeList
	during func()
}

func (c *canned) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	if c.during != nil {
		c.during()
	}
	return c.list, nil
}

func (c *canned) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return nil, errors.New("no watch")
}

// newTestWatch returns a Watch with n1 at resourceVersion 10 in a list of 20. count counts its notifications, and
// rewound counts the rewinds that it noticed. Changed calls the Watch, so that a lock that is held would cause a
// deadlock.
func newTestWatch(t *testing.T) (v *nodes, count, rewound *int) {
	t.Helper()
	count, rewound = new(int), new(int)
	v = newNodes(&canned{}, func() {
		*count++
		v.Get("n1")
	}, func() { *rewound++ })
	if v.Listed() {
		t.Fatal("listed before the list")
	}
	relist(t, v, nil, "20", node("n1", "a", "10"))
	if !v.Listed() || *count != 1 {
		t.Fatalf("after the list: listed is %t, notified %d times", v.Listed(), *count)
	}
	return v, count, rewound
}

// relist lists at that version. It calls during while the list is in flight.
func relist(t *testing.T, v *nodes, during func(), at string, in ...*corev1.Node) {
	t.Helper()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: at}}
	for _, n := range in {
		list.Items = append(list.Items, *n)
	}
	r := &canned{list, during}
	v.listFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) }
	must(t, v.Load(t.Context()))
}

func (w *Watch[O, T]) store() store[O, T] { return store[O, T]{w} }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shows fails the test unless the Watch contains n1 with this UID at this version; "" means that it must not exist.
func shows(t *testing.T, v *nodes, uid, version string) {
	t.Helper()
	n := v.Get("n1")
	switch {
	case n == nil && version == "":
	case n == nil:
		t.Errorf("the Watch contains no n1, expected %s at %s", uid, version)
	case string(n.UID) != uid || n.ResourceVersion != version || n.Labels["version"] != version:
		t.Errorf("the Watch contains n1 as %s at %s, expected %q at %q", n.UID, n.ResourceVersion, uid, version)
	}
}

// unanswered is a server that answers lists, and takes watches without an answer.
type unanswered struct{ canned }

func (*unanswered) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestWatchThatDoesNotBegin checks that a watch is an error if its request is not answered. Otherwise, what is held would count as
// what the API server has, for an hour.
func TestWatchThatDoesNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "20"}}
		v := newNodes(&unanswered{canned{list: list}}, nil, nil)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { v.Run(ctx) })
		time.Sleep(listTimeout - time.Second)
		if err := v.Err(); !v.Listed() || err != nil {
			t.Errorf("listed %t, %v", v.Listed(), err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := v.Err(); err == nil || err.Error() != "watching nodes: no answer within 1m0s" {
			t.Errorf("%v after a minute without an answer", err)
		}
		stop()
		running.Wait()
	})
}

func TestAnswersOverlayTheWatch(t *testing.T) {
	v, count, _ := newTestWatch(t)
	if !v.Overlay(node("n1", "a", "30")) {
		t.Error("the result of a write did not count as a change")
	}
	shows(t, v, "a", "30")
	// The watch lags: it delivers the version before the write.
	must(t, v.store().Update(node("n1", "a", "25")))
	shows(t, v, "a", "30")
	before := v.All()
	if v.Overlay(node("n1", "a", "30")) || v.Overlay(node("n1", "a", "29")) {
		t.Error("an old answer counted as a change")
	}
	if *count != 1 {
		t.Errorf("%d notifications, expected 1: a caller of Overlay needs none, and the rest was no change", *count)
	}
	must(t, v.store().Update(node("n1", "a", "31")))
	shows(t, v, "a", "31")
	if before[0].ResourceVersion != "30" {
		t.Errorf("what All returned has changed since, to version %s", before[0].ResourceVersion)
	}
	// Versions compare as numbers, not as text.
	must(t, v.store().Update(node("n1", "a", "100")))
	shows(t, v, "a", "100")
}

// TestAllIsInOrder checks which versions All returns, in the order of the Nodes' names, while Nodes are created, changed and
// deleted.
func TestAllIsInOrder(t *testing.T) {
	v, _, _ := newTestWatch(t)
	for i, step := range []struct {
		change func() error
		want   string
	}{
		{func() error { return v.store().Add(node("n3", "c", "21")) }, "n1@10 n3@21"},
		{func() error { return v.store().Add(node("n2", "b", "22")) }, "n1@10 n2@22 n3@21"},
		{func() error { v.Overlay(node("n2", "b", "23")); return nil }, "n1@10 n2@23 n3@21"},
		{func() error { return v.store().Update(node("n3", "c", "24")) }, "n1@10 n2@23 n3@24"},
		{func() error { v.Forget("n1", "10"); return nil }, "n2@23 n3@24"},
		{func() error { return v.store().Update(node("n3", "c", "25")) }, "n2@23 n3@25"},
		{func() error { return v.store().Add(node("n1", "a", "26")) }, "n1@26 n2@23 n3@25"},
		{func() error { return v.store().Delete(node("n2", "b", "27")) }, "n1@26 n3@25"},
		{func() error {
			relist(t, v, nil, "30", node("n4", "d", "28"), node("n1", "a", "26"), node("n0", "e", "29"))
			return nil
		}, "n0@29 n1@26 n4@28"},
		{func() error { return v.store().Update(node("n1", "a", "31")) }, "n0@29 n1@31 n4@28"},
	} {
		must(t, step.change())
		var got []string
		for _, n := range v.All() {
			got = append(got, n.Name+"@"+n.ResourceVersion)
		}
		if is := strings.Join(got, " "); is != step.want {
			t.Errorf("step %d: %s, expected %s", i, is, step.want)
		}
	}
}

func TestRelistKeepsNewerOwnWrites(t *testing.T) {
	v, _, rewound := newTestWatch(t)
	relist(t, v, func() { v.Overlay(node("n1", "a", "30")) }, "25", node("n1", "a", "10"), node("n2", "b", "24"))
	shows(t, v, "a", "30")
	if v.Get("n2") == nil || len(v.All()) != 2 {
		t.Errorf("%d nodes, expected n1 and n2", len(v.All()))
	}
	relist(t, v, nil, "45", node("n1", "a", "40"))
	shows(t, v, "a", "40")
	if len(v.All()) != 1 || *rewound != 0 {
		t.Errorf("%d nodes, expected only n1 because n2 is not in the list; %d rewinds", len(v.All()), *rewound)
	}
}

func TestMissingInAListIsGone(t *testing.T) {
	v, _, _ := newTestWatch(t)
	v.Overlay(node("n1", "a", "30")) // written before the list of 35, which shows the deletion
	relist(t, v, nil, "35")
	shows(t, v, "", "")
}

func TestCreatedAfterTheListStays(t *testing.T) {
	v, _, _ := newTestWatch(t)
	// A read returned a Node that was created while the list was in flight.
	relist(t, v, func() { v.Overlay(node("n1", "new", "33")) }, "31", node("n1", "a", "10"))
	shows(t, v, "new", "33")
	must(t, v.store().Delete(node("n1", "a", "32")))
	relist(t, v, func() { v.Overlay(node("n1", "new", "35")) }, "34")
	shows(t, v, "new", "35")
	relist(t, v, nil, "36")
	shows(t, v, "", "")
}

func TestDeletedAndCreatedAgain(t *testing.T) {
	v, _, _ := newTestWatch(t)
	// The process's own read was faster than the watch.
	v.Overlay(node("n1", "new", "33"))
	must(t, v.store().Delete(node("n1", "a", "32")))
	shows(t, v, "new", "33")
	must(t, v.store().Add(node("n1", "new", "33")))
	shows(t, v, "new", "33")
	must(t, v.store().Delete(node("n1", "new", "34")))
	shows(t, v, "", "")
}

func TestDeletedWhateverWeWrote(t *testing.T) {
	v, _, _ := newTestWatch(t)
	v.Overlay(node("n1", "a", "30"))
	must(t, v.store().Delete(node("n1", "a", "31")))
	shows(t, v, "", "")
}

// TestAnswerAfterTheDeletion checks that a late answer to a leader's write is dropped if the watch has already shown
// the deletion of the Node. If it were stored, the Node would take a slot indefinitely, because no watch reports the
// deletion again.
func TestAnswerAfterTheDeletion(t *testing.T) {
	v, count, _ := newTestWatch(t)
	must(t, v.store().Delete(node("n1", "a", "31")))
	before := *count
	if v.Overlay(node("n1", "a", "30")) {
		t.Error("the answer to a write of a deleted Node counted as a change")
	}
	shows(t, v, "", "")
	if *count != before {
		t.Error("there was a notification without a change")
	}
	if !v.Overlay(node("n1", "new", "32")) {
		t.Error("a Node that was created after the deletion did not count as a change")
	}
	shows(t, v, "new", "32")
}

func TestForget(t *testing.T) {
	v, count, _ := newTestWatch(t)
	// The Node was not found, and in the meantime the watch delivers its successor.
	must(t, v.store().Delete(node("n1", "a", "31")))
	must(t, v.store().Add(node("n1", "new", "32")))
	before := *count
	v.Forget("n1", "10")
	shows(t, v, "new", "32")
	if *count != before {
		t.Error("there was a notification although nothing was forgotten")
	}
	v.Forget("n1", "32")
	shows(t, v, "", "")
	if *count != before+1 {
		t.Error("there was no notification")
	}
	v.Forget("n1", "32")
	if *count != before+1 {
		t.Error("there was a notification about an unknown Node")
	}
}

// TestStoreSetBack checks the Watch after a restore of etcd from a backup, when resourceVersions are small again. A
// Watch that kept the larger ones would show wrong Nodes for days, until the numbers have caught up.
func TestStoreSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		known   func(v *nodes) // after the list of 20
		at      string
		version string // the version of n1 in the list
		rewound int
	}{
		"nothing was known that the list lacks":       {func(*nodes) {}, "21", "10", 0},
		"a list older than what the watch has shown":  {func(v *nodes) { must(t, v.store().Update(node("n1", "a", "40"))) }, "29", "5", 1},
		"a list older than a deletion":                {func(v *nodes) { must(t, v.store().Delete(node("n9", "z", "40"))) }, "29", "10", 1},
		"a list older than what a write returned":     {func(v *nodes) { v.Overlay(node("n1", "a", "40")) }, "29", "5", 1},
		"a later list with an older version of n1":    {func(v *nodes) { v.Overlay(node("n1", "a", "30")) }, "50", "12", 1},
		"a list as old as the first, nothing written": {func(*nodes) {}, "20", "10", 0},
	} {
		v, _, rewound := newTestWatch(t)
		c.known(v)
		relist(t, v, nil, c.at, node("n1", "a", c.version))
		shows(t, v, "a", c.version)
		if *rewound != c.rewound {
			t.Errorf("%s: noticed %d times", name, *rewound)
		}
		// From here on the small numbers count.
		at, err := strconv.Atoi(c.at)
		must(t, err)
		next := node("n1", "a", strconv.Itoa(at+1))
		must(t, v.store().Update(next))
		shows(t, v, "a", next.ResourceVersion)
		relist(t, v, nil, strconv.Itoa(at+2), next)
		if *rewound != c.rewound {
			t.Errorf("%s: noticed again", name)
		}
	}
}

// TestOnlyWhatMattersNotifies checks that there is no notification for versions without a relevant difference and for
// objects of which nothing is kept, but that the newest version is stored.
func TestOnlyWhatMattersNotifies(t *testing.T) {
	v, count, _ := newTestWatch(t)
	alike := func(version string) *corev1.Node {
		n := node("n1", "a", version)
		n.Labels["version"] = "10"
		return n
	}
	must(t, v.store().Update(alike("21")))
	must(t, v.store().Add(node("unkept", "u", "22")))
	must(t, v.store().Delete(node("unkept", "u", "23")))
	relist(t, v, nil, "24", alike("21"), node("unkept", "u", "22"))
	if *count != 1 || v.Get("n1").ResourceVersion != "21" || v.Get("unkept") != nil || len(v.All()) != 1 {
		t.Errorf("notified %d times, shows %+v", *count, v.All())
	}
	must(t, v.store().Update(node("n1", "a", "25")))
	relist(t, v, nil, "26", node("n1", "a", "26"))
	relist(t, v, nil, "27")
	if *count != 4 {
		t.Errorf("%d notifications of three changes", *count-1)
	}
}

func TestAnotherKind(t *testing.T) {
	v, _, _ := newTestWatch(t)
	pod := &corev1.Pod{}
	for name, err := range map[string]error{
		"Add": v.store().Add(pod), "Update": v.store().Update(pod), "Delete": v.store().Delete(pod), "Replace": v.store().Replace([]any{pod}, "50"),
	} {
		if err == nil {
			t.Errorf("%s accepts a Pod", name)
		}
	}
	shows(t, v, "a", "10")
}
