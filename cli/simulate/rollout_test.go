package simulate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/policy"
)

// one returns a fleet with one group, in which a turn takes exactly ten minutes, under one policy. more extends the
// group, rollout is the policy's rollout, and spec extends its spec.
func one(count int, start, more, rollout, spec string) string {
	return fmt.Sprintf(`
start: %s
nodes:
- name: node
  count: %d
  changes: [{os: "2"}]
%s
---
apiVersion: lockkeeper.dev/v1alpha1
kind: DisruptionPolicy
metadata: {name: p}
spec:
  rollout: {%s}
%s`, start, count, more, rollout, spec)
}

const (
	monday     = "2026-03-02T08:00:00Z"
	tenMinutes = "  takes: {drain: 5m, reboot: 5m}"
)

// begins returns the start times of the turns, as day and hh:mm in UTC, in order.
func begins(r *Report) []string {
	var all []string
	for _, t := range r.Turns {
		all = append(all, t.Began.UTC().Format("02 15:04"))
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, expected %v", what, got, want)
	}
}

// TestThreePolicies rolls thirty nodes in three policies with percentages. They stay within their budgets, which Run
// checks at each change, and are not slower than the budgets allow.
func TestThreePolicies(t *testing.T) {
	text, err := os.ReadFile("testdata/three-policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := roll(t, string(text))
	if !r.Done() {
		t.Errorf("the rollout stops:\n%s", r)
	}
	// Calculated by hand: 20 % of 18 is 3.6, and 25 % of 9 is 2.25. Of the three control-plane nodes only one may roll
	// at once, although their policy allows 100 %. The total is 5.
	for _, p := range append(r.Policies, r.All) {
		most := map[string]int{"web": 3, "db": 2, "lockkeeper-default": 1, "all": 5}[p.Name]
		expect(t, p.Name+": most at once", p.Most, most)
	}
	expect(t, "turns done", r.All.Results[v1alpha1.ResultDone], 30)
	for _, turn := range r.Turns {
		began := turn.Began.Sub(r.Start)
		if turn.Policy == "web" && began >= 40*time.Minute && began < 70*time.Minute {
			t.Errorf("%s begins its turn at +%v, while the gate is closed", turn.Node, began)
		}
		// 09:00 to 17:00 in Berlin is 08:00 to 16:00 UTC; a turn takes 45 minutes.
		if h := turn.Began.UTC().Format("15:04"); turn.Policy == "db" && (h < "08:00" || h > "15:15") {
			t.Errorf("%s begins its turn at %s, outside of its window", turn.Node, h)
		}
	}
}

func TestSameSeedSameRun(t *testing.T) {
	text, err := os.ReadFile("testdata/three-policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, again := roll(t, string(text)), roll(t, string(text))
	expect(t, "the second run", again, first)
	other := roll(t, strings.Replace(string(text), "seed: 1", "seed: 2", 1))
	if other.String() == first.String() {
		t.Error("another seed gives the same run")
	}
}

// TestStopsAtTheFirstFailure has one of seven nodes keep its old version. The rollout stops there. An hour later an
// admin runs retry, and the rollout continues.
// TestFleetLock rolls hosts whose FleetLock clients reboot them: one at a time, ten minutes each. A boot without an update is a failure.
func TestFleetLock(t *testing.T) {
	fleet := func(more string) string {
		return strings.Replace(one(3, monday, tenMinutes+more, "settle: 0s", ""), `{os: "2"}`, "{fleetLock: true}", 1)
	}
	r := roll(t, fleet(""))
	expect(t, "turns begin", begins(r), []string{"02 08:00", "02 08:10", "02 08:20"})
	expect(t, "turns done", r.All.Results[v1alpha1.ResultDone], 3)

	r = roll(t, fleet("\n  fails: {update: 100%}"))
	expect(t, "turns failed", r.All.Results[v1alpha1.ResultFailed], 1)
}

func TestStopsAtTheFirstFailure(t *testing.T) {
	fleet := func(retry string) string {
		return retry + one(4, monday, tenMinutes, "settle: 0s", "")
	}
	broken := func(f *Fleet) *Fleet {
		bad := f.Nodes[0]
		bad.Name, bad.Count, bad.Fails.Update = "bad", 1, 1
		f.Nodes[0].Name = "late" // the last in the order of names
		f.Nodes = append(f.Nodes, bad)
		early := f.Nodes[0]
		early.Name, early.Count = "aaa", 2
		f.Nodes = append(f.Nodes, early)
		return f
	}
	r, err := Run(t.Context(), broken(read(t, fleet(""))))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "turns", r.All.Results, map[v1alpha1.Result]int{"Done": 2, "Failed": 1})
	expect(t, "held", r.Left, map[v1alpha1.Reason]Left{
		"Halted": {4, "1 failed, 0 allowed"}, "Failed": {1, "NotUpdated"}})
	expect(t, "turns begin", begins(r), "[02 08:00 02 08:10 02 08:20]")

	// The retry at 09:30 clears the failure of 08:30. The node now has the latest boot, so it rolls last, and it fails
	// again.
	r, err = Run(t.Context(), broken(read(t, fleet("retryAfter: 1h\nlimit: 150m\n"))))
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "turns with retry", r.All.Results, map[v1alpha1.Result]int{"Done": 6, "Failed": 2})
	expect(t, "turns with retry begin", begins(r), "[02 08:00 02 08:10 02 08:20 02 09:30 02 09:40 02 09:50 02 10:00 02 10:10]")

	// A host that does not come back holds its turn until an admin repairs it.
	r = roll(t, "retryAfter: 1h\n"+one(3, monday, "  takes: {drain: 5m, reboot: never}", "settle: 0s", ""))
	expect(t, "turns of lost hosts", r.All.Results, map[v1alpha1.Result]int{"Done": 3})
	// 5 minutes of drain, 30 until the reboot is overdue, and 60 until the host is repaired.
	expect(t, "turns of lost hosts begin", begins(r), "[02 08:00 02 09:35 02 11:10]")
	expect(t, "failures", r.Failures, 3)
}

