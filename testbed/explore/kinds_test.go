package explore

import "testing"

func TestKinds(t *testing.T) {
	for k := crash; k <= deleteLease; k++ {
		c := Config{Nodes: 2, Budget: 1, Faults: 1, Kinds: kindsOf(k), MaxStates: 5_000_000, Stale: 2}
		r := Explore(c, 0)
		t.Log(kindNames[k], r)
		if r.Violation != nil {
			t.Error(r.Violation)
		}
	}
}
