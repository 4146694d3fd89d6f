package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// watchTimeout is for how long the API server is asked to keep a watch; the
	// reflector asks for up to twice that. With client-go's own five to ten minutes,
	// new watches would be most of an idle host's requests.
	watchTimeout = 30 * time.Minute
	// listTimeout bounds one LIST, and how long a watch may outlast what was asked for.
	listTimeout = time.Minute
	// CatchUp is how long a watch has to be established before what a [Watch] holds
	// counts as current. The events that it missed come right after its start. A
	// server or proxy that accepts a watch and ends it at once makes nothing current.
	CatchUp = 5 * time.Second
)

// Object is an object of the API server.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource is a client of one resource, such as client-go's CoreV1().Nodes(). L is
// its type of list.
type Resource[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// WatchOptions say what a [Watch] holds, and whom it notifies. Callbacks must not
// block; they are called without a lock held, and nil is fine.
type WatchOptions[O Object, T any] struct {
	// Name is the plural of what is watched, for logs and errors.
	Name string
	// FieldSelector restricts what is listed and watched; "" does not.
	FieldSelector string
	// Keep returns what is held of an object, and false to hold nothing of it. It
	// must not retain the object's bulk.
	Keep func(O) (T, bool)
	// Same reports whether two versions of an object differ in nothing that matters
	// to the caller: the newer one is held, and Changed is not called. nil: each
	// version matters.
	Same func(was, is T) bool
	// Changed is called after a list or the watch has changed what is held, and when
	// Err changes.
	Changed func()
	// Rewound is called when a list shows that the API server's store went back in
	// time, as etcd does when it is restored from a backup.
	Rewound func()
	// NotServed reports whether the error of a list says that the API server does not
	// serve the kind at all, so that there are no objects.
	NotServed func(error) bool
}

// Watch holds the objects of one kind: a LIST from the quorum, kept up by a watch,
// and overlaid by what this process's own writes and reads returned. No object goes
// back to an older version, so that no part of this process decides twice because
// the watch has not shown the first decision yet.
//
// T is what is held of each object of type O. Keys are those of client-go's stores:
// "namespace/name", or the name alone where there are no namespaces. Methods may be
// called from any goroutine. Callers must not change what Get and All return.
type Watch[O Object, T any] struct {
	opts      WatchOptions[O, T]
	listFunc  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)

	mu     sync.Mutex
	held   map[string]entry[T]
	newest string // the newest resourceVersion that was seen of this kind
	listed bool
	err    error
	// asked is newest as it was when the last list was asked for, at askedAt.
	asked   string
	askedAt time.Time
	// current is the last time for which it is certain that what is held was up to
	// date; while a watch is established, since is when it began.
	current, since time.Time
	fresh          bool // no watch has begun since the last list
}

// entry is what is held of an object, with the version it is of.
type entry[T any] struct {
	uid     types.UID
	version string
	value   T
}

// NewWatch makes a Watch of a resource. It holds nothing before [Watch.Run] or
// [Watch.Load].
func NewWatch[L runtime.Object, O Object, T any](r Resource[L], o WatchOptions[O, T]) *Watch[O, T] {
	none := func() {}
	if o.Changed == nil {
		o.Changed = none
	}
	if o.Rewound == nil {
		o.Rewound = none
	}
	return &Watch[O, T]{
		opts: o, held: map[string]entry[T]{}, watchFunc: r.Watch,
		listFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
	}
}

// Run lists and watches until ctx ends. It never gives up: while the API server
// cannot be read, [Watch.Err] says why, and what was read before is still held.
func (w *Watch[O, T]) Run(ctx context.Context) {
	lw := listThenWatch{&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}}
	var example O
	cache.NewReflectorWithOptions(lw, example, store[O, T]{w},
		cache.ReflectorOptions{Name: w.opts.Name, MinWatchTimeout: watchTimeout}).RunWithContext(Quiet(ctx))
}

// listThenWatch keeps the reflector to LIST and WATCH: the list that it would stream
// is not a quorum read.
type listThenWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is the method that the reflector looks for.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// Load lists once, for a caller that does not Run the Watch.
func (w *Watch[O, T]) Load(ctx context.Context) error {
	list, version, err := w.ask(ctx, metav1.ListOptions{})
	if w.opts.NotServed != nil && w.opts.NotServed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("listing %s: %w", w.opts.Name, err)
	}
	objs := make([]any, len(items))
	for i := range items {
		objs[i] = items[i]
	}
	return store[O, T]{w}.Replace(objs, version)
}

// list lists for the reflector, one page or all.
func (w *Watch[O, T]) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, _, err := w.ask(ctx, o)
	return list, err
}