// TestUnhealthy does the same for hosts that boot but do not become healthy: 10 minutes for the turn, 15 for the health
// check, and an hour for the repair.
func TestUnhealthy(t *testing.T) {
	r := roll(t, "retryAfter: 1h\n"+one(2, monday, tenMinutes+"\n  fails: {unhealthy: 100%}", "settle: 0s", ""))
	expect(t, "turns", r.All.Results, map[v1alpha1.Result]int{"Done": 2})
	expect(t, "turns begin", begins(r), "[02 08:00 02 09:25]")
	r = roll(t, one(2, monday, tenMinutes+"\n  fails: {unhealthy: 100%}", "settle: 0s", ""))
	expect(t, "left", r.Left, map[v1alpha1.Reason]Left{"Halted": {1, "1 failed, 0 allowed"}, "Failed": {1, "Unhealthy"}})
}

// TestWindowCloses closes a window during a drain that takes an hour.
func TestWindowCloses(t *testing.T) {
	window := `settle: 0s, expectedDuration: 10m, windows: [{start: "09:00", duration: 90m, timeZone: UTC}], onClose: `
	takes := "  takes: {drain: 50m, reboot: 5m}"
	// Turns of 55 minutes begin at 09:00 and at 09:55, and the rest on the next day.
	r := roll(t, one(3, monday, takes, window+"Finish", ""))
	expect(t, "Finish: turns", r.All.Results, map[v1alpha1.Result]int{"Done": 3})
	expect(t, "Finish: turns begin", begins(r), "[02 09:00 02 09:55 03 09:00]")
	// The turn of 09:55 is backed out at 10:30, and the node gets its turn on the next day. The same happens to the
	// turn of 09:55 on that day.
	r = roll(t, one(3, monday, takes, window+"Cancel", ""))
	expect(t, "Cancel: turns", r.All.Results, map[v1alpha1.Result]int{"Done": 3, "Cancelled": 2})
	expect(t, "Cancel: turns begin", begins(r), "[02 09:00 02 09:55 03 09:00 03 09:55 04 09:00]")
	for _, turn := range r.Turns {
		if turn.Result == v1alpha1.ResultCancelled {
			expect(t, "cancelled at", turn.Ended.UTC().Format("15:04"), "10:30")
			expect(t, "because of", turn.Reason, v1alpha1.ReasonWindow)
		}
	}
}

