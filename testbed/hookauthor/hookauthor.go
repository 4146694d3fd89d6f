// Package hookauthor plays the authors of hooks: it confirms every hook that a turn waits for at once, unless a test holds the
// hook back. It reads Nodes and writes the hooks' annotations as a real hook does, and knows only the published API.
package hookauthor

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Authors are the authors of all hooks of a cluster. Their methods may be called by several goroutines.
type Authors struct {
	client kubernetes.Interface
	log    func(string)
	ctx    context.Context
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]*corev1.Node
	kept  map[string]bool
}

// retryAfter is how long an author waits after a confirmation that failed.
const retryAfter = time.Second

// Start confirms hooks until Close. It holds back the hooks in keep from the start, as Keep does. log receives the
// confirmations that failed; they are retried while the turn waits.
func Start(client kubernetes.Interface, log func(string), keep ...string) (*Authors, error) {
	a := &Authors{client: client, log: log, nodes: map[string]*corev1.Node{}, kept: map[string]bool{}}
	for _, hook := range keep {
		a.kept[hook] = true
	}
	a.ctx, a.stop = context.WithCancel(context.Background())
	informer := coreinformers.NewNodeInformer(client, 0, cache.Indexers{})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    a.take,
		UpdateFunc: func(_, obj any) { a.take(obj) },
		DeleteFunc: a.drop,
	})
	if err != nil {
		a.stop()
		return nil, fmt.Errorf("starting the authors of hooks: %w", err)
	}
	a.tasks.Go(func() { informer.RunWithContext(a.ctx) })
	return a, nil
}

// Close stops all authors. No hook is confirmed after it returns.
func (a *Authors) Close() {
	a.stop()
	a.tasks.Wait()
}

// Keep holds back the confirmations of a hook until Release.
func (a *Authors) Keep(hook string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept[hook] = true
}

// Release confirms what Keep held back, and lets the hook's author confirm again.
func (a *Authors) Release(hook string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.kept, hook)
	for _, n := range a.nodes {
		a.confirmAll(n)
	}
}

func (a *Authors) take(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes[n.Name] = n
	a.confirmAll(n)
}

func (a *Authors) drop(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if n, ok := obj.(*corev1.Node); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.nodes, n.Name)
	}
}

// confirmAll confirms what the node waits for; mu is held.
func (a *Authors) confirmAll(n *corev1.Node) {
	k := v1alpha1.ReadKeys(n.Labels, n.Annotations)
	if k.Grant == nil || k.Turn == "" || k.Grant.Turn != k.Turn {
		return
	}
	for _, h := range k.Grant.Terms.Hooks(k.State) {
		if k.Hooks[h.Name] != k.Turn && !a.kept[h.Name] {
			a.confirm(n, h.Name, k.Turn)
		}
	}
}

// confirm patches only the version of the Node that waits: a confirmation that was delayed must not land after the stage or the
// turn is over.
func (a *Authors) confirm(n *corev1.Node, hook, turn string) {
	if a.ctx.Err() != nil {
		return
	}
	a.tasks.Go(func() {
		body := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}}}`, n.ResourceVersion, v1alpha1.HookAnnotation(hook), turn)
		_, err := a.client.CoreV1().Nodes().Patch(a.ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "hook-" + hook})
		if err == nil || a.ctx.Err() != nil {
			return
		}
		if !apierrors.IsConflict(err) {
			a.log(fmt.Sprintf("confirming hook %s on %s: %v", hook, n.Name, err))
		}
		select {
		case <-time.After(retryAfter):
		case <-a.ctx.Done():
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := a.nodes[n.Name]; n != nil {
			a.confirmAll(n) // if it still waits
		}
	})
}
