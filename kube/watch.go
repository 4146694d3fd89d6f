package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	// watchTimeout is the shortest timeout of a watch that the reflector requests; it
	// requests up to twice that. With client-go's default of five to ten minutes, most of an
	// idle host's requests would be new watches.
	watchTimeout = 30 * time.Minute
	// listTimeout bounds one LIST, how long a watch may take to begin, and how long it may outlast
	// what was asked for.
	listTimeout = time.Minute
	// CatchUp is how long a watch has to be established before the objects that a [Watch]
	// holds count as current. The events that were missed arrive right after its start. A
	// watch that a server or proxy accepts and ends at once does not make them current.
	CatchUp = 5 * time.Second
	// silentFor is how long a watch may bring nothing, not even a bookmark, before it is
	// restarted; up to a fifth is added, so that not all hosts restart theirs at once. API
	// servers send each watch a bookmark about once a minute.
	silentFor = 150 * time.Second
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

// WatchOptions are the parameters of a [Watch]. Callbacks must not block. They are called
// without a lock held, and may be nil.
type WatchOptions[O Object, T any] struct {
	// Name is the plural of what is watched, for logs and errors.
	Name string
	// FieldSelector restricts what is listed and watched; "" does not.
	FieldSelector string
	// Keep returns the value to hold for an object, and false to hold none. The value must
	// not refer to the large parts of the object.
	Keep func(O) (T, bool)
	// Same reports whether two versions of an object are the same for the caller. If so,
	// the newer one is held, but Changed is not called. If Same is nil, Changed is called
	// for every version.
	Same func(was, is T) bool
	// Changed is called after a list or the watch has changed the held objects, and when
	// Err changes.
	Changed func()
	// Rewound is called, perhaps several times, when an answer shows that the API server's
	// store went back in time, as etcd does when it is restored from a backup.
	Rewound func()
	// NotServed reports whether the error of a list says that the API server does not
	// serve the kind at all, so that there are no objects.
	NotServed func(error) bool
	// Server identifies the server and the account of the next request. When it changes, the
	// Watch lists again: the objects and versions of one cluster mean nothing in another. If
	// Server is nil, they never change.
	Server func() any
}

// Watch holds the objects of one kind. It starts from a LIST from the quorum, and a watch
// keeps it up to date. The results of this process's own writes and reads replace older
// versions. No object goes back to an older version. Otherwise a part of this process could
// decide twice, because the watch has not reported the result of the first decision yet.
//
// T is the value that is held for each object of type O. Keys are those of client-go's
// stores: "namespace/name", or the name alone for cluster-scoped kinds. Methods may be called
// from any goroutine. Callers must not change the results of Get and All.
type Watch[O Object, T any] struct {
	opts      WatchOptions[O, T]
	listFunc  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)

	mu     sync.Mutex
	held   map[string]entry[T]
	sorted []T    // the held values, in the order of their keys; nil: Snapshot makes it again
	newest string // the newest resourceVersion that was seen of this kind
	listed bool
	err    error
	// asked is the value of newest when the last list was requested, at askedAt.
	asked   string
	askedAt time.Time
	// current is the last time at which the held objects were certainly up to date. since
	// is when the established watch began; zero if there is none.
	current, since time.Time
	server         any // what Server returned before the last list

	// stream is the established watch, heardAt when it brought something last, and silence
	// the timer that restarts it. bookmarks is whether watches are known to bring bookmarks.
	stream    watch.Interface
	heardAt   time.Time
	silence   *time.Timer
	bookmarks bool
}

// entry is the held value of an object, with the object's UID and version.
type entry[T any] struct {
	uid     types.UID
	version string
	value   T
	at      int // in Watch.sorted
}

// NewWatch returns a Watch of a resource. It holds nothing until [Watch.Run] or [Watch.Load]
// is called.
func NewWatch[L runtime.Object, O Object, T any](r Resource[L], o WatchOptions[O, T]) *Watch[O, T] {
	none := func() {}
	if o.Changed == nil {
		o.Changed = none
	}
	if o.Rewound == nil {
		o.Rewound = none
	}
	if o.Server == nil {
		o.Server = func() any { return nil }
	}
	return &Watch[O, T]{
		opts: o, held: map[string]entry[T]{}, watchFunc: r.Watch,
		listFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
	}
}

// Run lists and watches until ctx ends. It never gives up. While the API server cannot be
// read, [Watch.Err] returns the reason, and the Watch keeps the objects that it holds.
func (w *Watch[O, T]) Run(ctx context.Context) {
	lw := listThenWatch{&cache.ListWatch{ListWithContextFunc: w.list, WatchFuncWithContext: w.watch}}
	var example O
	cache.NewReflectorWithOptions(lw, example, store[O, T]{w},
		cache.ReflectorOptions{Name: w.opts.Name, MinWatchTimeout: watchTimeout}).RunWithContext(Quiet(ctx))
}

// listThenWatch makes the reflector use LIST and WATCH. A streamed list would not be a quorum
// read.
type listThenWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is the method that the reflector checks for.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// Load lists once, for a caller that does not call Run.
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
	server := w.opts.Server()
	w.mu.Lock()
	if o.Continue == "" {
		w.server = server
	}
	moved := server != w.server
	w.mu.Unlock()
	if moved {
		return nil, errMoved // the reflector begins the list again
	}
	list, _, err := w.ask(ctx, o)
	return list, err
}

