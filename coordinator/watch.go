package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/node/object"
)

// leaseWatch keeps the one Lease in view for as long as this host is a
// candidate. The elector of one that stands by reads it here, which asks the
// API server nothing: a thousand candidates that stand by cost a thousand
// watches of one object and no request for half an hour. A leader sees here
// that somebody set the emergency stop.
//
// What it shows may be late. Whoever decides by it to write the Lease reads it
// again first (see termLock.Update), and a leader that has not seen its own
// term in it yet decides nothing.
//
// Hosts that are no candidates have none: they read the Lease at a commit.
type leaseWatch struct {
	client          kubernetes.Interface
	namespace, name string
	// freed holds a token when a Lease that was held is held no more.
	freed chan struct{}
	// rewound is called when a list is older than the Lease that was shown before.
	rewound func()

	mu     sync.Mutex
	lease  *coordinationv1.Lease // nil: there is none
	listed bool
	err    error // why it cannot be read at present
	// listen is told of every change; nil while nobody listens.
	listen func(before, now *coordinationv1.Lease)
}

func newLeaseWatch(client kubernetes.Interface, namespace, name string, rewound func()) *leaseWatch {
	return &leaseWatch{client: client, namespace: namespace, name: name, freed: make(chan struct{}, 1), rewound: rewound}
}

// run lists and watches until ctx ends.
func (w *leaseWatch) run(ctx context.Context) {
	leases := w.client.CoordinationV1().Leases(w.namespace)
	lw := &object.ListWatch{
		Name:     w.name,
		ListFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return leases.List(ctx, o) },
		WatchFunc: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, o)
		},
		Answered: w.answered,
	}
	cache.NewReflectorWithOptions(lw, &coordinationv1.Lease{}, leaseStore{w},
		cache.ReflectorOptions{Name: "lease", MinWatchTimeout: object.WatchTimeout}).RunWithContext(object.Quiet(ctx))
}

func (w *leaseWatch) answered(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// now is the Lease as it was shown last, nil for none. It must not be changed.
func (w *leaseWatch) now() *coordinationv1.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease
}

// hear has f told of every change, with the one before, and at once of the
// Lease as it is; nil ends that.
func (w *leaseWatch) hear(f func(before, now *coordinationv1.Lease)) {
	w.mu.Lock()
	w.listen = f
	listed, lease := w.listed, w.lease
	w.mu.Unlock()
	if f != nil && listed {
		f(nil, lease)
	}
}

// free reports whether the Lease was shown last as one that nobody holds.
func (w *leaseWatch) free() bool {
	lease := w.now()
	return lease != nil && holderOf(lease) == ""
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// read takes in what a Get of this process showed, if it is a newer version of
// the Lease that the watch has shown. Another Lease it leaves to the watch: one
// that came late, after its deletion, would stay for ever.
func (w *leaseWatch) read(lease *coordinationv1.Lease) {
	if before := w.now(); before != nil && before.UID == lease.UID {
		w.show(lease, false)
	}
}

// told tells of each Lease that the API server answers a Get or an Update with:
// a leader sees what its own lock has read, however far a watch is behind.
type told struct {
	coordinationclient.LeasesGetter
	read func(*coordinationv1.Lease)
}

// Leases is of a namespace.
func (t told) Leases(namespace string) coordinationclient.LeaseInterface {
	return toldLeases{t.LeasesGetter.Leases(namespace), t.read}
}

type toldLeases struct {
	coordinationclient.LeaseInterface
	read func(*coordinationv1.Lease)
}

// Get gets a Lease.
func (t toldLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := t.LeaseInterface.Get(ctx, name, o)
	if err == nil {
		t.read(lease.DeepCopy()) // the lock writes on the one that it was given
	}
	return lease, err
}

// Update updates a Lease.
func (t toldLeases) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	now, err := t.LeaseInterface.Update(ctx, lease, o)
	if err == nil {
		t.read(now.DeepCopy())
	}
	return now, err
}

// trouble is why the Lease is not in view, nil if that is not known.
func (w *leaseWatch) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// show takes in a Lease that was shown, nil for none, unless a newer version
// of it was. A list is the truth whatever was shown before.
func (w *leaseWatch) show(lease *coordinationv1.Lease, listed bool) {
	w.mu.Lock()
	before := w.lease
	if before != nil && lease != nil && before.UID == lease.UID && !listed {
		if c, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, before.ResourceVersion); err == nil && c <= 0 {
			w.mu.Unlock()
			return
		}
	}
	w.lease = lease
	if listed {
		w.listed, w.err = true, nil
	}
	listen := w.listen
	w.mu.Unlock()
	if holderOf(before) != "" && lease != nil && holderOf(lease) == "" {
		select {
		case w.freed <- struct{}{}:
		default:
		}
	}
	if listen != nil {
		listen(before, lease)
	}
}

// record is the Lease as an elector reads it; ok is false while list or watch
// fail, or have not begun: then the API server has to be asked.
func (w *leaseWatch) record() (record *resourcelock.LeaderElectionRecord, raw []byte, err error, ok bool) {
	w.mu.Lock()
	lease, up := w.lease, w.listed && w.err == nil
	w.mu.Unlock()
	if !up {
		return nil, nil, nil, false
	}
	if lease == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), w.name), true
	}
	record = resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if raw, err = json.Marshal(*record); err != nil {
		return nil, nil, fmt.Errorf("encoding the Lease's record: %w", err), true
	}
	return record, raw, nil, true
}

// leaseStore is the one Lease, as the reflector fills it.
type leaseStore struct{ w *leaseWatch }

func (s leaseStore) Add(obj any) error {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		s.w.show(lease, false)
	}
	return nil
}

func (s leaseStore) Update(obj any) error { return s.Add(obj) }

func (s leaseStore) Delete(any) error {
	s.w.show(nil, false)
	return nil
}

func (s leaseStore) Replace(objs []any, at string) error {
	if before := s.w.now(); before != nil {
		if c, err := resourceversion.CompareResourceVersion(at, before.ResourceVersion); err == nil && c < 0 {
			s.w.rewound()
		}
	}
	for _, obj := range objs {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			s.w.show(lease, true)
			return nil
		}
	}
	s.w.show(nil, true)
	return nil
}

func (leaseStore) Resync() error { return nil }
