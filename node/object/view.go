package object

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// View is what this process knows of Nodes: a LIST from the quorum, kept up by
// a watch, overlaid by what this process's own writes and reads returned. A
// Node never goes back to an older version, so nobody decides twice because
// the watch has not shown the first decision yet.
//
// Its methods may be called from any goroutine. The Nodes that it hands out
// are shared and must not be changed.
type View struct {
	client kubernetes.Interface
	name   string // of the only Node that is watched; "" is all of them
	notify func()
	// rewound is called when the store turns out to have gone back in time; it
	// must not block.
	rewound func()

	mu     sync.Mutex
	nodes  map[string]*corev1.Node
	listed bool
	at     string // the newest resourceVersion that list or watch have shown
	err    error
}

// WatchTimeout is how long a watch of ours lasts at least; it lasts up to twice
// that, as the API server's own choice would be. client-go's five to ten
// minutes would make most of an idle host's requests. Nothing is lost by it: a
// bookmark comes every minute, and a connection that is dead is noticed within
// as much by the transport's own pings.
const WatchTimeout = 30 * time.Minute

// NewView makes a view of the Node called name, or of all Nodes if name is
// empty. notify is called after every change, never with a lock held; it must
// not block.
func NewView(client kubernetes.Interface, name string, notify func()) *View {
	return &View{client: client, name: name, notify: notify, rewound: func() {}, nodes: map[string]*corev1.Node{}}
}

// OnRewind sets f, which the View calls each time a list from the quorum shows that
// the API server's store went back in time: it was restored from a backup. The View
// then forgets all that it knew. f must not block. Call OnRewind before Run.
func (v *View) OnRewind(f func()) { v.rewound = f }

// Run lists and watches until ctx ends. It never gives up: while the API
// server is away, [View.Err] says so.
func (v *View) Run(ctx context.Context) {
	nodes := v.client.CoreV1().Nodes()
	lw := &ListWatch{
		Name: v.name,
		ListFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := nodes.List(ctx, o)
			if err != nil {
				return nil, fmt.Errorf("listing nodes: %w", err)
			}
			return list, nil
		},
		WatchFunc: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) },
		Answered:  v.answered,
	}
	r := cache.NewReflectorWithOptions(lw, &corev1.Node{}, store{v},
		cache.ReflectorOptions{Name: "nodes", MinWatchTimeout: WatchTimeout})
	r.RunWithContext(Quiet(ctx))
}

// Listed reports whether a list from the quorum has been taken in.
func (v *View) Listed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.listed
}

// Err is why the Nodes cannot be read at present, or nil.
func (v *View) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// Get returns the newest version known of a Node, or nil.
func (v *View) Get(name string) *corev1.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nodes[name]
}

// Nodes returns the newest version known of every Node, in no order.
func (v *View) Nodes() []*corev1.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]*corev1.Node, 0, len(v.nodes))
	for _, n := range v.nodes {
		all = append(all, n)
	}
	return all
}

// Overlay takes in a Node that a write or a read of this process returned. It
// reports whether it was news; nobody else is told, who calls it knows.
func (v *View) Overlay(n *corev1.Node) bool { return v.put(n, false) }

// Forget drops a Node that a read or a write of this process did not find.
// resourceVersion is that of the Node as it was known before: one that is
// newer by now came from the watch, which will show its end as well.
func (v *View) Forget(name, resourceVersion string) {
	v.mu.Lock()
	old := v.nodes[name]
	gone := old != nil && !surelyNewer(old.ResourceVersion, resourceVersion)
	if gone {
		delete(v.nodes, name)
	}
	v.mu.Unlock()
	if gone {
		v.notify()
	}
}

// put takes in a Node, shown by the watch or by an answer to this process.
func (v *View) put(n *corev1.Node, watched bool) bool {
	n = v.strip(n)
	v.mu.Lock()
	old := v.nodes[n.Name]
	var news bool
	switch {
	case old != nil:
		news = newer(n.ResourceVersion, old.ResourceVersion)
	case watched || v.at == "":
		news = true
	default:
		// An answer that comes late: the watch is past it and shows no such
		// Node, so it was deleted. Taken in, it would stay for ever.
		news = newer(n.ResourceVersion, v.at)
	}
	told := news && watched
	if news {
		// A fleet's kubelets write statuses all the time that say nothing new to
		// us. The version is taken in, for the next write to be made of it, and
		// nobody is woken. A host is woken by every version of its own Node: it
		// waits for one at a check.
		if v.name == "" && old != nil && alike(old, n) {
			n.Labels, n.Annotations = old.Labels, old.Annotations
			told = false
		}
		v.nodes[n.Name] = n
	}
	if watched {
		v.at = n.ResourceVersion
	}
	v.mu.Unlock()
	if told {
		v.notify()
	}
	return news
}

