package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/kube"
)

// leaseWatch watches the one Lease for as long as this host is a candidate. The
// elector of a standby reads the Lease here, without a request to the API server. So a
// thousand standbys cost a thousand watches of one object, and no request for half an
// hour. A leader learns here that the emergency stop was set.
//
// The watch may be late. So a candidate reads the Lease again before it takes it (see
// termLock.Update), and a leader decides nothing until the watch shows its own term.
//
// Hosts that are not candidates have no leaseWatch. They read the Lease at a commit.
type leaseWatch struct {
	*kube.LeaseWatch
	namespace, name string
	// freed holds a token when a Lease that was held is no longer held.
	freed chan struct{}

	mu   sync.Mutex
	last *coordinationv1.Lease // the Lease at the last call of changed
	// listen receives every change; nil for no listener.
	listen func(before, now *coordinationv1.Lease)
}

// newLeaseWatch returns a leaseWatch; rewound is as in [kube.WatchOptions].
func newLeaseWatch(client kube.API, namespace, name string, rewound func()) *leaseWatch {
	w := &leaseWatch{namespace: namespace, name: name, freed: make(chan struct{}, 1)}
	w.LeaseWatch = kube.WatchLease(client, namespace, name, w.changed, rewound)
	return w
}

// now returns the latest Lease, or nil if there is none. The caller must not change it.
func (w *leaseWatch) now() *coordinationv1.Lease { return w.Get(w.namespace + "/" + w.name) }

// changed handles a change of the Lease: it signals freed if the Lease was released, and
// calls the listener.
func (w *leaseWatch) changed() {
	w.mu.Lock()
	before, now, listen := w.last, w.now(), w.listen
	w.last = now
	w.mu.Unlock()
	if holderOf(before) != "" && now != nil && holderOf(now) == "" {
		select {
		case w.freed <- struct{}{}:
		default:
		}
	}
	if listen != nil {
		listen(before, now)
	}
}

// listenTo makes f the listener, and calls it at once with the current Lease. nil removes
// the listener.
func (w *leaseWatch) listenTo(f func(before, now *coordinationv1.Lease)) {
	w.mu.Lock()
	w.listen = f
	w.mu.Unlock()
	if f != nil && w.Listed() {
		f(nil, w.now())
	}
}

// free reports whether, in the latest Lease, no instance holds it.
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

// read adds a Lease that a Get or an Update of this process returned to the view.
func (w *leaseWatch) read(lease *coordinationv1.Lease) {
	if w.Overlay(lease) {
		w.changed()
	}
}

// reportingLeases passes each Lease that a Get or an Update returns to read. So a leader
// sees what its own lock has read, even if the watch is behind. It bounds each request: client-go's
// elector does not bound those of a candidate, and one request of a leader may take all of the time
// that it has to renew the Lease.
type reportingLeases struct {
	coordinationclient.LeasesGetter
	read func(*coordinationv1.Lease)
}

// Leases returns the Leases of a namespace.
func (t reportingLeases) Leases(namespace string) coordinationclient.LeaseInterface {
	return reportingLease{t.LeasesGetter.Leases(namespace), t.read}
}

type reportingLease struct {
	coordinationclient.LeaseInterface
	read func(*coordinationv1.Lease)
}

// Get gets a Lease.
func (t reportingLease) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	lease, err := t.LeaseInterface.Get(ctx, name, o)
	if err = kube.VerifyLease(lease, err, name); err == nil {
		t.read(lease.DeepCopy()) // the lock writes on the one that it was given
	}
	return lease, err
}

// Update updates a Lease.
func (t reportingLease) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	now, err := t.LeaseInterface.Update(ctx, lease, o)
	if err = kube.VerifyLease(now, err, lease.Name); err == nil && holderOf(now) != holderOf(lease) {
		err = kube.ErrNotLease
	}
	if err == nil {
		t.read(now.DeepCopy())
	}
	return now, err
}

// record returns the Lease as an elector reads it. ok is false if the list or watch fails
// or has not begun; then the caller has to ask the API server.
func (w *leaseWatch) record() (record *resourcelock.LeaderElectionRecord, raw []byte, err error, ok bool) {
	if !w.Listed() || w.Err() != nil {
		return nil, nil, nil, false
	}
	lease := w.now()
	if lease == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), w.name), true
	}
	record = resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if raw, err = json.Marshal(*record); err != nil {
		return nil, nil, fmt.Errorf("encoding the Lease's record: %w", err), true
	}
	return record, raw, nil, true
}
