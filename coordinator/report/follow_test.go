package report

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/policy"
)

// unreadable is a view of policies that may not be read.
type unreadable struct{ error }

func (unreadable) Run(ctx context.Context) { <-ctx.Done() }
func (unreadable) Listed() bool            { return false }
func (u unreadable) Err() error            { return u.error }
func (unreadable) Set() policy.Set         { return nil }

// Somebody who may not read the policies is shown the rest, and goes on being so.
func TestFollowWithoutPolicies(t *testing.T) {
	w := newWorld(t)
	w.lease.Namespace, w.lease.Name = "lockkeeper", "lockkeeper"
	s, _, _ := faulty(t, nil, w.add("n1", wantsReboot), w.lease)
	refused := apierrors.NewForbidden(schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}, "", errors.New("no leave"))
	s.WatchPolicies = func(func()) PolicyView { return unreadable{refused} }
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	enough := errors.New("enough")
	err := s.Follow(ctx, func(r Report, away error) error {
		if r.PoliciesError != refused.Error() || len(r.Nodes) != 1 || away != nil {
			t.Errorf("%q, %d nodes, %v", r.PoliciesError, len(r.Nodes), away)
		}
		return enough
	})
	if err != enough {
		t.Errorf("it was shown nothing: %v", err)
	}
}
