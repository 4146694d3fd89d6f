package forecast

import (
	"fmt"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// rolls is a cluster for TestEnds: a policy that lets one node go at a time, with 10m
// for a turn and 1m to settle.
func rolls(nodes ...turn.Node) (rollout.Snapshot, *policy.Policy) {
	p := policy.Default()
	p.MaxUnavailable.Number, p.ExpectedDuration, p.Settle = 1, 10*time.Minute, time.Minute
	s := rollout.Snapshot{Now: noon, Policies: policy.NewSet(p), Nodes: nodes}
	return s, &s.Policies[0]
}

// turning is a node whose turn began so long ago.
func turning(name string, ago time.Duration) turn.Node {
	n := wanting(name)
	n.State, n.Turn, n.Unschedulable, n.Mark = v1alpha1.StateDraining, "t", true, true
	n.Grant = &v1alpha1.Grant{Turn: "t", NodeUID: n.UID, BootID: n.BootID, Wants: n.Wants, Drains: true, Changes: anUpdate, Policy: policy.Default().Name,
		Terms: policy.Default().Terms, StartedAt: noon.Add(-ago), StageAt: noon.Add(-ago)}
	n.Ack = v1alpha1.Ack{Turn: "t", BootID: n.BootID, State: n.State, Report: v1alpha1.ReportCommitted}
	return n
}

// done is a node whose turn took so long and ended half an hour ago.
func done(name string, took time.Duration, changes []v1alpha1.Change) turn.Node {
	return doneBefore(name, took, 30*time.Minute, changes)
}

// doneBefore is a node whose turn took so long and ended so long ago.
func doneBefore(name string, took, ago time.Duration, changes []v1alpha1.Change) turn.Node {
	n := idle(name)
	end := noon.Add(-ago)
	n.Last = &v1alpha1.Last{Turn: "t", Result: v1alpha1.ResultDone, Changes: changes, End: end, Turns: []time.Time{end.Add(-9 * time.Hour), end.Add(-took)}}
	return n
}

// requesting is a node that wants a reboot because of a request.
func requestingNow(name string) turn.Node {
	n := requesting(name)
	n.Request.Now = true
	return n
}

func requesting(name string) turn.Node {
	n := wanting(name)
	n.Request, n.Host.Changes = &v1alpha1.Request{Action: "reboot"}, []v1alpha1.Change{{Source: v1alpha1.SourceRequest}}
	return n
}

// controlPlane is the node as one of the control plane, changed by edit unless that is nil.
func controlPlane(n turn.Node, edit func(*turn.Node)) turn.Node {
	n.ControlPlane = true
	if edit != nil {
		edit(&n)
	}
	return n
}

func nodes(n int, make func(name string) turn.Node) []turn.Node {
	var all []turn.Node
	for i := range n {
		all = append(all, make(fmt.Sprintf("n%d", i)))
	}
	return all
}

func TestEnds(t *testing.T) {
	other := []v1alpha1.Change{{Source: v1alpha1.SourceRequest}}
	for _, tc := range []struct {
		name    string
		nodes   []turn.Node
		change  func(*policy.Policy, *rollout.Snapshot)
		held    map[string]v1alpha1.Reason
		after   time.Duration // 0: not known
		unknown string
		left    int
		without int
		turn    time.Duration
		seen    int
	}{
		{name: "nothing is to be done", nodes: nodes(3, idle)},
		// 0 to 10, 11 to 21, 22 to 32
		{name: "one after the other", nodes: nodes(3, wanting), after: 32 * time.Minute, left: 3, turn: 10 * time.Minute},
		{name: "two at a time", nodes: nodes(5, wanting), change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 },
			after: 32 * time.Minute, left: 5, turn: 10 * time.Minute},
		{name: "two at a time, one of all", nodes: nodes(3, wanting), change: func(p *policy.Policy, _ *rollout.Snapshot) {
			p.MaxUnavailable.Number, p.MaxUnavailableTotal = 2, &policy.Limit{Number: 1}
		}, after: 32 * time.Minute, left: 3, turn: 10 * time.Minute},
		// 4 more minutes, 1 to settle, 10
		{name: "one is in its turn", nodes: []turn.Node{turning("a", 6*time.Minute), wanting("b")}, after: 15 * time.Minute, left: 2, turn: 10 * time.Minute},
		// a quarter of what a turn takes
		{name: "its turn takes longer", nodes: []turn.Node{turning("a", 19*time.Minute)}, after: 150 * time.Second, left: 1, turn: 10 * time.Minute},
		{name: "its turn takes far longer", nodes: []turn.Node{turning("a", 21*time.Minute), wanting("b")}, left: 2, turn: 10 * time.Minute,
			unknown: "a has been in its turn for far longer than expected"},
		{name: "two turns were seen", nodes: []turn.Node{done("a", 4*time.Minute, anUpdate), done("b", 4*time.Minute, anUpdate), wanting("c")},
			after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "three turns were seen", nodes: []turn.Node{done("a", 4*time.Minute, anUpdate), done("b", time.Minute, anUpdate), done("c", 5*time.Minute, anUpdate), wanting("d"), wanting("e")},
			after: 9 * time.Minute, left: 2, turn: 4 * time.Minute, seen: 3}, // 4, 1, 4
		{name: "three turns for something else", nodes: []turn.Node{done("a", 4*time.Minute, other), done("b", 4*time.Minute, other), done("c", 4*time.Minute, other), wanting("d")},
			after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "three turns that ended now", nodes: append(nodes(3, func(name string) turn.Node { return doneBefore(name, 4*time.Minute, 0, anUpdate) }), wanting("x")),
			after: 5 * time.Minute, left: 1, turn: 4 * time.Minute, seen: 3}, // after the minute to settle
		{name: "three turns that ended a day ago", nodes: append(nodes(3, func(name string) turn.Node { return doneBefore(name, 4*time.Minute, 24*time.Hour, anUpdate) }), wanting("x")),
			after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "three turns that took no time, because clocks differ", nodes: append(nodes(3, func(name string) turn.Node { return done(name, 0, anUpdate) }), wanting("x")),
			after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "of nodes with equal times, the first says how many turns were seen", nodes: append(nodes(3, func(name string) turn.Node { return done(name, 10*time.Minute, other) }), wanting("x"), requesting("y")),
			after: 21 * time.Minute, left: 2, turn: 10 * time.Minute},
		{name: "a turn is for the changes in its record, not for those that wait", nodes: append(nodes(3, func(name string) turn.Node { return done(name, 4*time.Minute, other) }), func() turn.Node {
			n := turning("x", time.Minute)
			n.Grant.Changes = other
			return n
		}()), after: 3 * time.Minute, left: 1, turn: 4 * time.Minute, seen: 3},
		{name: "a waiting node's old record says nothing", nodes: append(nodes(3, func(name string) turn.Node { return done(name, 4*time.Minute, other) }), func() turn.Node {
			n := wanting("x")
			n.Grant = &v1alpha1.Grant{Turn: "t0", Changes: other}
			return n
		}()), after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "a turn without a record", nodes: []turn.Node{func() turn.Node { n := turning("a", 0); n.Grant = nil; return n }()},
			unknown: "every node that is left is held", left: 1, without: 1},
		{name: "its turn takes twice as long as expected", nodes: []turn.Node{turning("a", 20*time.Minute)}, after: 150 * time.Second, left: 1, turn: 10 * time.Minute},
		{name: "one is held", nodes: nodes(3, wanting), held: map[string]v1alpha1.Reason{"n0": v1alpha1.ReasonPaused}, after: 21 * time.Minute, left: 3, without: 1, turn: 10 * time.Minute},
		{name: "all are held", nodes: nodes(2, wanting), held: map[string]v1alpha1.Reason{"n0": v1alpha1.ReasonPaused, "n1": v1alpha1.ReasonFailed},
			unknown: "every node that is left is held", left: 2, without: 2},
		{name: "a turn is held, which keeps the slot", nodes: []turn.Node{turning("a", time.Minute), wanting("b")}, held: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonOverdue},
			unknown: "its slots are taken by nodes that are not in a turn", left: 2, without: 1, turn: 10 * time.Minute},
		{name: "someone's cordon takes the slot", nodes: append(nodes(1, func(name string) turn.Node { n := idle(name); n.Unschedulable = true; return n }), wanting("x")),
			unknown: "its slots are taken by nodes that are not in a turn", left: 1, turn: 10 * time.Minute},
		{name: "that node is the one that waits", nodes: nodes(2, func(name string) turn.Node { n := wanting(name); n.Unschedulable = name == "n0"; return n }),
			unknown: "its slots are taken by nodes that are not in a turn", left: 2, turn: 10 * time.Minute},
		{name: "the policy is paused", nodes: nodes(2, wanting), change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Paused = true }, unknown: "the policy is paused", left: 2},
		{name: "the policy is paused, and the last turn ends", nodes: []turn.Node{turning("a", 6*time.Minute)}, change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Paused = true },
			after: 4 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "the policy only observes", nodes: nodes(2, wanting), change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Observe = true }, unknown: "the policy only observes", left: 2},
		{name: "the policy is invalid", nodes: nodes(2, wanting), change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Problems = []policy.Problem{{Field: "spec", Text: "x"}} },
			unknown: "the policy is invalid", left: 2},
		{name: "no policy selects them", nodes: nodes(2, wanting), change: func(_ *policy.Policy, s *rollout.Snapshot) { s.Policies = nil }, unknown: "every node that is left is held", left: 2, without: 2},
		{name: "a gate is closed", nodes: nodes(2, wanting), held: map[string]v1alpha1.Reason{"n1": v1alpha1.ReasonGateClosed}, unknown: "a gate is closed", left: 2, turn: 10 * time.Minute},
		{name: "a request for now waits for no window", nodes: []turn.Node{requestingNow("a")}, change: window("22:00", time.Hour), after: 10 * time.Minute, left: 1, turn: 10 * time.Minute},
		{name: "the others do", nodes: []turn.Node{requestingNow("a"), wanting("b")}, change: window("22:00", time.Hour), unknown: "the next window opens at 2026-11-21 22:00:00 UTC", left: 2, turn: 10 * time.Minute},
		{name: "a request for now waits for the slot, and for no settle time", nodes: []turn.Node{turning("a", 6*time.Minute), requestingNow("b")}, change: blackout(-time.Hour, 50*time.Hour),
			after: 14 * time.Minute, left: 2, turn: 10 * time.Minute},
		{name: "a request for now waits for a paused policy", nodes: []turn.Node{requestingNow("a")}, change: func(p *policy.Policy, _ *rollout.Snapshot) { p.Paused = true }, unknown: "the policy is paused", left: 1},
		{name: "no window is open", nodes: nodes(2, wanting), change: window("22:00", time.Hour), unknown: "the next window opens at 2026-11-21 22:00:00 UTC", left: 2},
		{name: "a blackout holds", nodes: nodes(2, wanting), change: blackout(-time.Hour, 50*time.Hour), unknown: "blackout from noon holds until 2026-11-23 14:00:00 UTC", left: 2},
		{name: "a blackout begins when all have had their turns", nodes: nodes(3, wanting), change: blackout(32*time.Minute, time.Hour), after: 32 * time.Minute, left: 3, turn: 10 * time.Minute},
		{name: "a blackout begins too early", nodes: nodes(3, wanting), change: blackout(31*time.Minute, time.Hour), unknown: "blackout from noon begins before that", left: 3, turn: 10 * time.Minute},
		{name: "the window is long enough", nodes: nodes(3, wanting), change: window("11:45", 50*time.Minute), after: 32 * time.Minute, left: 3, turn: 10 * time.Minute},
		{name: "the window is too short", nodes: nodes(3, wanting), change: window("11:45", 40*time.Minute), unknown: "its window closes before that", left: 3, turn: 10 * time.Minute},
		{name: "one control-plane node at a time", nodes: nodes(2, func(name string) turn.Node { n := wanting(name); n.ControlPlane = true; return n }),
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, after: 21 * time.Minute, left: 2, turn: 10 * time.Minute},
		{name: "someone cordoned another control-plane node", nodes: []turn.Node{controlPlane(idle("c1"), func(n *turn.Node) { n.Unschedulable = true }), controlPlane(wanting("c2"), nil)},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, unknown: "control-plane node c1 is unavailable", left: 1, turn: 10 * time.Minute},
		{name: "that node itself has its turn, and stays cordoned", nodes: []turn.Node{controlPlane(wanting("c1"), func(n *turn.Node) { n.Unschedulable = true }), controlPlane(wanting("c2"), nil)},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, unknown: "control-plane node c1 is unavailable", left: 2, turn: 10 * time.Minute},
		{name: "another control-plane node is not Ready", nodes: []turn.Node{controlPlane(idle("c1"), func(n *turn.Node) { n.Ready = false }), controlPlane(wanting("c2"), nil), wanting("n1")},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, unknown: "control-plane node c1 is unavailable", left: 2, turn: 10 * time.Minute},
		{name: "another control-plane node is held in its turn", nodes: []turn.Node{controlPlane(turning("c1", time.Minute), nil), controlPlane(wanting("c2"), nil)}, held: map[string]v1alpha1.Reason{"c1": v1alpha1.ReasonOverdue},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, unknown: "control-plane node c1 is unavailable", left: 2, without: 1, turn: 10 * time.Minute},
		{name: "another control-plane node is held before its cordon", nodes: []turn.Node{controlPlane(turning("c1", time.Minute), func(n *turn.Node) { n.Mark, n.Unschedulable = false, false }),
			controlPlane(wanting("c2"), nil)}, held: map[string]v1alpha1.Reason{"c1": v1alpha1.ReasonOverdue},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, unknown: "control-plane node c1 is unavailable", left: 2, without: 1, turn: 10 * time.Minute},
		{name: "another control-plane node ends its turn", nodes: []turn.Node{controlPlane(turning("c1", 6*time.Minute), nil), controlPlane(wanting("c2"), nil)},
			change: func(p *policy.Policy, _ *rollout.Snapshot) { p.MaxUnavailable.Number = 2 }, after: 15 * time.Minute, left: 2, turn: 10 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := rolls(tc.nodes...)
			if tc.change != nil {
				tc.change(p, &s)
			}
			out := rollout.Decide(s)
			fleet, policies := Ends(s, &out, tc.held)
			want := End{Unknown: tc.unknown, Left: tc.left, Held: tc.without, Turn: tc.turn, Seen: tc.seen}
			if tc.after > 0 {
				want.At = noon.Add(tc.after)
			}
			if fleet != want {
				t.Errorf("the fleet: %+v\nexpected %+v", fleet, want)
			}
			if p := policies[p.Name]; len(s.Policies) > 0 && p != want {
				t.Errorf("its policy: %+v\nexpected %+v", p, want)
			}
		})
	}
}

