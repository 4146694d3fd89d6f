// Package cluster does what the commands do with the caller's cluster, with the caller's
// own credential: it reads it, follows it, and sets and removes intents.
//
// It must not know how anything is decided.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Away reports whether err means that the API server did not answer.
func Away(err error) bool {
	if apierrors.IsUnexpectedServerError(err) {
		return true // a proxy answered, not the API server
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code >= 500 // its etcd is unreachable, or it is starting
	}
	return err != nil && !errors.Is(err, context.Canceled)
}

// Source reads and writes one cluster.
type Source struct {
	Client kube.API
	// Skew returns how far the API server's clock is ahead; nil means not at all.
	Skew func() (ahead time.Duration, ok bool)
	// Namespace and LeaseName name the Lease.
	Namespace, LeaseName string
	// WatchPolicies makes a Watch of all policies, as [kube.WatchPolicies] does.
	WatchPolicies func(notify func()) PolicyView
	// ReadUpdate reads the HostUpdate of a node, as [kube.ReadHostUpdate] does; nil means that
	// there are none. Node is a node whose HostUpdate is read even if it is in no turn, "" for
	// none.
	ReadUpdate func(ctx context.Context, node string) (*v1alpha1.HostUpdate, error)
	Node       string
	// Selector selects the nodes that are reported or planned for; nil selects all.
	Selector labels.Selector
	// DeleteUpdate deletes the HostUpdate of a node, as [kube.DeleteHostUpdate] does.
	DeleteUpdate func(ctx context.Context, node string) (found bool, err error)

	updates updates // Read and Follow are not called at the same time
}

// PolicyView is what is known of the policies; see [kube.Policies].
type PolicyView interface {
	Load(ctx context.Context) error
	Run(ctx context.Context)
	Listed() bool
	Err() error
	Compiled() []policy.Policy
	Progressing() map[string]metav1.Condition
}

// Read reads the cluster once: one LIST of Nodes, one of the policies, one GET of
// the Lease. If the caller may not read the policies or the Lease, the Report says so.
func (s *Source) Read(ctx context.Context) (report.Report, error) {
	in, err := s.read(ctx)
	if err != nil {
		return report.Report{}, err
	}
	r := report.Build(in)
	if len(r.Nodes) == 0 && s.Selector != nil {
		return report.Report{}, s.noMatch()
	}
	s.addUpdates(ctx, &r)
	return r, nil
}

func (s *Source) noMatch() error { return fmt.Errorf("no node matches -l %s", s.Selector) }

// read reads what a Report is made of.
func (s *Source) read(ctx context.Context) (report.Input, error) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return report.Input{}, fmt.Errorf("listing nodes: %w", err)
	}
	view := s.WatchPolicies(nil)
	policiesErr := view.Load(ctx)
	if policiesErr != nil && !denied(policiesErr) {
		return report.Input{}, policiesErr
	}
	lease, leaseErr, err := s.getLease(ctx)
	if err != nil {
		return report.Input{}, err
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return s.input(nodes, view, policiesErr, lease, leaseErr), nil
}

// getLease reads the Lease, which is nil if it does not exist. refused is why the caller may not
// read it; err means that the API server did not answer.
func (s *Source) getLease(ctx context.Context) (lease *coordinationv1.Lease, refused, err error) {
	lease, err = s.theLease(ctx)
	switch {
	case Away(err):
		return nil, nil, fmt.Errorf("reading lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	case kube.NoLease(err, s.LeaseName):
		return nil, nil, nil
	}
	return lease, err, nil
}

// theLease reads the Lease. The error matches [kube.ErrNotLease] if the answer is something else.
func (s *Source) theLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, s.LeaseName, metav1.GetOptions{})
	return lease, kube.VerifyLease(lease, err, s.LeaseName)
}

// denied reports whether err means that the caller lacks the permission.
func denied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// input makes an Input of objects; lease is nil if it does not exist.
func (s *Source) input(nodes []*corev1.Node, policies PolicyView, policiesErr error, lease *coordinationv1.Lease, leaseErr error) report.Input {
	in := report.Input{
		Snapshot: rollout.Snapshot{Now: s.now()}, PoliciesErr: policiesErr, Selector: s.Selector,
		Lease: report.Lease{Namespace: s.Namespace, Name: s.LeaseName, Err: leaseErr},
	}
	if policiesErr == nil {
		in.Policies, in.Progressing = policy.NewSet(policies.Compiled()...), policies.Progressing()
	}
	for _, n := range nodes {
		in.Nodes = append(in.Nodes, turn.FromNode(n))
	}
	if lease != nil && leaseErr == nil {
		in.Lease.Read(lease)
	}
	return in
}

// now is the API server's time as far as it is known: the caller's clock may be wrong.
func (s *Source) now() time.Time {
	now := time.Now()
	if s.Skew != nil {
		if ahead, ok := s.Skew(); ok && ahead.Abs() > 2*time.Second { // the Date header has whole seconds
			now = now.Add(ahead)
		}
	}
	return now.UTC().Truncate(time.Millisecond)
}
