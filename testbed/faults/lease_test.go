package faults

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

func (f *leaderFleet) readLease() (*coordinationv1.Lease, error) {
	ctx, cancel := within(rig.Soon)
	defer cancel()
	return f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Get(ctx, v1alpha1.DefaultLeaseName, metav1.GetOptions{})
}

// leaseSpec returns the spec of the Lease, as a backup would contain it.
func (f *leaderFleet) leaseSpec() (spec map[string]any, err error) {
	l, err := f.readLease()
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&l.Spec)
}

// lease returns the epoch in the Lease, or "" without a holder or a Lease. A proxy may call it.
func (f *leaderFleet) lease() (epoch string, err error) {
	ctx, cancel := within(rig.Soon)
	defer cancel()
	return f.LeaseHolder(ctx)
}

func (f *leaderFleet) deleteLease() {
	f.T.Helper()
	ctx, cancel := within(rig.Soon)
	defer cancel()
	err := f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Delete(ctx, v1alpha1.DefaultLeaseName, metav1.DeleteOptions{})
	f.Must(err)
}

// applyManifests recreates the Lease.
func (f *leaderFleet) applyManifests() {
	f.T.Helper()
	ctx, cancel := within(rig.Soon)
	defer cancel()
	f.Must(f.ControlPlane.ApplyLockkeeper(ctx))
}

// meddling is what an admin does to the Lease while the leader is away.
type meddling struct {
	name string
	do   func(r *round)
}

// meddlings lists all kinds. The first one does nothing.
var meddlings = []meddling{
	{"nothing", nil},
	{"delete the Lease, and put it back from the manifests", func(r *round) {
		r.deleteLease()
		r.halt()
		r.applyManifests()
	}},
	{"blank the Lease", func(r *round) {
		r.PatchLease(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	}},
	{"name a stranger as the Lease's holder", func(r *round) {
		r.PatchLease(map[string]any{"spec": map[string]any{"holderIdentity": "stranger"}})
	}},
	{"empty the Lease's spec", func(r *round) {
		r.PatchLease(map[string]any{"spec": nil})
	}},
	{"delete the Lease, and put it back as it was", func(r *round) {
		r.deleteLease()
		r.halt()
		r.applyManifests()
		r.PatchLease(map[string]any{"spec": map[string]any{"holderIdentity": r.before, "leaseDurationSeconds": 2}})
	}},
}

// halt waits for a while without a Lease. In that time only moves that were decided before may happen.
func (r *round) halt() {
	r.T.Helper()
	for _, h := range r.Fleet.Hosts {
		if h == r.old && r.stroke.how == stopped {
			continue // it reports no status
		}
		r.until(h.Name()+" not to coordinate without a Lease", func() bool { return !strings.HasPrefix(h.Notify().Status, "coordinates") })
	}
	r.linger(r.stroke.linger)
}
