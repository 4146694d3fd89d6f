package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestQueue has which of two nodes has its turn first. Unless the case says otherwise, they are alike, and n1 is first by its name.
func TestQueue(t *testing.T) {
	ended := func(ago time.Duration) *v1alpha1.Last {
		return &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultDone, End: atNoon.Add(-ago)}
	}
	backedOut := &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultBackedOut, Changes: anUpdate, End: atNoon.Add(-25 * time.Hour), NotBefore: new(atNoon.Add(-time.Hour))}
	for name, c := range map[string]struct {
		facts  string
		change func(s *rollout.Snapshot, n1, n2 *turn.Node)
		want   string
	}{
		"alike":                          {"idle", func(*rollout.Snapshot, *turn.Node, *turn.Node) {}, "n1 n2"},
		"n1 had a turn":                  {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last = ended(time.Hour) }, "n2 n1"},
		"n1 had one a day ago":           {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last = ended(24 * time.Hour) }, "n2 n1"},
		"n1 had one more than a day ago": {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last = ended(24*time.Hour + 1) }, "n1 n2"},
		"n1's turn ends in an hour":      {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last = ended(-time.Hour) }, "n1 n2"}, // a user wrote that
		"n1 is to be tried again":        {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last, n1.Retry = ended(time.Hour), "t0" }, "n1 n2"},
		"n1's turn was later":            {"idle", func(_ *rollout.Snapshot, n1, n2 *turn.Node) { n1.Last, n2.Last = ended(time.Hour), ended(2*time.Hour) }, "n2 n1"},
		"n1's zone comes later":          {"idle", func(_ *rollout.Snapshot, n1, n2 *turn.Node) { n1.Zone, n2.Zone = "b", "a" }, "n2 n1"},
		"n2 booted earlier":              {"idle", func(_ *rollout.Snapshot, _, n2 *turn.Node) { n2.Host.BootTime = n2.Host.BootTime.Add(-time.Hour) }, "n2 n1"},
		"its last turn before its zone":  {"idle", func(_ *rollout.Snapshot, n1, n2 *turn.Node) { n1.Last, n1.Zone, n2.Zone = ended(time.Hour), "a", "b" }, "n2 n1"},
		"its zone before its boot": {"idle", func(_ *rollout.Snapshot, n1, n2 *turn.Node) {
			n1.Zone, n2.Zone, n2.Host.BootTime = "a", "b", n2.Host.BootTime.Add(-time.Hour)
		}, "n1 n2"},
		"a policy that orders by name": {"idle", func(s *rollout.Snapshot, n1, n2 *turn.Node) {
			s.Policies[0].Order, n1.Zone, n2.Zone = []v1alpha1.OrderKey{v1alpha1.OrderName, v1alpha1.OrderZone}, "b", "a"
		}, "n1 n2"},
		"n1 is the leader's": {"idle", func(s *rollout.Snapshot, _, _ *turn.Node) { s.Self = "n1" }, "n2 n1"},
		"n1 was backed out":  {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last = backedOut }, "n2 n1"},
		"for other changes": {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) {
			n1.Last, n1.Host.Changes = backedOut, []v1alpha1.Change{{Source: v1alpha1.SourceSentinel}}
		}, "n1 n2"},
		"and is to be tried": {"idle", func(_ *rollout.Snapshot, n1, _ *turn.Node) { n1.Last, n1.Retry = backedOut, "t0" }, "n1 n2"},
		"both were, and n1's policy comes first": {"idle label=pool:web policy=web;select=pool:web;priority=5", func(_ *rollout.Snapshot, n1, n2 *turn.Node) {
			n1.Last, n2.Last, n1.Zone, n2.Zone = backedOut, backedOut, "b", "a"
		}, "n1 n2"},
		"n2 was, and n1 is the leader's": {"idle policy=web;select=pool:web", func(s *rollout.Snapshot, n1, n2 *turn.Node) {
			s.Self, n2.Last, n1.Zone, n2.Zone = "n1", backedOut, "a", "b"
		}, "n2 n1"},
		"n2 is, and n1's policy only looks": {"idle label=pool:web policy=web;select=pool:web;observe=true", func(s *rollout.Snapshot, n1, n2 *turn.Node) {
			s.Self, n1.Zone, n2.Zone = "n2", "a", "b"
		}, "n2 n1"},
		"n1's policy only looks":  {"idle label=pool:web policy=web;select=pool:web;observe=true", func(*rollout.Snapshot, *turn.Node, *turn.Node) {}, "n2 n1"},
		"n2's policy comes first": {"idle n2.label=pool:web policy=web;select=pool:web;priority=5", func(*rollout.Snapshot, *turn.Node, *turn.Node) {}, "n2 n1"},
		"n1's policy comes first": {"idle label=pool:web policy=web;select=pool:web;priority=5", func(_ *rollout.Snapshot, n1, n2 *turn.Node) { n1.Zone, n2.Zone = "b", "a" }, "n1 n2"},
	} {
		s := situation(t, strings.Fields(c.facts))
		n1, n2 := &s.Nodes[0], &s.Nodes[1]
		host := *n1.Host
		host.NodeUID = n2.UID
		n2.Host, n2.Wants = &host, n1.Wants
		s.Policies[0].Settle = 0
		c.change(&s, n1, n2)
		out := rollout.Decide(s)
		if got := strings.Join(out.Queue(), " "); got != c.want {
			t.Errorf("%s: the queue is %q, expected %q", name, got, c.want)
		}
	}
}

