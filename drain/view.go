package drain

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// facts is what is kept of a pod: a node's pods weigh a few kilobytes here,
// not megabytes.
type facts struct {
	Pod
	verdict    Verdict
	priority   int32
	controller types.UID // "" without one
	grace      time.Duration
	deadline   time.Time // of a terminating pod: the end of its grace period
	finalizers string    // of a terminating pod, comma separated
}

// maxFinalizers bounds how many finalizers of a pod are named.
const maxFinalizers = 4

// maxGrace bounds the grace period that is counted with, in seconds: an author of a
// pod may write any number.
const maxGrace = 7 * 24 * 3600

func factsOf(p *corev1.Pod, v Verdict) facts {
	f := facts{Pod: identify(p), verdict: v}
	if p.Spec.Priority != nil {
		f.priority = *p.Spec.Priority
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		f.controller = ref.UID
	}
	if p.Spec.TerminationGracePeriodSeconds != nil {
		f.grace = time.Duration(min(max(*p.Spec.TerminationGracePeriodSeconds, 0), maxGrace)) * time.Second
	}
	if p.DeletionTimestamp != nil {
		f.deadline = p.DeletionTimestamp.Time
		f.finalizers = strings.Join(p.Finalizers[:min(len(p.Finalizers), maxFinalizers)], ", ")
	}
	return f
}

// view is the store that the reflector fills: the node's pods that matter to
// the drain, as the watch shows them.
type view struct {
	node    string
	verdict func(*corev1.Pod) Verdict
	changed chan struct{} // holds one token when something changed

	mu     sync.Mutex
	pods   map[types.NamespacedName]facts
	synced bool  // a first list is in
	err    error // why list or watch fails at present, nil while they do not
}

func newView(node string, verdict func(*corev1.Pod) Verdict) *view {
	return &view{
		node:    node,
		verdict: verdict,
		changed: make(chan struct{}, 1),
		pods:    map[types.NamespacedName]facts{},
	}
}

// snapshot is the view at one moment.
type snapshot struct {
	pods   []facts // in no order
	synced bool
	err    error
}

func (v *view) snapshot() snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := snapshot{synced: v.synced, err: v.err, pods: make([]facts, 0, len(v.pods))}
	for _, f := range v.pods {
		s.pods = append(s.pods, f)
	}
	return s
}

// update runs f under the lock and wakes the reader.
func (v *view) update(f func()) {
	v.mu.Lock()
	f()
	v.mu.Unlock()
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// put keeps the pod if it is one to evict or to wait for. The field selector
// already confines list and watch to the node; looking again costs nothing
// and keeps a server or proxy that does not know it from emptying a cluster.
func (v *view) put(p *corev1.Pod) {
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	verdict := v.verdict(p)
	if p.Spec.NodeName != v.node || verdict.Class == Leave {
		delete(v.pods, key)
		return
	}
	v.pods[key] = factsOf(p, verdict)
}

func asPod(obj any) (*corev1.Pod, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("a watch of pods showed a %T", obj)
	}
	return p, nil
}

// Add, Update, Delete, Replace and Resync are cache.ReflectorStore.
func (v *view) Add(obj any) error {
	p, err := asPod(obj)
	if err != nil {
		return err
	}
	v.update(func() { v.put(p) })
	return nil
}

func (v *view) Update(obj any) error { return v.Add(obj) }

func (v *view) Delete(obj any) error {
	p, err := asPod(obj)
	if err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	v.update(func() { delete(v.pods, key) })
	return nil
}

func (v *view) Replace(objs []any, _ string) error {
	pods := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		p, err := asPod(obj)
		if err != nil {
			return err
		}
		pods = append(pods, p)
	}
	v.update(func() {
		clear(v.pods)
		for p := range slices.Values(pods) {
			v.put(p)
		}
		v.synced = true
	})
	return nil
}

func (v *view) Resync() error { return nil }

// heard notes how the last list or watch request went.
func (v *view) heard(err error) {
	v.mu.Lock()
	same := fmt.Sprint(v.err) == fmt.Sprint(err)
	v.mu.Unlock()
	if same {
		return
	}
	v.update(func() { v.err = err })
}