// TestCanariesFirst has one node of policy p, and two of policy rest, which wait until that one has run the version for three hours.
func TestCanariesFirst(t *testing.T) {
	text := one(1, monday, "  labels: {canary: first}\n"+tenMinutes+`
- name: rest
  count: 2
  changes: [{os: "2"}]
`+tenMinutes, "settle: 0s", "  priority: 1\n  nodeSelector: {matchLabels: {canary: first}}") + `
---
apiVersion: lockkeeper.dev/v1alpha1
kind: DisruptionPolicy
metadata: {name: rest}
spec:
  rollout: {settle: 0s, after: [{policy: p, for: 3h}]}
`
	r := roll(t, text)
	expect(t, "turns", r.All.Results, map[v1alpha1.Result]int{"Done": 3})
	at := begins(r)
	if len(at) != 3 || at[0] != "02 08:00" || at[1] < "02 11:08" || at[1] > "02 11:12" {
		t.Errorf("turns begin at %v, expected the second one three hours after the end of the first", at)
	}
	if !strings.Contains(r.String(), "rest: Canary (waits for policy p: 0 of 1 nodes run 2; node-1 runs as-installed)") {
		t.Errorf("the report does not say for what policy rest waits:\n%s", r)
	}
	_, err := run(t.Context(), read(t, text), func(s rollout.Snapshot) rollout.Outcome {
		s.Policies = slices.Clone(s.Policies)
		for i := range s.Policies {
			s.Policies[i].After = nil
		}
		return rollout.Decide(s)
	})
	if want := "2026-03-02T08:00:00Z: rest-1 is granted a turn for 2, and node-1 of policy p has not run it for 3h0m0s"; err == nil || err.Error() != want {
		t.Errorf("%v, expected %s", err, want)
	}
}

// TestBlackout begins an hour after the start, and ends with the day.
func TestBlackout(t *testing.T) {
	r := roll(t, one(8, monday, tenMinutes, `settle: 0s, expectedDuration: 10m, blackouts: [{start: "2026-03-02T09:00", end: "2026-03-02", timeZone: UTC, reason: a launch}]`, ""))
	expect(t, "turns begin", begins(r), "[02 08:00 02 08:10 02 08:20 02 08:30 02 08:40 02 08:50 03 00:00 03 00:10]")
	if !strings.Contains(r.String(), `p: Window (blackout "a launch" `) {
		t.Errorf("the report does not name the blackout:\n%s", r)
	}
}

// TestNightsOnWhichClocksJump runs turns of 15 minutes, including the settle time, in a window of two hours from 01:30.
// There must be eight in each night, including the nights in which the clocks in Berlin change.
func TestNightsOnWhichClocksJump(t *testing.T) {
	rollout := `settle: 5m, expectedDuration: 15m, windows: [{start: "01:30", duration: 2h, timeZone: Europe/Berlin}]`
	for _, c := range []struct{ start, first, last, second string }{
		// 01:30 CET is 00:30 UTC. At 01:00 UTC it is 03:00 CEST. On the next night 01:30 CEST is 23:30 UTC of the day
		// before.
		{"2026-03-28T12:00:00Z", "29 00:30", "29 02:15", "29 23:30"},
		// 01:30 CEST is 23:30 UTC. At 01:00 UTC it is 02:00 CET. On the next night 01:30 CET is 00:30 UTC.
		{"2026-10-24T12:00:00Z", "24 23:30", "25 01:15", "26 00:30"},
	} {
		r := roll(t, one(12, c.start, tenMinutes, rollout, ""))
		expect(t, c.start+": turns", r.All.Results, map[v1alpha1.Result]int{"Done": 12})
		at := begins(r)
		if len(at) != 12 {
			t.Fatalf("%s: %d turns", c.start, len(at))
		}
		expect(t, c.start+": the first, the last of the night, the first of the next", []string{at[0], at[7], at[8]}, []string{c.first, c.last, c.second})
	}
}

func TestGate(t *testing.T) {
	r := roll(t, `
gates: [{policy: p, gate: calm, closed: [{from: 15m, to: 1h}, {from: "2026-03-02T09:12:00Z", because: too much going on}]}]`+
		one(5, monday, tenMinutes, "settle: 0s, gates: [{name: calm, query: up == 0}]", ""))
	expect(t, "turns begin", begins(r), "[02 08:00 02 08:10 02 09:00 02 09:10]")
	expect(t, "left", r.Left, map[v1alpha1.Reason]Left{"GateClosed": {1, "gate calm is closed: too much going on"}})
	if r.Done() {
		t.Error("the run reports that it is done")
	}
}

