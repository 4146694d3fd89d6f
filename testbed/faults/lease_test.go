package faults

import (
	"encoding/json"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

func (f *leaderFleet) readLease() (*coordinationv1.Lease, error) {
	ctx, cancel := within(leaderSoon)
	defer cancel()
	return f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Get(ctx, v1alpha1.DefaultLeaseName, metav1.GetOptions{})
}

// leaseSpec is the Lease's spec as a backup has it.
func (f *leaderFleet) leaseSpec() (spec map[string]any, err error) {
	l, err := f.readLease()
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&l.Spec)
}

// lease is the term that the Lease names, "" for none, or no Lease. It may be called from a wire.
func (f *leaderFleet) lease() (holder string, err error) {
	l, err := f.readLease()
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil || l.Spec.HolderIdentity == nil:
		return "", err
	}
	return *l.Spec.HolderIdentity, nil
}

// holder is the same for the test itself.
func (f *leaderFleet) holder() string {
	f.t.Helper()
	holder, err := f.lease()
	f.must(err)
	return holder
}

// hostOf is the host whose term it is, nil for nobody's.
func (f *leaderFleet) hostOf(epoch string) *simhost.Host {
	name, _, _ := strings.Cut(epoch, "_")
	return f.Fleet.Host(name)
}

// editLease is a person's edit.
func (f *leaderFleet) editLease(doc map[string]any) {
	f.t.Helper()
	body, err := json.Marshal(doc)
	f.must(err)
	ctx, cancel := within(leaderSoon)
	defer cancel()
	_, err = f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Patch(ctx,
		v1alpha1.DefaultLeaseName, types.MergePatchType, body, metav1.PatchOptions{FieldManager: leaderKubectlManager})
	f.must(err)
}

func (f *leaderFleet) stopAll(why any) {
	f.t.Helper()
	f.editLease(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationStop: why}}})
}

func (f *leaderFleet) deleteLease() {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	err := f.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Delete(ctx, v1alpha1.DefaultLeaseName, metav1.DeleteOptions{})
	f.must(err)
}

// applyManifests puts the Lease back.
func (f *leaderFleet) applyManifests() {
	f.t.Helper()
	ctx, cancel := within(leaderSoon)
	defer cancel()
	f.must(f.ControlPlane.ApplyLockkeeper(ctx))
}

// A meddling is what a person does to the Lease while the leader is away.
type meddling struct {
	name string
	do   func(r *round)
}

// meddlings are all kinds. Nothing is the first one.
var meddlings = []meddling{
	{"nothing", nil},
	{"delete the Lease, and put it back from the manifests", func(r *round) {
		r.deleteLease()
		r.halt()
		r.applyManifests()
	}},
	{"blank the Lease", func(r *round) {
		r.editLease(map[string]any{"spec": map[string]any{"holderIdentity": ""}})
	}},
	{"name a stranger as the Lease's holder", func(r *round) {
		r.editLease(map[string]any{"spec": map[string]any{"holderIdentity": "stranger"}})
	}},
	{"empty the Lease's spec", func(r *round) {
		r.editLease(map[string]any{"spec": nil})
	}},
	{"delete the Lease, and put it back as it was", func(r *round) {
		r.deleteLease()
		r.halt()
		r.applyManifests()
		r.editLease(map[string]any{"spec": map[string]any{"holderIdentity": r.before, "leaseDurationSeconds": 2}})
	}},
}

// halt waits a while without a Lease, in which nothing may move but what was decided before.
func (r *round) halt() {
	r.t.Helper()
	for _, h := range r.Fleet.Hosts {
		if h == r.old && r.stroke.how == stopped {
			continue // it says nothing
		}
		r.until(h.Name()+" not to coordinate without a Lease", func() bool { return !strings.HasPrefix(h.Notify().Status, "coordinates") })
	}
	r.linger(r.stroke.linger)
}
