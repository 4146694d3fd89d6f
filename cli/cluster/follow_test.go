package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/policy"
)

// policyView is a view of these policies, or of none that may be read.
type policyView struct {
	Policies    policy.Set
	Conditions  map[string]metav1.Condition
	Unavailable error
}

func (policyView) Run(ctx context.Context)                    { <-ctx.Done() }
func (v policyView) Listed() bool                             { return v.Unavailable == nil }
func (v policyView) Err() error                               { return v.Unavailable }
func (v policyView) Compiled() []policy.Policy                { return v.Policies }
func (v policyView) Load(context.Context) error               { return v.Unavailable }
func (v policyView) Progressing() map[string]metav1.Condition { return v.Conditions }

// Somebody who may not read the policies is shown the rest, and goes on being so.
func TestFollowWithoutPolicies(t *testing.T) {
	lease := newLease()
	s, _, _ := faulty(t, nil, newNode("n1", wantsReboot), lease)
	refused := apierrors.NewForbidden(schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}, "", errors.New("no permission"))
	s.WatchPolicies = func(func()) PolicyView { return policyView{Unavailable: refused} }
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	enough := errors.New("enough")
	err := s.Follow(ctx, func(r report.Report, away error) error {
		if r.PoliciesError != refused.Error() || len(r.Nodes) != 1 || away != nil {
			t.Errorf("%q, %d nodes, %v", r.PoliciesError, len(r.Nodes), away)
		}
		return enough
	})
	if err != enough {
		t.Errorf("it was shown nothing: %v", err)
	}
}