// errMoved makes the reflector list again.
var errMoved = apierrors.NewResourceExpired("the kubeconfig names another server, certificate authority or account than before the list")

// ask lists from the quorum, and returns the list and its version. The reflector would request
// resourceVersion 0, which an API server answers from a cache that may be minutes old.
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

// VerifyList returns an error if the decoded answer is not a list from the API server, which
// always has a resourceVersion. client-go accepts any JSON object as the requested one, even if
// a proxy sent it. An empty list that the API server never sent would free the slots of all
// nodes.
func VerifyList(list metav1.ListInterface) error {
	if list.GetResourceVersion() == "" {
		return errors.New("the answer is not a list of objects; does a proxy answer in the API server's place?")
	}
	return nil
}

// watch watches for the reflector. If a watch starts from a version that the store
// has not reached yet, because the store went back in time, the API server sends
// nothing until the store reaches it, and the reflector would wait for hours. So
// watch asks for the store's version once the watch has begun: before, the store may
// still go back. If the store is behind, the reflector lists again, and Replace sees
// that the list is older than what was known. It also lists again if the list was
// another server's.
func (w *Watch[O, T]) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	server := w.opts.Server()
	w.mu.Lock()
	moved := server != w.server
	w.mu.Unlock()
	if moved {
		return nil, errMoved
	}
	o.FieldSelector = w.opts.FieldSelector
	bounded, cancel := context.WithTimeout(ctx, 2*watchTimeout+listTimeout)
	// A proxy may take the request and never answer it.
	late := time.AfterFunc(listTimeout, cancel)
	stream, err := w.watchFunc(bounded, o)
	if !late.Stop() {
		if err == nil {
			stream.Stop()
		}
		err = fmt.Errorf("no answer within %v", listTimeout)
	}
	if err != nil {
		cancel()
		err = fmt.Errorf("watching %s: %w", w.opts.Name, err)
		w.answered(ctx, err)
		return nil, err
	}
	_, now, err := w.ask(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case w.opts.Server() != server: // the requests may have reached either
		err = errMoved
	case err == nil && surelyNewer(o.ResourceVersion, now):
		w.opts.Rewound() // the reflector pauses before it lists again
		err = apierrors.NewResourceExpired(fmt.Sprintf(
			"the API server's store is at %s and was at %s before: it went back in time", now, o.ResourceVersion))
	}
	if err != nil {
		stream.Stop()
		cancel()
		return nil, err
	}
	w.mu.Lock()
	w.since = time.Now()
	w.stream, w.heardAt = stream, w.since
	w.silence = time.AfterFunc(silentFor+rand.N(silentFor/5), func() { w.restart(stream) })
	w.mu.Unlock()
	w.answered(ctx, nil)
	return &stopping{stream, func() { cancel(); w.stopped() }}, nil
}

// heard records that the watch has brought something.
func (w *Watch[O, T]) heard(bookmark bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heardAt = time.Now()
	w.bookmarks = w.bookmarks || bookmark
	if w.stream != nil {
		w.silence.Reset(silentFor + rand.N(silentFor/5))
	}
}

// restart ends a watch that has been silent for too long, so that the reflector starts
// another one where it ended. A proxy may keep a connection open, and answer its pings,
// although it no longer has one to the API server. If watches have not brought bookmarks,
// silence means nothing. If the next watch brings none, it is not restarted.
func (w *Watch[O, T]) restart(silent watch.Interface) {
	w.mu.Lock()
	stop := w.stream == silent && w.bookmarks && time.Since(w.heardAt) >= silentFor
	if stop {
		w.bookmarks = false
		w.current, w.since = w.heardAt, time.Time{}
	}
	w.mu.Unlock()
	if stop {
		silent.Stop()
	}
}

// stopping is a watch that calls a function when it is stopped. The reflector stops each watch
// that it has started, even if the API server has ended it.
type stopping struct {
	watch.Interface
	stopped func()
}

// Stop stops the watch.
func (s *stopping) Stop() {
	s.Interface.Stop()
	s.stopped()
}

// stopped records that no watch is established.
func (w *Watch[O, T]) stopped() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() && time.Since(w.since) >= CatchUp {
		w.current = time.Now()
	}
	w.since = time.Time{}
	w.silence.Stop()
	w.stream = nil
}

// answered records the result of the last list or watch request.
func (w *Watch[O, T]) answered(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the caller gave up, so err is not a failure of the API server
	}
	w.mu.Lock()
	changed := fmt.Sprint(err) != fmt.Sprint(w.err)
	w.err = err
	if w.opts.NotServed != nil && w.opts.NotServed(err) {
		changed = changed || !w.listed || len(w.held) > 0
		clear(w.held)
		w.sorted = nil
		w.listed, w.current = true, w.askedAt
	}
	w.mu.Unlock()
	if changed {
		w.opts.Changed()
	}
}

// Quiet returns ctx with a logger that drops errors after ctx has ended. client-go logs an
// error, such as "Failed to watch", when the context of a list or a watch ends, although every
// list and watch of lockkeeper ends in that way. Earlier errors are logged.
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
