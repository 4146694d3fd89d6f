package node

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/object"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// maxLookAge is how old the first read of a look may be when what it allows is
// done, in monotonic time. A process that was stopped in between, for longer
// than its leader's Lease, must not go on as if nothing had happened.
const maxLookAge = 10 * time.Second

// look is a look at the cluster, with what it was a look at.
type look struct {
	turn.Look
	began time.Time
	rv    string // of the Node, for a commit's look
}

func (l *look) valid() bool { return l != nil && time.Since(l.began) < maxLookAge }

// until returns when the look is too old to act on.
func (l *look) until() time.Time { return l.began.Add(maxLookAge) }

// wrote lets a commit's look stand for the version that this process's own
// write made of the one that was looked at: between them was nothing.
func (l *look) wrote(before, after string) {
	if l != nil && l.rv == before {
		l.rv = after
	}
}

// validLook is the look that may be used with Node n, or nil.
func (h *Host) validLook(n *turn.Node) *turn.Look {
	if !h.look.valid() {
		return nil
	}
	l := h.look.Look
	if l.Evictable > 0 && h.drain.endedSince(h.look.began) {
		return nil // what it counted has been evicted
	}
	if l.Commit && h.look.rv != n.ResourceVersion {
		l.Commit = false // the Node is another version than the one it read
	}
	return &l
}

// read reads what the core asks for.
func (h *Host) read(ctx context.Context, what turn.Read) error {
	switch what {
	case turn.ReadShutdown:
		if err := h.askShutdown(ctx); err != nil {
			return hostError{err}
		}
		return nil
	case turn.ReadLease:
		began := time.Now()
		lease, err := h.readLease(ctx)
		if err != nil {
			return err
		}
		h.look = &look{Look: turn.Look{Lease: lease}, began: began}
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
	h.look = nil
	known := ""
	if n := h.view.Get(h.name); n != nil {
		known = n.ResourceVersion
	}
	ctx, cancel := context.WithTimeout(ctx, maxLookAge) // a later answer is worth nothing
	defer cancel()
	obj, err := object.Find(ctx, h.client, h.name)
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
	pods, err := h.drainer(turn.EvictionBy(n.Grant, h.ownTerms(&n))).Remaining(ctx)
	if err != nil {
		return err
	}
	if age := time.Since(began); age >= maxLookAge {
		return fmt.Errorf("the look before a commit took %v, expected less than %v", age.Round(time.Millisecond), maxLookAge)
	}
	h.look = &look{Look: turn.Look{Lease: lease, Commit: true, Evictable: len(pods)}, began: began, rv: obj.ResourceVersion}
	return nil
}

// readLease reads the Lease from the quorum.
func (h *Host) readLease(ctx context.Context) (turn.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := h.client.CoordinationV1().Leases(h.LeaseNamespace).Get(ctx, h.LeaseName, metav1.GetOptions{})
	if object.NoLease(err, h.LeaseName) {
		return turn.Lease{}, nil // a missing Lease is a stop, not a failure
	}
	if err != nil {
		return turn.Lease{}, fmt.Errorf("reading lease %s/%s: %w", h.LeaseNamespace, h.LeaseName, err)
	}
	lease := turn.Lease{Exists: true}
	if l.Spec.HolderIdentity != nil {
		lease.Holder = *l.Spec.HolderIdentity
	}
	lease.StopText, lease.Stopped = l.Annotations[v1alpha1.AnnotationStop]
	return lease, nil
}
