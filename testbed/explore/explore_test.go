package explore

import "testing"

func TestExploreOne(t *testing.T) {
	for faults := range 3 {
		c := Config{Nodes: 1, Budget: 1, Faults: faults, Kinds: allKinds}
		r := Explore(c, 0)
		t.Log(r)
		if r.Violation != nil {
			t.Error(r.Violation)
		}
	}
}

func TestExploreTwo(t *testing.T) {
	for faults := range 2 {
		c := Config{Nodes: 2, Budget: 1, Faults: faults, Kinds: allKinds, MaxStates: 5_000_000}
		r := Explore(c, 0)
		t.Log(r)
		if r.Violation != nil {
			t.Error(r.Violation)
		}
	}
}
