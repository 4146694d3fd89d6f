package rollout

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// watcher follows all Nodes. It plays the authors of hooks, and confirms each hook at once unless the test prevents
// that. It records the states of each node.
type watcher struct {
	confirm func(node, hook, turn string)

	mu     sync.Mutex
	nodes  map[string]*turn.Node
	kept   map[string]bool
	states map[string][]v1alpha1.State
	marks  map[string]int // how often the mark was set
	frozen map[string]int // how often the turn was frozen
}

func (s *scene) watch() *watcher {
	w := &watcher{
		nodes: map[string]*turn.Node{}, kept: map[string]bool{}, states: map[string][]v1alpha1.State{},
		marks: map[string]int{}, frozen: map[string]int{},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.T.Context()))
	client := s.ControlPlane.Client()
	var running sync.WaitGroup
	w.confirm = func(node, hook, turn string) {
		running.Go(func() {
			body, err := json.Marshal(map[string]any{"metadata": map[string]any{
				"annotations": map[string]string{v1alpha1.HookAnnotation(hook): turn}}})
			// Retry until the confirmation is written: the turn must not wait indefinitely because the API server
			// was down for a while.
			for err == nil && ctx.Err() == nil {
				_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "hook-" + hook})
				if err == nil || apierrors.IsNotFound(err) {
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(pollEvery):
				}
			}
		})
	}
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.Everything()), &corev1.Node{}, 0, cache.Indexers{})
	take := func(obj any) {
		if o, ok := obj.(*corev1.Node); ok && s.Fleet.Host(o.Name) != nil {
			n := turn.FromNode(o)
			w.take(&n)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: take, UpdateFunc: func(_, obj any) { take(obj) },
	})
	s.Must(err)
	running.Go(func() { informer.RunWithContext(ctx) })
	s.T.Cleanup(func() { cancel(); running.Wait() })
	if !cache.WaitForCacheSync(s.Within(rig.Soon).Done(), informer.HasSynced) {
		s.T.Fatal("timed out waiting for the first list of Nodes")
	}
	return w
}

func (w *watcher) take(n *turn.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.nodes[n.Name]
	w.nodes[n.Name] = n
	if states := w.states[n.Name]; len(states) == 0 || states[len(states)-1] != n.State {
		w.states[n.Name] = append(states, n.State)
	}
	if before != nil && !before.Mark && n.Mark {
		w.marks[n.Name]++
	}
	if g := n.Grant; g != nil && g.PausedSince != nil && (before == nil || before.Grant == nil || before.Grant.PausedSince == nil) {
		w.frozen[n.Name]++
	}
	w.confirmAll(n)
}

// confirmAll confirms the hooks that the node waits for. The caller holds mu.
func (w *watcher) confirmAll(n *turn.Node) {
	if !n.Ours() {
		return
	}
	for _, h := range n.Grant.Terms.Hooks(n.State) {
		if n.Hooks[h.Name] != n.Turn && !w.kept[h.Name] {
			w.confirm(n.Name, h.Name, n.Turn)
		}
	}
}

// keep prevents the confirmation of a hook until release.
func (w *watcher) keep(hook string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[hook] = true
}

func (w *watcher) release(hook string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kept, hook)
	for _, n := range w.nodes {
		w.confirmAll(n)
	}
}

// caughtUp waits until the watcher has seen the current version of the Node, because its records may lag.
func (s *scene) caughtUp(name string) {
	s.T.Helper()
	version := func(n *turn.Node) uint64 {
		v, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
		s.Must(err)
		return v
	}
	now := version(s.Now(name))
	s.Eventually("the watcher to see the current version of "+name, func(context.Context) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.nodes[name]
		return n != nil && version(n) >= now, nil
	})
}

// path returns the states of the node so far.
func (s *scene) path(name string) []v1alpha1.State {
	s.T.Helper()
	s.caughtUp(name)
	return s.watcher.path(name)
}

// marked returns how often the node was marked so far.
func (s *scene) marked(name string) int {
	s.T.Helper()
	s.caughtUp(name)
	return s.watcher.marked(name)
}

func (w *watcher) path(name string) []v1alpha1.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.states[name])
}

// forget clears the recorded path and marks of the node.
func (w *watcher) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[name], w.marks[name], w.frozen[name] = nil, 0, 0
}

func (w *watcher) marked(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marks[name]
}

func (w *watcher) froze(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frozen[name]
}

// hookConfirmed returns a condition that the hook is confirmed.
func hookConfirmed(s *scene, name, hook, turn string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) { return s.Now(name).Hooks[hook] == turn, nil }
}
