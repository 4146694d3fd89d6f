package hosts

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// history contains every version of a Node from a moment on, in order. Polling would miss the states of a short turn.
type history struct {
	t *testing.T

	mu       sync.Mutex
	versions []*corev1.Node
	lost     watch.EventType // the reason why the watch ended
	changed  chan struct{}   // closed and replaced with each version
}

// follow starts the history of a Node with its current version.
func follow(t *testing.T, name string) *history {
	t.Helper()
	nodes := cp.Client().CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	hist := &history{t: t, versions: []*corev1.Node{n}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := watchtools.NewRetryWatcherWithContext(ctx, n.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
			return nodes.Watch(ctx, o)
		},
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			hist.add(e)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return hist
}

func (hist *history) add(e watch.Event) {
	hist.mu.Lock()
	defer hist.mu.Unlock()
	n, ok := e.Object.(*corev1.Node)
	if ok && (e.Type == watch.Added || e.Type == watch.Modified) {
		hist.versions = append(hist.versions, n)
	} else {
		hist.lost = e.Type
	}
	close(hist.changed)
	hist.changed = make(chan struct{})
}

// now returns the number of versions. The last of them is the current one.
func (hist *history) now() int {
	hist.mu.Lock()
	defer hist.mu.Unlock()
	return len(hist.versions)
}

// until waits for a version that cond accepts. It starts with the version before since, and returns the accepted
// version and all versions from the first one up to it.
func (hist *history) until(since int, what string, within time.Duration, explain func() string, cond func(*corev1.Node) bool) (*corev1.Node, []*corev1.Node) {
	hist.t.Helper()
	first := since - 1
	bound := time.After(within)
	for i := first; ; {
		hist.mu.Lock()
		versions, lost, changed := hist.versions, hist.lost, hist.changed
		hist.mu.Unlock()
		for ; i < len(versions); i++ {
			if cond(versions[i]) {
				return versions[i], versions[first : i+1]
			}
		}
		if lost != "" {
			hist.t.Fatalf("waiting for the Node %s: the watch ended: %s", what, lost)
		}
		select {
		case <-changed:
		case <-bound:
			n := versions[len(versions)-1]
			hist.t.Fatalf("timed out after %v waiting for the Node %s; it has the labels %v and the annotations %v\n%s", within, what, n.Labels, n.Annotations, explain())
		}
	}
}

// turns returns the ids of the turns that the Node has had.
func (hist *history) turns() []string {
	hist.mu.Lock()
	defer hist.mu.Unlock()
	var ids []string
	for _, n := range hist.versions {
		if id := n.Annotations[v1alpha1.AnnotationTurn]; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// course returns the sequence of the versions' states and of the host's wants, each without repetitions, and whether
// any version was cordoned.
func course(versions []*corev1.Node) (states, wants []string, cordoned bool) {
	for _, n := range versions {
		states = append(states, n.Labels[v1alpha1.LabelState])
		wants = append(wants, n.Labels[v1alpha1.LabelWants])
		cordoned = cordoned || n.Spec.Unschedulable || n.Annotations[v1alpha1.AnnotationCordon] != ""
	}
	return slices.Compact(states), slices.Compact(wants), cordoned
}
