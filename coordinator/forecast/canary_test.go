package forecast

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// pooled is a policy of the nodes of its pool: one at a time, 10m for a turn, 1m to settle.
func pooled(name string, after ...policy.After) policy.Policy {
	obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	obj.Name, obj.Spec.NodeSelector.MatchLabels = name, map[string]string{"pool": name}
	p := policy.Compile(obj, time.LoadLocation)
	p.MaxUnavailable.Number, p.ExpectedDuration, p.Settle, p.After = 1, 10*time.Minute, time.Minute, after
	return p
}

// in puts the node into a pool. It runs version 1.
func in(pool string, n turn.Node) turn.Node {
	n.Labels, n.Host.OSVersion = map[string]string{"pool": pool}, "1"
	return n
}

// running is a canary that has run version 2 for so long.
func running(name string, ago time.Duration) turn.Node {
	n := in("canary", idle(name))
	n.Host.OSVersion, n.ReadySince = "2", noon.Add(-ago)
	n.Runs = &v1alpha1.Runs{OSVersion: "2", BootID: n.BootID, Since: noon.Add(-ago)}
	return n
}

// TestEndsWithCanaries has the end of the rollout of policy rest, whose nodes run version 2 when
// the nodes of policy canary have run it for a day.
func TestEndsWithCanaries(t *testing.T) {
	const day = 24 * time.Hour
	version3 := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "3"}}
	rest := func(name string) turn.Node { return in("rest", wanting(name)) }
	canary := func(name string) turn.Node { return in("canary", wanting(name)) }
	with := func(n turn.Node, edit func(*turn.Node)) turn.Node { edit(&n); return n }
	for _, tc := range []struct {
		name    string
		nodes   []turn.Node
		edit    func(rest, canary *policy.Policy)
		held    map[string]v1alpha1.Reason
		after   time.Duration // 0: not known
		unknown string
		least   time.Duration
		plan    map[string]time.Duration // when turns begin
	}{
		{name: "the canaries have run it for long enough", nodes: []turn.Node{rest("n1"), running("c1", day)}, after: 10 * time.Minute,
			plan: map[string]time.Duration{"n1": 0}},
		{name: "one has run it for an hour", nodes: []turn.Node{rest("n1"), running("c1", 2*day), running("c2", time.Hour)}, after: 23*time.Hour + 10*time.Minute,
			plan: map[string]time.Duration{"n1": 23 * time.Hour}},
		{name: "no coordinator has recorded yet that it runs it", nodes: []turn.Node{rest("n1"), with(running("c1", 2*day), func(n *turn.Node) { n.Runs = nil })},
			after: day + 10*time.Minute, plan: map[string]time.Duration{"n1": day}},
		// The canaries' turns take from 0 to 10 and from 11 to 21. A day later, those of the others begin.
		{name: "the canaries take their turns first", nodes: []turn.Node{rest("n1"), rest("n2"), canary("c1"), canary("c2")}, after: day + 42*time.Minute,
			plan: map[string]time.Duration{"c1": 0, "c2": 11 * time.Minute, "n1": day + 21*time.Minute, "n2": day + 32*time.Minute}},
		{name: "a canary is in its turn", nodes: []turn.Node{rest("n1"), in("canary", with(turning("c1", 6*time.Minute), func(n *turn.Node) { n.Grant.Policy = "canary" }))},
			after: day + 14*time.Minute, plan: map[string]time.Duration{"n1": day + 4*time.Minute}},
		{name: "a canary is in its turn, and its grant alone says what for", nodes: []turn.Node{rest("n1"), in("canary", with(turning("c1", 6*time.Minute), func(n *turn.Node) {
			n.Grant.Policy, n.Grant.Changes, n.Host.Changes = "canary", anUpdate, nil
		}))}, after: day + 14*time.Minute, plan: map[string]time.Duration{"n1": day + 4*time.Minute}},
		{name: "a canary is in a turn without a grant", nodes: []turn.Node{rest("n1"), in("canary", with(turning("c1", 6*time.Minute), func(n *turn.Node) { n.Grant = nil }))},
			unknown: "waits for policy canary: c1 is held (InvalidGrant)", least: day},
		{name: "the policy is paused", nodes: []turn.Node{rest("n1"), running("c1", time.Hour)}, edit: func(r, _ *policy.Policy) { r.Paused = true },
			unknown: "the policy is paused", least: 23 * time.Hour},
		{name: "a node that is held, or in its turn, waits for no canary", nodes: []turn.Node{rest("n1"), running("c1", time.Hour),
			with(rest("n2"), func(n *turn.Node) { n.Host.Changes = version3 }), with(in("rest", turning("n3", time.Minute)), func(n *turn.Node) { n.Grant.Policy, n.Grant.Changes = "rest", version3 })},
			held: map[string]v1alpha1.Reason{"n2": v1alpha1.ReasonPaused}, edit: func(r, _ *policy.Policy) {
				r.Blackouts = []policy.Blackout{{From: noon.Add(time.Hour), To: noon.Add(3 * day), Name: "blackout x"}}
			},
			unknown: "blackout x begins before that", least: 23 * time.Hour, plan: map[string]time.Duration{"n1": 3 * day}},
		// Its reboot, for any reason, begins its time again.
		{name: "a canary that runs it wants another reboot", nodes: []turn.Node{rest("n1"), with(running("c1", time.Hour), func(n *turn.Node) {
			n.Wants, n.Host.Drains, n.Host.Changes = v1alpha1.WantsReboot, true, []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}}
		})}, after: day + 20*time.Minute, plan: map[string]time.Duration{"c1": 0, "n1": day + 10*time.Minute}},
		{name: "a sentinel waits for no canary", nodes: []turn.Node{with(rest("n1"), func(n *turn.Node) {
			n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}}
		}), running("c1", time.Hour)}, after: 10 * time.Minute, plan: map[string]time.Duration{"n1": 0}},
		{name: "a canary does not want it", nodes: []turn.Node{rest("n1"), canary("c1"), in("canary", idle("c2"))}, unknown: "waits for policy canary: c2 runs 1", least: day,
			plan: map[string]time.Duration{"c1": 0}},
		{name: "a canary is held", nodes: []turn.Node{rest("n1"), canary("c1")}, held: map[string]v1alpha1.Reason{"c1": v1alpha1.ReasonPaused},
			unknown: "waits for policy canary: c1 is held (Paused)", least: day, plan: map[string]time.Duration{"c1": 0, "n1": day + 10*time.Minute}},
		{name: "a canary has failed", nodes: []turn.Node{rest("n1"), with(canary("c1"), func(n *turn.Node) {
			n.Last = &v1alpha1.Last{Turn: "t", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonStillWanted, Changes: anUpdate, End: noon.Add(-time.Hour)}
		})}, edit: func(_, c *policy.Policy) { c.MaxFailed = 1 }, unknown: "waits for policy canary: c1 is held (Failed)", least: day},
		{name: "the canaries' policy is paused", nodes: []turn.Node{rest("n1"), canary("c1")}, edit: func(_, c *policy.Policy) { c.Paused = true },
			unknown: "waits for policy canary: c1 gets no turn: the policy is paused", least: day},
		{name: "the canaries' slot is taken", nodes: []turn.Node{rest("n1"), canary("c1"), with(running("c2", 2*day), func(n *turn.Node) { n.Unschedulable = true })},
			unknown: "waits for policy canary: c1 runs 1", least: day},
		{name: "there is no canary", nodes: []turn.Node{rest("n1")}, unknown: "waits for policy canary, which decides about no node"},
		{name: "the policies wait for each other", nodes: []turn.Node{rest("n1"), running("c1", 2*day)}, edit: func(_, c *policy.Policy) { c.After = []policy.After{{Policy: "rest"}} },
			unknown: "policies wait for each other: rest after canary after rest; remove one of these from rollout.after"},
		{name: "the version has no name", nodes: []turn.Node{with(rest("n1"), func(n *turn.Node) { n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate}} }), running("c1", 2*day)},
			unknown: "waits for policy canary, but a host does not say which OS version is staged", least: day},
		{name: "a blackout begins before the canaries have run it for long enough", nodes: []turn.Node{rest("n1"), running("c1", time.Hour)},
			edit: func(r, _ *policy.Policy) {
				r.Blackouts = []policy.Blackout{{From: noon.Add(time.Hour), To: noon.Add(3 * day), Name: "blackout x"}}
			},
			unknown: "blackout x begins before that", least: 23 * time.Hour, plan: map[string]time.Duration{"n1": 3 * day}},
		{name: "a blackout holds, and the canaries take longer", nodes: []turn.Node{rest("n1"), running("c1", time.Hour)},
			edit: func(r, _ *policy.Policy) {
				r.Blackouts = []policy.Blackout{{From: noon.Add(-time.Hour), To: noon.Add(time.Hour), Name: "blackout x"}}
			},
			unknown: "blackout x holds until 2026-11-21 13:00:00 UTC", least: 23 * time.Hour, plan: map[string]time.Duration{"n1": 23 * time.Hour}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, c := pooled("rest", policy.After{Policy: "canary", For: day}), pooled("canary")
			if tc.edit != nil {
				tc.edit(&r, &c)
			}
			s := rollout.Snapshot{Now: noon, Policies: policy.NewSet(r, c), Nodes: tc.nodes}
			out := rollout.Decide(s)
			fleet, all := Ends(s, &out, tc.held)
			got := all["rest"]
			want := End{Unknown: tc.unknown, Left: got.Left, Turn: got.Turn}
			if tc.held["n2"] != "" { // the other nodes are canaries
				want.Held = 1
			}
			if tc.after > 0 {
				want.At = noon.Add(tc.after)
			}
			if tc.least > 0 {
				want.NotBefore = noon.Add(tc.least)
			}
			if got != want || got.Left == 0 {
				t.Errorf("%+v\nexpected %+v", got, want)
			}
			if !strings.Contains(fleet.Unknown, tc.unknown) && !strings.HasPrefix(fleet.Unknown, "policy canary: ") || fleet.At.IsZero() != (tc.after == 0) || !fleet.NotBefore.Equal(want.NotBefore) {
				t.Errorf("the fleet: %+v", fleet)
			}
			at, notBefore := begins(s, &out)
			for i := range s.Nodes {
				name := s.Nodes[i].Name
				when, known := tc.plan[name]
				if got, ok := at[name]; ok != known || known && !got.Equal(noon.Add(when)) {
					t.Errorf("the turn of %s begins at %v, %v, expected %v, %v", name, got, ok, noon.Add(when), known)
				}
				if !known && name == "n1" && tc.least > 0 && !notBefore[name].Equal(want.NotBefore) {
					t.Errorf("the turn of n1 begins at %v at the earliest, expected %v", notBefore[name], want.NotBefore)
				}
			}
		})
	}
}
