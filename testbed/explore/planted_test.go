package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// planted defines for each bug the bounds of the search and the property that it breaks first.
var planted = []struct {
	bug      Bug
	property string
	in       func(*Config)
}{
	{NoEpochCheck, "epoch", nil},
	{NoPrecondition, "stop", nil},
	{CachedList, "budget", func(c *Config) { c.Lag, c.Kinds = true, kindsOf(crashLeader) }},
	{NoBootInAcks, "present boot", func(c *Config) { c.Kinds = kindsOf(crash); c.Only = []string{"present boot"} }},
	{UncordonUnmarked, "cordons", func(c *Config) { c.Kinds = kindsOf(cordon) }},
	{SlotFreedEarly, "mark", nil},
	// Before the first commit the turn needs a stage to be promoted from.
	{ForeignPromoted, "budget", func(c *Config) { c.Kinds, c.Hooks = kindsOf(takeOver), true }},
	{BudgetOffByOne, "budget", nil},
	{WantsBeforeSources, "sources", nil},
	// This bug needs a crash during the turn and an update engine that stages another change.
	{BootOfGrant, "proof", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crash, restage) }},
	// Only the two separate writes are visible: a want from another boot does not count, so no second turn begins in
	// between. To see more, the search would have to leave out that clause too.
	{DoneInTwoWrites, "one write", func(c *Config) { c.Kinds = 0 }},
	{ClockRestarts, "clock", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crashLeader, age) }},
	{TermSurvives, "epoch", func(c *Config) {
		c.Faults, c.Kinds = 2, kindsOf(blankLease)
		c.Only = []string{"budget", "epoch", "slot"} // without "one term", which detects the bug directly
	}},
	{MarkLeftBehind, "mark", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(strip, age) }},
	// The bugs from here on are not clauses that other documents list. They prove that the other properties can be
	// broken.
	{PodsNotSeen, "drained", func(c *Config) { c.Kinds = kindsOf(latePod) }},
	{WantOfGrant, "cancelled", func(c *Config) { c.Kinds = kindsOf(cancel) }},
	{RebootsAgain, "one reboot per turn", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(rollback, restage) }},
	{OffTable, "table", func(c *Config) { c.Kinds = 0 }},
	{CommitBarsNothing, "barred", func(c *Config) { c.Kinds = kindsOf(cancel, unmanage) }},
	{TurnsBackTwice, "need", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(takeOver, crashLeader) }},
	// A process that finds its predecessor's commit writes its own start time before it acts. Without that write, a
	// refusal that the predecessor left in flight lands after the call for the reboot.
	{StartNotTold, "committed", func(c *Config) { c.Nodes, c.Faults, c.Kinds = 1, 2, kindsOf(refuseReboot, killProcess) }},
	{TermSurvives, "one term", func(c *Config) { c.Kinds = kindsOf(blankLease) }},
	{SlotFreedEarly, "slot", func(c *Config) { c.Kinds = 0; c.Only = []string{"slot"} }},
	{ReleaseLeavesKeys, "released", func(c *Config) { c.Kinds = kindsOf(unmanage) }},
	{PublishesReleased, "released", func(c *Config) { c.Kinds = kindsOf(detach) }},
	{RefusalForgotten, "committed", func(c *Config) {
		c.Nodes, c.Faults, c.Kinds = 1, 3, kindsOf(cancel, restage, loseHostWrite)
	}},
	{RefusalForgotten, "committed", func(c *Config) {
		c.Nodes, c.Faults, c.Kinds, c.Plan = 1, 3, kindsOf(cancel, restage, loseHostWrite), ApplyOnly
	}},
	{RefusedIsWritten, "committed", func(c *Config) { c.Nodes, c.Kinds = 1, kindsOf(guard) }},
	{FailedReadPasses, "epoch", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crashLeader, failRead) }},
	{RefusalSettles, "budget", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(loseWrite, guard) }},
	{ProxyDeletes, "budget", func(c *Config) { c.Kinds = kindsOf(loseWrite) }},
	{RefusedHoldsAll, "progress", func(c *Config) { c.Budget, c.Faults, c.Kinds = 2, 2, kindsOf(crashLeader, guard) }},
	{ForeignPauseIgnored, "paused", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crashLeader, pause) }},
	{ForeignForceIgnoresCommit, "slot", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crashLeader, forceDetach) }},
	{UnledTimeCounts, "clock", func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(deleteLease, age) }},
	{MissingLeaseIsNoStop, "stop", func(c *Config) { c.Kinds = kindsOf(deleteLease) }},
	// The Lease is created again before the term notices that it was deleted.
	{TermSurvives, "one term", func(c *Config) { c.Kinds = kindsOf(deleteLease) }},
	{WaitsInSilence, "progress", func(c *Config) { c.Kinds = 0 }},
	{OverdueStays, "progress", func(c *Config) { c.Kinds, c.Hooks = 0, true }},
	{VetoIgnored, "progress", func(c *Config) { c.Kinds = kindsOf(unmanage) }},
	{ReadsOnce, "reads", func(c *Config) { c.Plan, c.Kinds = DrainApply, 0 }},
	{HalfIsDone, "carried out", func(c *Config) { c.Plan, c.Kinds = ApplyOnly, kindsOf(killProcess) }},
	{PartForgotten, "undone", func(c *Config) { c.Units, c.Kinds = true, kindsOf(cancel) }},
	{ControlIgnored, "control plane", func(c *Config) { c.Budget, c.Control, c.Kinds = 2, 2, 0 }},
	{ControlOnlyGranted, "control plane", func(c *Config) { c.Budget, c.Control, c.Kinds = 2, 2, kindsOf(takeOver) }},
	{RequestSwallowed, "request", func(c *Config) { c.Plan, c.Kinds = Requested, requests }},
	{RequestRepeated, "request", func(c *Config) { c.Plan, c.Kinds = Requested, requests }},
	{SettleForgotten, "settle", func(c *Config) { c.Settle, c.Kinds = true, 0 }},
	{PolicyIgnored, "budget", func(c *Config) { c.Nodes, c.Pools, c.Kinds = 3, 2, 0 }},
	{TotalIgnored, "budget", func(c *Config) { c.Pools, c.Total, c.Kinds = 2, 1, 0 }},
	{BackoffStays, "progress", func(c *Config) { c.Kinds = kindsOf(uncordon) }},
	{BlockNotRead, "blocked", func(c *Config) { c.Kinds, c.Blocks = kindsOf(blockPod), BlocksHold }},
	{BlockVetoIgnored, "blocked", func(c *Config) { c.Kinds, c.Blocks = kindsOf(blockPod), BlocksHold }},
	// Without Only, "blocked" finds these two: a host that would evict the pod cordons its Node too.
	{BlockOffByGrant, "block off", func(c *Config) {
		c.Faults, c.Kinds, c.Blocks, c.Only = 2, kindsOf(blockPod, forgeBlockOff), BlocksEvict, []string{"block off"}
	}},
	{BlockOffByOldPolicy, "block off", func(c *Config) {
		c.Faults, c.Kinds, c.Blocks, c.Only = 2, kindsOf(blockPod, policyHolds), BlocksEvict, []string{"block off"}
	}},
	{BlockOffUnchecked, "block off", func(c *Config) { c.Kinds, c.Blocks = kindsOf(blockPod), BlocksEvict }},
	// A second turn needs a second change. On one node the pod ends by itself, because the turns have no drain.
	{BlockOffStays, "block off", func(c *Config) { c.Nodes, c.Faults, c.Kinds, c.Blocks = 1, 2, kindsOf(blockPod, restage), BlocksEvict }},
	{BlockNeverOff, "progress", func(c *Config) { c.Kinds, c.Blocks = kindsOf(blockPod), BlocksEvict }},
	{CanaryClockEarly, "canary", func(c *Config) { c.Kinds, c.Pools, c.After = 0, 2, true }},
	{CanaryBootIgnored, "canary", func(c *Config) { c.Kinds, c.Pools, c.After = kindsOf(crash), 2, true }},
	{CanaryBlipIgnored, "canary", func(c *Config) { c.Kinds, c.Pools, c.After = kindsOf(blip), 2, true }},
	{CanaryLieBelieved, "canary", func(c *Config) { c.Faults, c.Kinds, c.Pools, c.After = 2, kindsOf(lie, newer), 2, true }},
	{CanaryNewerIgnored, "canary", func(c *Config) { c.Kinds, c.Pools, c.After = kindsOf(newer), 2, true }},
	{CanaryBacksOut, "under way", func(c *Config) { c.Kinds, c.Pools, c.After = kindsOf(crash), 2, true }},
	{BlackoutIgnored, "blackout", func(c *Config) { c.Kinds, c.Blackouts = 0, true }},
	{BlackoutCancels, "under way", func(c *Config) { c.Kinds, c.Blackouts = 0, true }},
	{BlackoutHoldsTurns, "progress", func(c *Config) { c.Kinds, c.Blackouts = 0, true }},
	// The request to reboot is withdrawn, and the host refuses, although the client may have its answer.
	{PermitForgotten, "permitted", func(c *Config) { c.Plan, c.Kinds = ByClient, kindsOf(steady) }},
	{PermitUnread, "reads", func(c *Config) { c.Plan, c.Kinds = ByClient, 0 }},
	{LockBelieved, "one term", func(c *Config) { c.Kinds = 0 }},
	// A write of the dead process lands after its successor has decided, and the hosts take it for the successor's.
	{EpochContinued, "budget", func(c *Config) { c.Kinds = kindsOf(crashLeader) }},
	{PermitEarly, "permitted", func(c *Config) { c.Plan, c.Kinds = ByClient, 0 }},
}