// The fleet ends with the last policy that still has something to do. A policy whose nodes
// are all held does not delay it, and one whose end is unknown makes the fleet's unknown.
func TestEndsOfSeveralPolicies(t *testing.T) {
	pool := func(name string, change func(*policy.Policy)) policy.Policy {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.NodeSelector.MatchLabels = name, map[string]string{"pool": name}
		p := policy.Compile(obj, time.LoadLocation)
		p.MaxUnavailable.Number, p.ExpectedDuration, p.Settle = 3, 10*time.Minute, time.Minute
		change(&p)
		return p
	}
	in := func(pool string, n turn.Node) turn.Node {
		n.Labels = map[string]string{"pool": pool}
		return n
	}
	as := func(*policy.Policy) {}
	total := func(n int) func(*policy.Policy) {
		return func(p *policy.Policy) { p.MaxUnavailableTotal = &policy.Limit{Number: n} }
	}
	seen := nodes(3, func(name string) turn.Node { return in("b", done("b"+name, 10*time.Minute, anUpdate)) })
	for _, tc := range []struct {
		name  string
		a, b  func(*policy.Policy)
		nodes []turn.Node
		held  map[string]v1alpha1.Reason
		want  End
	}{
		{name: "the first is held", a: as, b: as, nodes: []turn.Node{in("a", wanting("x")), in("b", wanting("y"))}, held: map[string]v1alpha1.Reason{"x": v1alpha1.ReasonPaused},
			want: End{At: noon.Add(10 * time.Minute), Left: 2, Held: 1, Turn: 10 * time.Minute}},
		{name: "the end of the first is unknown", a: func(p *policy.Policy) { p.Paused = true }, b: as, nodes: []turn.Node{in("a", wanting("x")), in("b", wanting("y"))},
			want: End{Unknown: "policy a: the policy is paused", Left: 2, Turn: 10 * time.Minute}},
		{name: "equal times: those of the first", a: as, b: as, nodes: append([]turn.Node{in("a", wanting("x")), in("b", wanting("y"))}, seen...),
			want: End{At: noon.Add(10 * time.Minute), Left: 2, Turn: 10 * time.Minute}},
		{name: "the least total counts, which is the first one's", a: total(1), b: total(2), nodes: []turn.Node{in("a", wanting("x")), in("b", wanting("y"))},
			want: End{At: noon.Add(20 * time.Minute), Left: 2, Turn: 10 * time.Minute}},
		{name: "the least total counts, which is the last one's", a: total(2), b: total(1), nodes: []turn.Node{in("a", wanting("x")), in("b", wanting("y"))},
			want: End{At: noon.Add(20 * time.Minute), Left: 2, Turn: 10 * time.Minute}},
		{name: "nodes that are not in the queue yet come last", a: as, b: total(1), nodes: []turn.Node{in("a", func() turn.Node {
			n := wanting("x")
			n.Host.Veto = v1alpha1.ReasonSessions
			return n
		}()), in("b", wanting("y")), in("b", wanting("z"))}, held: map[string]v1alpha1.Reason{"x": v1alpha1.ReasonSessions},
			want: End{At: noon.Add(30 * time.Minute), Left: 3, Turn: 10 * time.Minute}},
	} {
		s := rollout.Snapshot{Now: noon, Policies: policy.NewSet(pool("a", tc.a), pool("b", tc.b)), Nodes: tc.nodes}
		out := rollout.Decide(s)
		if fleet, _ := Ends(s, &out, tc.held); fleet != tc.want {
			t.Errorf("%s: %+v\nexpected %+v", tc.name, fleet, tc.want)
		}
	}
}