// TestRepairedGrants has the grants that replace those that cannot be read.
func TestRepairedGrants(t *testing.T) {
	for facts, want := range map[string]string{
		"draining ack=draining/committed marked nogrant":          "t1 b1 nothing drains, backed out on refused",
		"draining ack=draining/committed nogrant":                 "t1 b1 nothing, backed out on refused",
		"draining ack=draining/committed marked nogrant turn=t9":  "new b1 nothing drains, backed out on refused",
		"draining marked nogrant":                                 "new b1 nothing drains, backed out on refused",
		"before-uncordon ack=draining/done marked nogrant":        "t1 b1 nothing drains, backed out on ",
		"uncordoning ack=draining/done marked nogrant":            "t1 b1 nothing drains, backed out on ",
		"rebooting ack@b0=rebooting/committed marked nogrant":     "t1 b0 reboot drains, goes on",
		"rebooting ack=rebooting/done marked nogrant":             "t1  reboot drains, goes on", // in any boot but that of the report
		"rebooting ack=rebooting/failed:Unhealthy marked nogrant": "t1  reboot drains, goes on",
		"rebooting ack=rebooting/seen marked nogrant":             "t1 b1 nothing drains, backed out on refused",
		"rebooting ack=draining/committed marked nogrant":         "t1 b1 nothing drains, backed out on refused",
		"applying ack@b0=applying/committed nogrant":              "t1 b0 nothing, goes on",
		"applying ack=applying/done nogrant":                      "t1 b1 nothing, goes on",
		"applying ack=draining/committed nogrant":                 "t1 b1 nothing, backed out on refused",
	} {
		for _, v := range rollout.Decide(situation(t, strings.Fields(facts))).Verdicts {
			if v.Node != "n1" {
				continue
			}
			g := v.Move.Grant
			got := g.Turn
			if v.Move.NewTurn {
				got = "new"
			}
			got += " " + g.BootID + " " + string(g.Wants)
			if g.Drains {
				got += " drains"
			}
			if g.Result == v1alpha1.ResultBackedOut && g.Reason == v1alpha1.ReasonInvalidGrant {
				got += ", backed out on " + string(v.Move.On)
			} else {
				got += ", goes on"
			}
			if got != want {
				t.Errorf("%s: %q, expected %q", facts, got, want)
			}
		}
	}
}

