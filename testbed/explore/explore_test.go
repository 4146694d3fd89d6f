package explore

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // a search keeps little of what it allocates; it may take 1.5 GB
	os.Exit(m.Run())
}

// protocol is the set of faults that the protocol between hosts and coordinators must survive.
var protocol = kindsOf(crash, killProcess, loseHostWrite, cancel, loseWrite, crashLeader, takeOver, blankLease)

// The sets below are subjects. Each allows more faults together than the search over all kinds can in the time of
// go test; see doc.go.
var (
	answers      = kindsOf(guard, loseWrite, loseHostWrite, failRead, crashLeader)
	intents      = kindsOf(crashLeader, pause, detach, forceDetach, unmanage)
	missingLease = kindsOf(deleteLease, loseWrite, loseHostWrite, crashLeader, age)
)

// units is the set of faults that change what a host's own hook units do: everything that ends a process or a turn. The
// other faults act on a hook stage with units as on one with hooks of others, except in a soak run.
var units = kindsOf(crash, killProcess, cancel, failHooks, age, crashLeader, takeOver, pause, unmanage, detach, stop)

// settling is the set of faults that begin or skip a settle time, or change who counts it.
var settling = kindsOf(crash, cancel, uncordon, deleteNode, crashLeader, takeOver, requestNow)

// blocking is the set of faults that change what a host knows of pods that block, in whose turn it is, or under whom. What
// it does not have ends or holds a turn with such pods as it does any other.
var blocking = ofBlocks | kindsOf(crash, killProcess, crashLeader, restage)

// clients is the set of faults that change what a FleetLock client asks for or is told, and of everything that could free the
// slot of a host whose client has permission. A turn ends the same way no matter who reboots the host.
var clients = ofClients | kindsOf(crash, killProcess, cancel, uncordon, pause, forceDetach, unmanage, age, crashLeader, stop)

// soak reports whether the environment asks for the larger bounds.
func soak() bool { return os.Getenv("LOCKKEEPER_SOAK") != "" }