// needs has the kind of fault without which a bug cannot be found. It shows that the kind models something that no other
// kind does.
var needs = map[Bug]kind{
	RefusalForgotten: loseHostWrite,
	RefusedIsWritten: guard, RefusalSettles: guard, RefusedHoldsAll: guard,
	FailedReadPasses:    failRead,
	ProxyDeletes:        loseWrite,
	ForeignPauseIgnored: pause, ForeignForceIgnoresCommit: forceDetach,
	UnledTimeCounts: deleteLease, MissingLeaseIsNoStop: deleteLease,
	BlockNotRead: blockPod, BlockVetoIgnored: blockPod, BlockOffByGrant: forgeBlockOff, BlockOffByOldPolicy: policyHolds,
	BlockOffUnchecked: blockPod, BlockOffStays: blockPod, BlockNeverOff: blockPod,
	PermitForgotten:   steady,
	CanaryBootIgnored: crash, CanaryBlipIgnored: blip, CanaryLieBelieved: lie, CanaryNewerIgnored: newer, CanaryBacksOut: crash,
}

// without takes the part out of the bounds without which a bug cannot be found, if that part has no faults.
var without = map[Bug]func(*Config){
	CanaryClockEarly: func(c *Config) { c.After = false },
	BlackoutIgnored:  func(c *Config) { c.Blackouts = false }, BlackoutCancels: func(c *Config) { c.Blackouts = false },
	BlackoutHoldsTurns: func(c *Config) { c.Blackouts = false },
}