// alike reports whether two stripped versions of a Node differ in nothing but
// their version.
func alike(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.CreationTimestamp.Equal(&b.CreationTimestamp) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable && a.Status.NodeInfo.BootID == b.Status.NodeInfo.BootID &&
		slices.Equal(a.Status.Conditions, b.Status.Conditions) && slices.Equal(a.Status.VolumesAttached, b.Status.VolumesAttached) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// newer compares two resourceVersions of one resource (KEP-5504). One that
// cannot be compared is taken as newer: it came later.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// surelyNewer is newer for what must not be taken on doubt.
func surelyNewer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}

// strip keeps what decisions are made of. Images, addresses, managed fields and
// other people's annotations are most of a Node, and five thousand of them a
// lot of memory. A host's view of its own Node keeps all conditions.
func (v *View) strip(n *corev1.Node) *corev1.Node {
	s := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, Labels: n.Labels, Annotations: ours(n.Annotations),
		},
		Spec: corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable},
	}
	s.Status.NodeInfo.BootID = n.Status.NodeInfo.BootID
	if v1alpha1.State(n.Labels[v1alpha1.LabelState]) == v1alpha1.StateBeforeReboot {
		// Volumes come and go all day on a busy fleet, and nobody else waits for
		// that. Their device paths say nothing.
		for _, v := range n.Status.VolumesAttached {
			s.Status.VolumesAttached = append(s.Status.VolumesAttached, corev1.AttachedVolume{Name: v.Name})
		}
	}
	if v.name != "" {
		s.Status.Conditions = n.Status.Conditions
		return s
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return s
}

// ours are the annotations that are lockkeeper's or its hooks'. What others keep
// on their Nodes, and change, is nothing to decide by. Labels are kept: people
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

func (v *View) answered(err error) {
	v.mu.Lock()
	changed := (err == nil) != (v.err == nil)
	v.err = err
	v.mu.Unlock()
	if changed {
		v.notify()
	}
}

// store is the view as the reflector fills it.
type store struct{ v *View }

func (s store) Add(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("a %T among nodes", obj)
	}
	s.v.put(n, true)
	return nil
}

func (s store) Update(obj any) error { return s.Add(obj) }

func (s store) Delete(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("a %T among nodes", obj)
	}
	s.v.mu.Lock()
	old := s.v.nodes[n.Name]
	// A deletion's resourceVersion is that of the deletion. What is newer is
	// another object of the same name.
	gone := old != nil && (old.UID == n.UID || newer(n.ResourceVersion, old.ResourceVersion))
	if gone {
		delete(s.v.nodes, n.Name)
	}
	s.v.at = n.ResourceVersion
	s.v.mu.Unlock()
	if gone {
		s.v.notify()
	}
	return nil
}

// Replace takes in a whole list. A Node of which this process has a newer
// version than the list keeps it, whatever the list says of its name: what is
// newer than the list will be in the watch after it. Every other Node that is
// missing from the list is gone.
//
// The store went back in time if a list from the quorum is older than what it
// showed before, or has an older version of a Node than was known when the list was
// made. Then nothing that was known counts.
func (s store) Replace(objs []any, at string) error {
	nodes := make(map[string]*corev1.Node, len(objs))
	for _, obj := range objs {
		n, ok := obj.(*corev1.Node)
		if !ok {
			return fmt.Errorf("a %T among nodes", obj)
		}
		nodes[n.Name] = s.v.strip(n)
	}
	s.v.mu.Lock()
	rewound := surelyNewer(s.v.at, at)
	kept := map[string]*corev1.Node{}
	for name, old := range s.v.nodes {
		if surelyNewer(old.ResourceVersion, at) {
			kept[name] = old
		} else if n := nodes[name]; n != nil && surelyNewer(old.ResourceVersion, n.ResourceVersion) {
			rewound = true
		}
	}
	if !rewound {
		maps.Copy(nodes, kept)
	}
	s.v.nodes, s.v.listed, s.v.at, s.v.err = nodes, true, at, nil
	s.v.mu.Unlock()
	if rewound {
		s.v.rewound()
	}
	s.v.notify()
	return nil
}

func (store) Resync() error { return nil }