// blackout gives the policy one blackout, which begins and ends so long after noon.
func blackout(from, to time.Duration) func(*policy.Policy, *rollout.Snapshot) {
	return func(p *policy.Policy, _ *rollout.Snapshot) {
		p.Blackouts = []policy.Blackout{{From: noon.Add(from), To: noon.Add(to), Name: "blackout from noon"}}
	}
}

// window gives the policy one window each day.
func window(start string, lasts time.Duration) func(*policy.Policy, *rollout.Snapshot) {
	return func(p *policy.Policy, _ *rollout.Snapshot) {
		at, err := time.Parse("15:04", start)
		if err != nil {
			panic(err)
		}
		p.Windows = []policy.Window{{Days: [7]bool{true, true, true, true, true, true, true}, Hour: at.Hour(), Minute: at.Minute(), Duration: lasts, Zone: time.UTC}}
	}
}

// A fleet of five thousand takes no longer than a person waits.
func TestEndsOfALargeFleet(t *testing.T) {
	s, _ := rolls(nodes(5000, wanting)...)
	out := rollout.Decide(s)
	began := time.Now()
	fleet, _ := Ends(s, &out, nil)
	if want := noon.Add(5000*11*time.Minute - time.Minute); !fleet.At.Equal(want) {
		t.Errorf("it ends at %v, expected %v", fleet.At, want)
	}
	t.Log(time.Since(began))
}
