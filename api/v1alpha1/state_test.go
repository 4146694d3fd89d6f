package v1alpha1

import (
	"slices"
	"testing"
)

func TestStateDocs(t *testing.T) {
	var states []State
	for _, d := range stateDocs {
		states = append(states, d.State)
		if d.Means == "" || d.Do == "" {
			t.Errorf("%s: says %q to do %q", d.State, d.Means, d.Do)
		}
	}
	if !slices.Equal(states, States()) {
		t.Errorf("documented %v, expected %v", states, States())
	}
	if (State("flooding")).Doc() != (StateDoc{}) || StateDraining.Doc().State != StateDraining {
		t.Error("the wrong state's")
	}
}
