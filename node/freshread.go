package node

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// maxReadAge is how old the first read of a look may be when what it allows is
// done, in monotonic time. A process that was stopped in between, for longer
// than its leader's Lease, must not go on as if nothing had happened.
const maxReadAge = 10 * time.Second

// freshRead is what was read from the quorum, and when and of which Node it was read.
type freshRead struct {
	step.FreshRead
	began time.Time
	rv    string // of the Node, for a commit's look
}

func (l *freshRead) valid() bool { return l != nil && time.Since(l.began) < maxReadAge }

// until returns when the look is too old to act on.
func (l *freshRead) until() time.Time { return l.began.Add(maxReadAge) }

// wrote lets a commit's look stand for the version that this process's own
// write made of the one that was looked at: between them was nothing.
func (l *freshRead) wrote(before, after string) {
	if l != nil && l.rv == before {
		l.rv = after
	}
}

// validRead is the look that may be used with Node n, or nil.
func (h *Host) validRead(n *turn.Node) *step.FreshRead {
	if !h.fresh.valid() {
		return nil
	}
	l := h.fresh.FreshRead
	if l.Evictable > 0 && h.drain.endedSince(h.fresh.began) {
		return nil // what it counted has been evicted
	}
	if l.Commit && h.fresh.rv != n.ResourceVersion {
		l.Commit = false // the Node is another version than the one it read
	}
	return &l
}

// read reads what the core asks for.
func (h *Host) read(ctx context.Context, what step.Read) error {
	switch what {
	case step.ReadShutdown:
		if err := h.askShutdown(ctx); err != nil {
			return hostError{err}
		}
		return nil
	case step.ReadLease:
		began := time.Now()
		lease, err := h.readLease(ctx)
		if err != nil {
			return err
		}
		h.fresh = &freshRead{FreshRead: step.FreshRead{Lease: lease}, began: began}
		return nil
	}
	return h.readCommit(ctx)
}

// readCommit reads, in this order: the own Node, the Lease, every source, the
// pods. The Lease after the Node: a leader that took over before the Node was
// read is then seen in the Lease, and one that takes over later lists the Node
// with this turn in it.
func (h *Host) readCommit(ctx context.Context) error {
	began := time.Now()
	h.fresh = nil
	known := ""
	if n := h.view.Get(h.name); n != nil {
		known = n.ResourceVersion
	}
	ctx, cancel := context.WithTimeout(ctx, maxReadAge) // a later answer is worth nothing
	defer cancel()
	obj, err := kube.Find(ctx, h.client, h.name)
	if err != nil {
		return err
	}
	if obj == nil {
		h.view.Forget(h.name, known)
		return fmt.Errorf("the API server has no Node %s", h.name)
	}
	h.view.Overlay(obj)
	lease, err := h.readLease(ctx)
	if err != nil {
		return err
	}
	// What only gives back does not wait for a source that cannot be read.
	if err := h.readSources(ctx); err != nil && obj.Labels[v1alpha1.LabelState] != string(v1alpha1.StateBeforeUncordon) {
		return hostError{err}
	}
	n := turn.FromNode(obj)
	policies := h.readPolicies(&n)
	pods, err := h.drainer(step.EvictionBy(n.Grant, policies.Terms())).Remaining(ctx)
	if err != nil {
		return err
	}
	if age := time.Since(began); age >= maxReadAge {
		return fmt.Errorf("the look before a commit took %v, expected less than %v", age.Round(time.Millisecond), maxReadAge)
	}
	h.fresh = &freshRead{FreshRead: step.FreshRead{Lease: lease, Commit: true, Evictable: len(pods)}, began: began, rv: obj.ResourceVersion}
	return nil
}

// readLease reads the Lease from the quorum.
func (h *Host) readLease(ctx context.Context) (step.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := h.client.CoordinationV1().Leases(h.LeaseNamespace).Get(ctx, h.LeaseName, metav1.GetOptions{})
	if kube.NoLease(err, h.LeaseName) {
		return step.Lease{}, nil // a missing Lease is a stop, not a failure
	}
	if err != nil {
		return step.Lease{}, fmt.Errorf("reading lease %s/%s: %w", h.LeaseNamespace, h.LeaseName, err)
	}
	lease := step.Lease{Exists: true}
	if l.Spec.HolderIdentity != nil {
		lease.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		lease.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		lease.Duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	lease.StopText, lease.Stopped = l.Annotations[v1alpha1.AnnotationStop]
	return lease, nil
}