// bounds returns the configurations to explore: some always, others only in a soak run.
func bounds() []Config {
	all := []Config{
		{Nodes: 1, Faults: 1, Kinds: allKinds},
		{Nodes: 2, Faults: 1, Kinds: allKinds},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Plan: ApplyOnly},
		{Nodes: 1, Faults: 2, Kinds: allKinds},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Plan: RebootOnly},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Plan: DrainApply},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Absent: true},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Hooks: true},
		{Nodes: 2, Faults: 1, Kinds: units, Units: true},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Lag: true},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Budget: 2, Control: 2},
		{Nodes: 2, Faults: 1, Kinds: allKinds | requests, Plan: Requested},
		{Nodes: 1, Faults: 2, Kinds: requests},
		{Nodes: 2, Faults: 1, Kinds: settling, Settle: true},
		{Nodes: 2, Faults: 1, Kinds: allKinds, Pools: 2, Total: 1},
		{Nodes: 3, Faults: 1, Kinds: allKinds},
		{Nodes: 3, Faults: 1, Budget: 2, Kinds: kindsOf(crashLeader, loseWrite)},
		{Nodes: 2, Faults: 2, Kinds: kindsOf(crash, loseWrite, crashLeader)},
		{Nodes: 2, Faults: 2, Kinds: answers},
		{Nodes: 1, Faults: 3, Kinds: missingLease},
		{Nodes: 2, Faults: 1, Kinds: blocking, Blocks: BlocksEvict},
		{Nodes: 2, Faults: 1, Kinds: kindsOf(blockPod), Blocks: BlocksEvict, Units: true},
		{Nodes: 2, Faults: 1, Kinds: ofCanaries | kindsOf(crash, crashLeader, takeOver), Pools: 2, After: true},
		{Nodes: 2, Faults: 1, Kinds: kindsOf(crashLeader, takeOver), Blackouts: true},
		{Nodes: 1, Faults: 1, Kinds: allKinds, Blackouts: true, OnClose: true},
		{Nodes: 1, Faults: 2, Kinds: clients, Plan: ByClient},
		{Nodes: 1, Faults: 2, Kinds: ofClients | kindsOf(request, withdraw), Plan: ByClient},
		{Nodes: 2, Faults: 1, Kinds: kindsOf(crashLeader, takeOver, loseWrite), Plan: ByClient},
	}
	if soak() {
		all = append(all, []Config{
			{Nodes: 1, Faults: 3, Kinds: allKinds},
			{Nodes: 2, Faults: 2, Kinds: allKinds},
			{Nodes: 2, Faults: 2, Kinds: protocol},
			{Nodes: 2, Faults: 2, Kinds: intents},
			{Nodes: 2, Faults: 1, Kinds: allKinds | ofCanaries, Pools: 2, After: true},
			{Nodes: 3, Faults: 1, Budget: 2, Kinds: allKinds},
			{Nodes: 3, Faults: 2, Kinds: protocol},
			{Nodes: 3, Kinds: 0, Pools: 2},
			{Nodes: 2, Faults: 2, Kinds: protocol, Pools: 2, Total: 1},
			{Nodes: 2, Faults: 1, Kinds: allKinds | requests, Settle: true},
			{Nodes: 2, Faults: 2, Kinds: settling, Settle: true},
			{Nodes: 1, Faults: 3, Kinds: protocol | requests, Plan: Requested},
			{Nodes: 2, Faults: 2, Kinds: protocol | requests, Plan: Requested},
			{Nodes: 2, Faults: 2, Kinds: protocol | requests},
			{Nodes: 3, Faults: 1, Kinds: allKinds, Budget: 2, Control: 2},
			{Nodes: 2, Faults: 2, Kinds: protocol, Budget: 2, Control: 2},
			{Nodes: 2, Faults: 1, Kinds: allKinds, Stale: 3},
			{Nodes: 2, Faults: 1, Kinds: allKinds, Lag: true, Stale: 3},
			{Nodes: 2, Faults: 2, Kinds: protocol, Hooks: true},
			{Nodes: 2, Faults: 1, Kinds: allKinds, Units: true},
			{Nodes: 2, Faults: 1, Kinds: allKinds, Units: true, Plan: DrainApply},
			{Nodes: 2, Faults: 2, Kinds: protocol | kindsOf(failApply), Plan: ApplyOnly},
			{Nodes: 3, Faults: 2, Budget: 2, Kinds: answers},
			{Nodes: 2, Faults: 3, Kinds: answers},
			{Nodes: 2, Faults: 2, Kinds: missingLease},
			{Nodes: 2, Faults: 1, Kinds: allKinds | ofBlocks, Blocks: BlocksHold},
			{Nodes: 2, Faults: 2, Kinds: ofBlocks | kindsOf(restage), Blocks: BlocksEvict},
			{Nodes: 2, Faults: 1, Kinds: ofBlocks, Blocks: BlocksEvict, Plan: DrainApply},
			{Nodes: 2, Faults: 2, Kinds: ofCanaries | kindsOf(crash, crashLeader, takeOver), Pools: 2, After: true},
			{Nodes: 3, Faults: 1, Kinds: ofCanaries, Pools: 2, After: true},
			{Nodes: 2, Faults: 1, Kinds: protocol, Blackouts: true, OnClose: true},
			{Nodes: 1, Faults: 2, Kinds: allKinds | ofClients, Plan: ByClient},
			{Nodes: 2, Faults: 1, Kinds: allKinds | ofClients, Plan: ByClient},
			{Nodes: 1, Faults: 3, Kinds: clients, Plan: ByClient},
			{Nodes: 1, Faults: 3, Kinds: ofClients | kindsOf(request, withdraw, crash, killProcess), Plan: ByClient},
		}...)
	}
	for i := range all {
		c := &all[i]
		c.Budget, c.Stale = max(c.Budget, 1), max(c.Stale, 1)
	}
	return all
}

// TestExplore searches every state within the bounds. No step may break a property, and from every sampled state each
// turn must end or be held with a reason.
func TestExplore(t *testing.T) {
	every := 10 // one state in this many is run to its rest
	if soak() {
		every = 1
	}
	for _, c := range bounds() {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			r := Explore(c, every)
			t.Log(r)
			if r.Violation != nil {
				t.Errorf("broken property: %v", r.Violation)
			}
			if !r.Whole || r.Disposed > 0 {
				t.Errorf("the search has a gap: whole %t, %d late writes did not fit into the model", r.Whole, r.Disposed)
			}
			if r.Ran == 0 || r.States < 500 {
				t.Errorf("%d states, %d run to rest; expected many more", r.States, r.Ran)
			}
		})
	}
}