// TestClosedIntervals closes a gate from the start on, and with intervals that touch and overlap, in any order.
func TestClosedIntervals(t *testing.T) {
	for _, c := range []struct{ closed, begins string }{
		{"{to: 1h}", "[02 09:00]"},
		{"{from: 0s, to: 1h}", "[02 09:00]"},
		{"{from: 0s, to: 1h}, {from: 1h, to: 2h}", "[02 10:00]"},
		{"{from: 1h, to: 2h}, {from: 0s, to: 1h}", "[02 10:00]"},
		{"{from: 0s, to: 1h}, {from: 30m, to: 2h}", "[02 10:00]"},
		{"{from: 0s, to: 2h}, {from: 30m, to: 1h}", "[02 10:00]"},
	} {
		r := roll(t, "gates: [{policy: p, gate: calm, closed: ["+c.closed+"]}]\n"+
			one(1, monday, tenMinutes, "gates: [{name: calm, query: up == 0}]", ""))
		expect(t, c.closed+": turns begin", begins(r), c.begins)
	}
}

// TestOverlappingPolicies has two policies select the same nodes: the one with the higher priority decides, and the
// total of the other one covers all nodes.
func TestOverlappingPolicies(t *testing.T) {
	text := `
start: ` + monday + `
nodes:
- {name: a, count: 10, labels: {tier: gold}, takes: {drain: 5m, reboot: 5m}, changes: [{os: "2"}]}
- {name: b, count: 10, takes: {drain: 5m, reboot: 5m, apply: 1m}, changes: [{os: "2"}, {file: /etc/app/conf}]}
- {name: c, count: 10, labels: {tier: gold}, takes: {drain: 5m, reboot: 5m, apply: 1m}, changes: [{file: /etc/app/conf}]}
---
apiVersion: lockkeeper.dev/v1alpha1
kind: List
items:
- apiVersion: lockkeeper.dev/v1alpha1
  kind: DisruptionPolicy
  metadata: {name: all}
  spec:
    rollout: {maxUnavailable: 50%, maxUnavailableTotal: 8, settle: 0s}
    rules: [{source: File, path: /etc/app, actions: [{type: Restart, unit: app.service}]}]
- apiVersion: lockkeeper.dev/v1alpha1
  kind: DisruptionPolicy
  metadata: {name: gold}
  spec:
    priority: 10
    nodeSelector: {matchLabels: {tier: gold}}
    rollout: {maxUnavailable: 4, maxUnavailableTotal: 100%, settle: 0s}
`
	r := roll(t, text)
	if !r.Done() {
		t.Errorf("the rollout stops:\n%s", r)
	}
	for _, p := range r.Policies {
		// gold has four. The policy all could have five of its ten, but the total of eight leaves four.
		expect(t, p.Name+": nodes, most at once", [2]int{p.Nodes, p.Most}, map[string][2]int{"all": {10, 4}, "gold": {20, 4}}[p.Name])
	}
	expect(t, "most at once", r.All.Most, 8)
	for _, turn := range r.Turns {
		want := 10 * time.Minute // one turn covers a changed file and an update
		if strings.HasPrefix(turn.Node, "c") {
			want = time.Minute // the rule of the lower policy applies too
		}
		expect(t, turn.Node+" takes", turn.Ended.Sub(turn.Began), want)
	}
	expect(t, "turns", len(r.Turns), 30)
}

func TestObserveGrantsNothing(t *testing.T) {
	r := roll(t, one(4, monday, tenMinutes, "maxUnavailable: 3", "  mode: Observe"))
	expect(t, "turns, most at once", [2]int{len(r.Turns), r.All.Most}, [2]int{})
	expect(t, "WouldGrant", r.Left[v1alpha1.ReasonWouldGrant].Nodes, 3)
	if !strings.Contains(r.String(), "No turn ever begins") {
		t.Errorf("the report does not mention that:\n%s", r)
	}
}

func TestInvalidAndMissingPolicies(t *testing.T) {
	r := roll(t, one(2, monday, tenMinutes, "maxUnavailable: 0", ""))
	expect(t, "InvalidPolicy", r.Left[v1alpha1.ReasonInvalidPolicy].Nodes, 2)
	r = roll(t, one(2, monday, tenMinutes, "", "  nodeSelector: {matchLabels: {a: b}}"))
	expect(t, "NoPolicy", r.Left[v1alpha1.ReasonNoPolicy].Nodes, 2)
}