// ask lists from the quorum, and returns the version of the list as well. The
// reflector would ask for resourceVersion 0, which an API server answers from a
// cache that may be minutes old.
func (w *Watch[O, T]) ask(ctx context.Context, o metav1.ListOptions) (runtime.Object, string, error) {
	if o.Continue == "" {
		w.mu.Lock()
		w.asked, w.askedAt = w.newest, time.Now()
		w.mu.Unlock()
	}
	o.FieldSelector = w.opts.FieldSelector
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := w.listFunc(bounded, o)
	var m metav1.ListInterface
	if err == nil {
		m, err = meta.ListAccessor(list)
	}
	if err == nil {
		err = VerifyList(m)
	}
	if err != nil {
		err = fmt.Errorf("listing %s: %w", w.opts.Name, err)
		w.answered(ctx, err)
		return nil, "", err
	}
	return list, m.GetResourceVersion(), nil
}

// VerifyList returns an error if what was decoded from an answer is not a list of
// the API server's: each of those has a resourceVersion. client-go takes any JSON
// object for what it asked for, that of a proxy as well, and an empty list that the
// API server never sent would free the slots of all nodes.
func VerifyList(list metav1.ListInterface) error {
	if list.GetResourceVersion() == "" {
		return errors.New("the answer is not a list of objects; does a proxy answer in the API server's place?")
	}
	return nil
}

// watch watches for the reflector. If a watch starts from a version that the store
// has not reached yet, because the store went back in time, the API server sends
// nothing until the store reaches it, and the reflector would wait for hours. So
// before each watch but the first after a list, watch asks for the store's version.
// If the store is behind, the reflector lists again, and Replace sees that the list
// is older than what was known.
func (w *Watch[O, T]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w.mu.Lock()
	fresh := w.fresh
	w.fresh = false
	w.mu.Unlock()
	if !fresh {
		_, now, err := w.ask(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return nil, err
		}
		if surelyNewer(o.ResourceVersion, now) {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf(
				"the API server's store is at %s and was at %s before: it went back in time", now, o.ResourceVersion))
		}
	}
	o.FieldSelector = w.opts.FieldSelector
	bounded, cancel := context.WithTimeout(ctx, 2*watchTimeout+listTimeout)
	stream, err := w.watchFunc(bounded, o)
	if err != nil {
		cancel()
		err = fmt.Errorf("watching %s: %w", w.opts.Name, err)
		w.answered(ctx, err)
		return nil, err
	}
	w.mu.Lock()
	w.since = time.Now()
	w.mu.Unlock()
	w.answered(ctx, nil)
	return &stopping{stream, func() { cancel(); w.stopped() }}, nil
}

// stopping is a watch with something to do when it is over. The reflector stops
// each watch that it has begun, also one that the API server has ended.
type stopping struct {
	watch.Interface
	stopped func()
}

// Stop stops the watch.
func (s *stopping) Stop() {
	s.Interface.Stop()
	s.stopped()
}

// stopped records that no watch is established any more.
func (w *Watch[O, T]) stopped() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() && time.Since(w.since) >= CatchUp {
		w.current = time.Now()
	}
	w.since = time.Time{}
}

// answered records how the last list or watch request went.
func (w *Watch[O, T]) answered(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // err says that the caller gave up, and nothing about the API server
	}
	w.mu.Lock()
	changed := fmt.Sprint(err) != fmt.Sprint(w.err)
	w.err = err
	if w.opts.NotServed != nil && w.opts.NotServed(err) {
		changed = changed || !w.listed || len(w.held) > 0
		clear(w.held)
		w.listed, w.current = true, w.askedAt
	}
	w.mu.Unlock()
	if changed {
		w.opts.Changed()
	}
}

// Quiet returns ctx with a logger that logs no errors once ctx has ended. client-go
// logs an error when the context of a list or a watch ends ("Failed to watch", for
// one), although that is how every list and watch of ours ends. Errors before that
// are logged.
func Quiet(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(quiet{logger.GetSink(), ctx}))
}

// quiet is a LogSink that drops errors once ctx has ended.
type quiet struct {
	logr.LogSink
	ctx context.Context
}

// Error logs an error, unless the context has ended.
func (q quiet) Error(err error, msg string, keysAndValues ...any) {
	if q.ctx.Err() != nil {
		return
	}
	q.LogSink.Error(err, msg, keysAndValues...)
}

// WithValues returns a quiet sink with more key-value pairs.
func (q quiet) WithValues(keysAndValues ...any) logr.LogSink {
	return quiet{q.LogSink.WithValues(keysAndValues...), q.ctx}
}

// WithName returns a quiet sink with a longer name.
func (q quiet) WithName(name string) logr.LogSink {
	return quiet{q.LogSink.WithName(name), q.ctx}
}