// TestFigures counts the nodes of a cluster of two: n1, whose facts are given, and n2, which is idle and wants nothing.
func TestFigures(t *testing.T) {
	for facts, want := range map[string]string{
		"idle":                            "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 2 selected, 1 up to date",
		"idle wants=nothing":              "2 managed, 2 reporting, 0 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 2 selected, 2 up to date",
		"idle wants=nothing hostboot=b0":  "2 managed, 1 reporting, 0 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 2 selected, 1 up to date",
		"draining":                        "2 managed, 2 reporting, 1 wanting, 1 in turn, 1 unavailable, 0 failed, budget 1; built-in: 2 selected, 1 up to date",
		"uncordoning wants=nothing":       "2 managed, 2 reporting, 1 wanting, 1 in turn, 1 unavailable, 0 failed, budget 1; built-in: 2 selected, 1 up to date",
		"absent":                          "1 managed, 1 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 1 selected, 1 up to date",
		"absent wants=nothing":            "1 managed, 1 reporting, 0 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 1 selected, 1 up to date",
		"absent unmanaged":                "1 managed, 1 reporting, 0 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 1 selected, 1 up to date",
		"absent nohost n2.absent":         "0 managed, 0 reporting, 0 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; built-in: 0 selected, 0 up to date",
		"idle cordoned":                   "2 managed, 2 reporting, 1 wanting, 0 in turn, 1 unavailable, 0 failed, budget 1; built-in: 2 selected, 1 up to date",
		"idle failed":                     "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 1 failed, budget 1, halted; built-in: 2 selected, 1 up to date, halted",
		"idle failed maxfailed=i":         "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 1 failed, budget 1; built-in: 2 selected, 1 up to date",
		"idle policy=invalid=true":        "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 0; built-in: 2 selected, 1 up to date",
		"idle policy=web;select=pool:web": "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; web: 0 selected, 0 up to date; built-in: 2 selected, 1 up to date",
		"idle policy=web;select=pool:web;budget=2 n2.label=pool:web":  "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 3; web: 1 selected, 1 up to date; built-in: 1 selected, 0 up to date",
		"idle policy=web;select=pool:web;total=1 n2.label=pool:web":   "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 0 failed, budget 1; web: 1 selected, 1 up to date; built-in: 1 selected, 0 up to date",
		"idle n2.failed policy=web;select=pool:web n2.label=pool:web": "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 1 failed, budget 2, halted; web: 1 selected, 1 up to date, halted; built-in: 1 selected, 0 up to date",
		"idle failed policy=web;select=pool:web n2.label=pool:web":    "2 managed, 2 reporting, 1 wanting, 0 in turn, 0 unavailable, 1 failed, budget 2, halted; web: 1 selected, 1 up to date; built-in: 1 selected, 0 up to date, halted",
	} {
		f := rollout.Decide(situation(t, strings.Fields(facts))).Figures
		halted := map[bool]string{true: ", halted"}
		var got strings.Builder
		got.WriteString(fmt.Sprintf("%d managed, %d reporting, %d wanting, %d in turn, %d unavailable, %d failed, budget %d%s",
			f.Managed, f.Reporting, f.Wanting, f.InTurn, f.Unavailable, f.Failed, f.Budget, halted[f.Halted]))
		for _, p := range f.Policies {
			got.WriteString(fmt.Sprintf("; %s: %d selected, %d up to date%s", p.Name, p.Selected, p.UpToDate, halted[p.Halted]))
		}
		if got.String() != want {
			t.Errorf("%s:\n\tgot:      %s\n\texpected: %s", facts, got.String(), want)
		}
	}
}