// TestPlanted leaves out one clause after another. The exploration must find a violation. The script of the violation
// must break the same property in a replay, but not with the clause in place.
func TestPlanted(t *testing.T) {
	var found []Bug
	for _, p := range planted {
		found = append(found, p.bug)
		t.Run(p.bug.String(), func(t *testing.T) {
			t.Parallel()
			c := Config{Nodes: 2, Budget: 1, Faults: 1, Kinds: allKinds, Stale: 1, Bug: p.bug}
			if p.in != nil {
				p.in(&c)
			}
			every := 0
			if p.property == "progress" {
				every = 1
			}
			r := Explore(c, every)
			v := r.Violation
			if v == nil {
				t.Fatalf("%s: not found: %s", p.bug, r)
			}
			t.Logf("planted: %s: found by %q (%s) in %d steps, %s states", p.bug, v.Property, v.Text, len(v.Script), thousands(r.States))
			if v.Property != p.property {
				t.Errorf("found by %q, expected %q:\n%s", v.Property, p.property, v)
			}
			if needed := needs[p.bug]; needed != 0 {
				without := c
				if without.Kinds &^= kindsOf(needed); without.Kinds == c.Kinds {
					t.Errorf("the bounds have no %s", kindNames[needed])
				}
				if r := Explore(without, every); r.Violation != nil {
					t.Errorf("found without %s too:\n%s", kindNames[needed], r.Violation)
				}
			}
			if part := without[p.bug]; part != nil {
				small := c
				if part(&small); Explore(small, every).Violation != nil {
					t.Error("found without that part too")
				}
			}
			if v.Property == "progress" {
				return // the violation is what follows the end of the script
			}
			property, text, err := Replay(c, v.Script)
			if err != nil || property != v.Property || text != v.Text {
				t.Errorf("the script, fed back, breaks %q (%s): %v, expected %q (%s):\n%s", property, text, err, v.Property, v.Text, v)
			}
			c.Bug = NoBug
			if property, text, err := Replay(c, v.Script); err == nil && property != "" {
				t.Errorf("the script still breaks %q (%s) with the clause in place", property, text)
			}
		})
	}
	for _, b := range Bugs() {
		if !slices.Contains(found, b) {
			t.Errorf("no case plants %q", b)
		}
	}
}

// TestReplayRefuses checks that Replay rejects a script that does not fit and accepts a comment.
func TestReplayRefuses(t *testing.T) {
	c := Config{Nodes: 2, Budget: 1}
	for line, want := range map[string]string{
		"jump n1 - 0":      "unknown step",
		"decide n1":        "expected 4",
		"kubelet n1 - 0":   "not possible here",
		"# only a comment": "",
	} {
		_, _, err := Replay(c, []string{line})
		if got := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(got, want) && want != "" {
			t.Errorf("%q: %v, expected %q", line, err, want)
		}
	}
}
