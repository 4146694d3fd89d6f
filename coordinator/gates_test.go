package coordinator

import (
	"reflect"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestGatesThatAreAsked checks that a gate is queried while a node waits for a turn under its policy.
func TestGatesThatAreAsked(t *testing.T) {
	gates := []v1alpha1.Gate{{Name: "a", Query: "x > 0"}, {Name: "b", Query: "y > 0"}}
	policies := policy.Set{
		{Name: "waits", Gates: gates}, {Name: "all-in-turns", Gates: gates[:1]}, {Name: "content", Gates: gates[:1]},
		{Name: "invalid", Gates: gates[:1], Problems: []policy.Problem{{}}}, {Name: "no-nodes", Gates: gates[:1]}, {Name: "no-gates"},
	}
	figures := []rollout.PolicyFigures{
		{Name: "no-gates", Wanting: 3}, {Name: "invalid", Wanting: 3}, {Name: "content"}, {Name: "all-in-turns", Wanting: 2, InTurn: 2},
		{Name: "waits", Wanting: 2, InTurn: 1},
	}
	want := []gate.Query{{Key: gate.Key{Policy: "waits", Gate: "a"}, Expr: "x > 0"}, {Key: gate.Key{Policy: "waits", Gate: "b"}, Expr: "y > 0"}}
	if got := awaitedGates(policies, figures); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
}
