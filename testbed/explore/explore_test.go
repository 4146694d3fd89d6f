package explore

import "testing"

func TestExplore(t *testing.T) {
	for _, c := range []Config{
		{Nodes: 1, Budget: 1, Faults: 2, Kinds: allKinds, Stale: 1},
		{Nodes: 2, Budget: 1, Faults: 1, Kinds: allKinds, Stale: 1},
		{Nodes: 3, Budget: 1, Faults: 1, Kinds: allKinds, Stale: 1},
		{Nodes: 3, Budget: 2, Faults: 0, Kinds: allKinds, Stale: 1},
		{Nodes: 2, Budget: 1, Faults: 2, Kinds: allKinds, Stale: 1},
	} {
		c.MaxStates = 1_500_000
		r := Explore(c, 1)
		t.Log(r, r.Held, "; objects", r.Objects, "nodes", r.NodeForms)
		if r.Violation != nil {
			t.Error(r.Violation)
		}
	}
}