// TestOnTimeout uses a hook of 5 minutes that is never confirmed, and a drain of 20 minutes that never ends.
func TestOnTimeout(t *testing.T) {
	hook := func(on string) string {
		return "  hooks: {beforeDrain: [{name: lb, timeout: 5m, onTimeout: " + on + "}]}"
	}
	never := "  takes: {drain: 5m, reboot: 5m, hooks: {lb: never}}"
	settle := "settle: 0s, backoff: 1h, backoffMax: 1h"
	r := roll(t, one(2, monday, never, settle, hook("Continue")))
	expect(t, "Continue", begins(r), "[02 08:00 02 08:15]")
	expect(t, "Continue: turns", r.All.Results, map[v1alpha1.Result]int{"Done": 2})
	r = roll(t, "limit: 130m\n"+one(2, monday, never, settle, hook("Abort")))
	expect(t, "Abort", begins(r), "[02 08:00 02 08:05 02 09:05 02 09:10]")
	expect(t, "Abort: turns", r.All.Results, map[v1alpha1.Result]int{"BackedOut": 4})
	r = roll(t, one(2, monday, never, settle, hook("Wait")))
	expect(t, "Wait: left", r.Left, map[v1alpha1.Reason]Left{"Overdue": {1, "waits for hook lb"}, "Budget": {1, "1 unavailable, 1 allowed: node-1 is in its turn"}})

	drain := func(on string) string { return "  drain: {timeout: 20m, onTimeout: " + on + "}" }
	never = "  takes: {drain: never, reboot: 5m}"
	r = roll(t, one(2, monday, never, settle, drain("Force")))
	expect(t, "Force", begins(r), "[02 08:00 02 08:25]")
	expect(t, "Force: turns", r.All.Results, map[v1alpha1.Result]int{"Done": 2})
	r = roll(t, "limit: 50m\n"+one(2, monday, never, settle, drain("Abort")))
	expect(t, "Abort of drains: turns", r.All.Results, map[v1alpha1.Result]int{"BackedOut": 2})
	r = roll(t, one(2, monday, never, settle, drain("Wait")))
	expect(t, "Wait of drains: left", r.Left[v1alpha1.ReasonOverdue], Left{1, "waits for the host to drain"})
}

// TestBrokenPromises gives the leader other budgets, windows and gates than the policies have. The watch must detect
// that at once.
func TestBrokenPromises(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		plant func(*rollout.Snapshot)
		want  string
	}{
		"budget": {
			one(9, monday, tenMinutes, "maxUnavailable: 3, settle: 0s", ""),
			func(s *rollout.Snapshot) { s.Policies[0].MaxUnavailable = policy.Limit{Number: 4} },
			"2026-03-02T08:00:00Z: node-4 makes 4 nodes of policy p unavailable at once, 3 allowed (3)",
		},
		"total": {
			one(9, monday, tenMinutes, "maxUnavailable: 9, maxUnavailableTotal: 30%", ""),
			func(s *rollout.Snapshot) { s.Policies[0].MaxUnavailableTotal = nil },
			"2026-03-02T08:00:00Z: node-3 makes 3 nodes unavailable at once, 2 allowed in all by policy p",
		},
		"window": {
			one(2, monday, tenMinutes, `expectedDuration: 1h, windows: [{start: "07:00", duration: 90m, timeZone: UTC}]`, ""),
			func(s *rollout.Snapshot) { s.Policies[0].ExpectedDuration = 10 * time.Minute },
			"2026-03-02T08:00:00Z: node-1 is granted a turn outside of the windows of policy p",
		},
		"gate": {
			"gates: [{policy: p, gate: g, closed: [{from: 0s}]}]\n" + one(2, monday, tenMinutes, "gates: [{name: g, query: x}]", ""),
			func(s *rollout.Snapshot) { s.Policies[0].Gates = nil },
			"2026-03-02T08:00:00Z: node-1 is granted a turn while gate g of policy p is closed",
		},
		"control plane": {
			one(3, monday, "  controlPlane: true\n"+tenMinutes, "maxUnavailable: 100%", ""),
			func(s *rollout.Snapshot) {
				for i := range s.Nodes {
					s.Nodes[i].ControlPlane = false
				}
			},
			"2026-03-02T08:00:00Z: node-2 makes 2 control-plane nodes unavailable at once",
		},
	} {
		_, err := run(t.Context(), read(t, c.text), func(s rollout.Snapshot) rollout.Outcome {
			s.Policies, s.Nodes = slices.Clone(s.Policies), slices.Clone(s.Nodes)
			c.plant(&s)
			return rollout.Decide(s)
		})
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, expected %s", name, err, c.want)
		}
	}
}
