package explore

import "testing"

// walk collects the states of a small search.
func walk(t *testing.T, c Config) *explorer {
	t.Helper()
	x := &explorer{model: newModel(c), found: map[key]uint32{}}
	first := x.begin()
	x.add(x.pack(&first, c.Nodes), 0)
	for i := 0; i < len(x.keys); i++ {
		s := x.unpack(x.keys[i], c.Nodes)
		x.next(&s, func(_ *event, n *state) { x.add(x.pack(n, c.Nodes), uint32(i)) })
	}
	if len(x.keys) < 1000 {
		t.Fatalf("%d states, expected more", len(x.keys))
	}
	return x
}

// TestStates checks the assumptions of the search for every state of a small one.
func TestStates(t *testing.T) {
	for _, c := range []Config{
		{Hooks: true, Kinds: kindsOf(crash, pause, forceDetach, unmanage, strip, deleteNode, age, crashLeader)},
		{Units: true, Settle: true, Plan: Requested, Kinds: requests | kindsOf(failHooks, deleteNode)},
		{Plan: DrainApply, Kinds: kindsOf(failApply, killProcess)},
		{Blocks: BlocksEvict, Blackouts: true, Kinds: ofBlocks},
		{Pools: 2, After: true, Kinds: ofCanaries},
		{Plan: ByClient, Kinds: ofClients | kindsOf(killProcess)},
	} {
		c.Nodes, c.Budget, c.Faults, c.Stale = 2, 1, 1, 1
		checkStates(t, c)
	}
}

func checkStates(t *testing.T, c Config) {
	t.Helper()
	x := walk(t, c)
	for i, o := range x.objects[1:] {
		back := object{uid: o.uid, young: o.young, boot: o.boot, ready: o.ready, readyLong: o.readyLong, unsched: o.unsched, last: o.last}
		if back.read(o.wire()); back != o {
			t.Fatalf("object %d becomes, after a round trip through labels and annotations,\n%+v, expected\n%+v", i+1, back, o)
		}
	}
	for i, n := range x.nodes {
		if x.canonOf = map[node]uint32{}; x.canonical(n) != uint32(i) {
			t.Fatalf("the canonical form of a canonical node differs from the node:\n%+v", n)
		}
	}
	for _, k := range x.keys {
		s := x.unpack(k, c.Nodes)
		if got := x.pack(&s, c.Nodes); got != k {
			t.Fatalf("%v becomes %v after a round trip", k, got)
		}
		s.n[0], s.n[1] = s.n[1], s.n[0]
		if got := x.pack(&s, c.Nodes); got != k {
			t.Fatalf("%v with its nodes exchanged is %v; expected no difference", k, got)
		}
	}
}

// TestSymmetry checks that exchanging two nodes exchanges the possible next steps and changes nothing else.
func TestSymmetry(t *testing.T) {
	c := Config{Nodes: 2, Budget: 1, Faults: 1, Stale: 1, Kinds: kindsOf(crash, takeOver, loseWrite)}
	x := walk(t, c)
	for i := 0; i < len(x.keys); i += 7 {
		s := x.unpack(x.keys[i], c.Nodes)
		after := func(s state) map[key]bool {
			m := map[key]bool{}
			x.next(&s, func(_ *event, n *state) { m[x.pack(n, c.Nodes)] = true })
			return m
		}
		one := after(s)
		s.n[0], s.n[1] = s.n[1], s.n[0]
		other := after(s)
		for k := range one {
			if !other[k] {
				t.Fatalf("state %d loses a step when its nodes are exchanged", i)
			}
		}
		if len(one) != len(other) {
			t.Fatalf("state %d has %d steps, %d with its nodes exchanged", i, len(one), len(other))
		}
	}
}