// TestGrantsAtOnce counts the nodes of a cluster of five that are granted their turn in one decision. All want a reboot.
func TestGrantsAtOnce(t *testing.T) {
	for facts, want := range map[string]string{
		"idle":              "n1",
		"idle budget=ii":    "n1 n2",
		"idle budget=iiii":  "n1 n2 n3 n4",
		"idle budget=iiiii": "n1 n2 n3 n4 n5",
		"idle policy=web;select=a:b;total=3 policy=budget=4":             "n1 n2 n3",
		"idle policy=web;select=a:b;total=4 policy=budget=3":             "n1 n2 n3",
		"idle policy=budget=3 n2.cordoned":                               "n1 n2 n3", // n2 takes a slot already
		"idle policy=budget=2 n2.cordoned":                               "n1 n2",
		"idle policy=web;select=a:b;total=2 policy=budget=5 n2.cordoned": "n1 n2",
	} {
		s := situation(t, strings.Fields(facts))
		for _, name := range []string{"n3", "n4", "n5"} {
			n := s.Nodes[0]
			n.Name, n.UID = name, name+"-uid"
			s.Nodes = append(s.Nodes, n)
		}
		var got []string
		for i := range s.Nodes {
			n := &s.Nodes[i]
			host := *s.Nodes[0].Host
			host.NodeUID = n.UID
			n.Host, n.Wants = &host, v1alpha1.WantsReboot
		}
		for _, v := range rollout.Decide(s).Verdicts {
			if v.Move != nil && v.Move.Disturbs() {
				got = append(got, v.Node)
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s are granted their turn, expected %s", facts, text, want)
		}
	}
}

// TestOneNodeHoldsNoOther: what holds n1, or happens to it, does not keep the coordinator from the nodes after it.
func TestOneNodeHoldsNoOther(t *testing.T) {
	for _, facts := range []string{
		"idle control-plane n2.control-plane n2.notready budget=iii",
		"idle longchange=30 budget=ii",
		"idle policy=web;select=a:b;paused=true label=a:b",
		"idle notready budget=ii",
		"draining budget=ii",
	} {
		s := situation(t, strings.Fields(facts))
		n3 := situation(t, []string{"idle"}).Nodes[0]
		n3.Name, n3.UID, n3.Host.NodeUID = "n3", "n3-uid", "n3-uid"
		s.Nodes = append(s.Nodes, n3)
		if v := rollout.Decide(s).Verdicts; v[2].Move == nil || !v[2].Move.Disturbs() {
			t.Errorf("%s: n3 is not granted its turn, and held %q", facts, v[2].Held)
		}
	}
	for _, facts := range []string{"draining n2.foreign budget=ii", "draining grant.uid=other n2.foreign budget=ii", "idle n2.foreign budget=ii"} {
		if v := rollout.Decide(situation(t, strings.Fields(facts))).Verdicts[1]; v.Move == nil || v.Move.Reason != v1alpha1.ReasonHandover {
			t.Errorf("%s: n2 is not taken over: %+v", facts, v)
		}
	}
}

// TestFiguresOfAllNodes: a node that does not count, or that moves, keeps no node after it from counting.
func TestFiguresOfAllNodes(t *testing.T) {
	for _, facts := range []string{"absent nohost policy=paused=true", "draining policy=paused=true"} {
		s := situation(t, strings.Fields(facts))
		s.Nodes[1].Wants = v1alpha1.WantsReboot
		if f := rollout.Decide(s).Figures.Policies[0]; f.Held[v1alpha1.ReasonPaused] != 1 {
			t.Errorf("%s: held %v, expected n2 to be Paused", facts, f.Held)
		}
	}
	s := situation(t, strings.Fields("absent nohost label=pool:web policy=web;select=pool:web"))
	if f := rollout.Decide(s).Figures.Policies[1]; len(f.Matches) != 1 || f.Matches[0].Nodes != 1 {
		t.Errorf("%s: matches %+v, expected those of n2", f.Name, f.Matches)
	}
	s = situation(t, strings.Fields("draining n2.cordoned"))
	n3 := situation(t, []string{"idle"}).Nodes[0]
	n3.Name, n3.UID, n3.Host.NodeUID = "n3", "n3-uid", "n3-uid"
	s.Nodes = append(s.Nodes, n3)
	out := rollout.Decide(s)
	if slots := out.Blocking(); len(slots) != 1 || slots[0].Node != "n2" {
		t.Errorf("n3 waits for %+v, expected n2", slots)
	}
}
