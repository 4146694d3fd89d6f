package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"lockkeeper.dev/lockkeeper/kube"
)

// leaseWatch watches the one Lease for as long as this host is a candidate. The
// elector of a standby reads the Lease here, which asks the API server nothing: a
// thousand standbys cost a thousand watches of one object, and no request for half
// an hour. A leader sees here that the emergency stop was set.
//
// What it shows may be late. A candidate that decides by it to write the Lease reads
// the Lease again first (see termLock.Update), and a leader that has not seen its own
// term in it yet decides nothing.
//
// Hosts that are not candidates have none: they read the Lease at a commit.
type leaseWatch struct {
	*kube.LeaseWatch
	namespace, name string
	// freed holds a token when a Lease that was held is no longer held.
	freed chan struct{}

	mu   sync.Mutex
	last *coordinationv1.Lease // as changed saw it last
	// listen receives every change; nil for no listener.
	listen func(before, now *coordinationv1.Lease)
}

// newLeaseWatch makes a leaseWatch; rewound is as in [kube.WatchOptions].
func newLeaseWatch(client kubernetes.Interface, namespace, name string, rewound func()) *leaseWatch {
	w := &leaseWatch{namespace: namespace, name: name, freed: make(chan struct{}, 1)}
	w.LeaseWatch = kube.WatchLease(client, namespace, name, w.changed, rewound)
	return w
}

// now returns the Lease as it was shown last, nil for none. It must not be changed.
func (w *leaseWatch) now() *coordinationv1.Lease { return w.Get(w.namespace + "/" + w.name) }

// changed compares the Lease with the one before.
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

// listenTo has f called with every change, and at once with the Lease as it is; nil
// ends that.
func (w *leaseWatch) listenTo(f func(before, now *coordinationv1.Lease)) {
	w.mu.Lock()
	w.listen = f
	w.mu.Unlock()
	if f != nil && w.Listed() {
		f(nil, w.now())
	}
}

// free reports whether no instance held the Lease when it was last shown.
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

// read takes in a Lease that a Get or an Update of this process returned.
func (w *leaseWatch) read(lease *coordinationv1.Lease) {
	if w.Overlay(lease) {
		w.changed()
	}
}

// reportingLeases passes each Lease that a Get or an Update returns to read. So a leader
// sees what its own lock has read, however far the watch is behind.
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
	lease, err := t.LeaseInterface.Get(ctx, name, o)
	if err == nil {
		t.read(lease.DeepCopy()) // the lock writes on the one that it was given
	}
	return lease, err
}

// Update updates a Lease.
func (t reportingLease) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	now, err := t.LeaseInterface.Update(ctx, lease, o)
	if err == nil {
		t.read(now.DeepCopy())
	}
	return now, err
}

// record is the Lease as an elector reads it; ok is false while list or watch
// fail, or have not begun: then the API server has to be asked.
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
