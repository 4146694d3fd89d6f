package rollout_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// proven: "granted an OS version only when all nodes of the named policy have run that version for that time, without a
// failure".
func (w twin) proven(n *turn.Node, p *policy.Policy) bool {
	staged := slices.IndexFunc(n.Host.Changes, func(c v1alpha1.Change) bool { return c.Source == v1alpha1.SourceOSUpdate })
	if staged < 0 || len(p.After) == 0 {
		return true
	}
	version := n.Host.Changes[staged].Version
	decides := func(name string) *policy.Policy {
		for i := range w.Policies {
			if w.Policies[i].Name == name && !w.Policies[i].RulesOnly {
				return &w.Policies[i]
			}
		}
		return nil
	}
	// Everything that can be reached from p in as many steps as there are policies.
	reached := map[string]bool{}
	for _, a := range p.After {
		reached[a.Policy] = true
	}
	for range w.Policies {
		for i := range w.Policies {
			if o := &w.Policies[i]; reached[o.Name] && !o.RulesOnly {
				for _, a := range o.After {
					reached[a.Policy] = true
				}
			}
		}
	}
	if reached[p.Name] {
		return false
	}
	gone, failed := w.unavailable(), w.failed()
	for _, a := range p.After {
		first, some := decides(a.Policy), false
		for i := range w.Nodes {
			c := &w.Nodes[i]
			if first == nil || w.decides(c) != first || saidNo(c.Managed) || c.Detached != nil || speaks(c) && !c.Host.Managed ||
				c.State == "" && c.RawHost == "" && c.Managed == nil && c.Held == v1alpha1.ReasonUnmanaged { // its host said so, and was released
				continue
			}
			some = true
			if c.State == "" || gone[c.Name] || failed[c.Name] || !speaks(c) || c.Runs == nil {
				return false
			}
			if c.Host.OSVersion != version || c.Runs.OSVersion != version || c.Runs.BootID != c.BootID {
				return false
			}
			for what, began := range map[string]time.Time{"record": c.Runs.Since, "ready": c.ReadySince, "failure": failureOf(c)} {
				ahead := began.Sub(w.Now) > time.Minute
				if ahead && what == "record" || !ahead && w.Now.Sub(began) < a.For {
					return false
				}
			}
		}
		if !some || version == "" {
			return false
		}
	}
	return true
}

func failureOf(n *turn.Node) time.Time {
	if n.Last != nil && n.Last.Result == v1alpha1.ResultFailed {
		return n.Last.End
	}
	return time.Time{}
}

// canaries is a cluster at noon in which n1, of policy rest, wants 4.2. The policy waits for policy canary, whose nodes c1,
// c2 and c3 have run 4.2 since 11:00 of the day before, c3 since 12:00. So n1 may go now.
func canaries() *rollout.Snapshot {
	first := newPolicy("canary", 0, map[string]string{"pool": "canary"})
	rest := newPolicy("rest", 0, map[string]string{"pool": "rest"})
	first.MaxUnavailable.Number, rest.MaxUnavailable.Number, first.Settle, rest.Settle = 9, 9, 0, 0
	rest.After = []policy.After{{Policy: "canary", For: 24 * time.Hour}}
	s := &rollout.Snapshot{Now: atNoon, Epoch: "e1", Policies: policy.NewSet(first, rest)}
	for _, name := range []string{"c1", "c2", "c3", "n1"} {
		n := turn.Node{Name: name, UID: name + "-uid", ResourceVersion: "1", Created: atNoon.Add(-99 * time.Hour), BootID: "b2", Ready: true,
			ReadySince: atNoon.Add(-26 * time.Hour), Labels: map[string]string{"pool": "canary"},
			Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing, RawHost: "{}",
				Host: &v1alpha1.Host{Protocol: v1alpha1.Protocol, NodeUID: name + "-uid", BootID: "b2", BootTime: atNoon.Add(-26 * time.Hour), Managed: true, OSVersion: "4.2"},
				Runs: &v1alpha1.Runs{OSVersion: "4.2", BootID: "b2", Since: atNoon.Add(-25 * time.Hour)}}}
		s.Nodes = append(s.Nodes, n)
	}
	s.Nodes[2].Runs.Since = atNoon.Add(-24 * time.Hour)
	n := &s.Nodes[3]
	n.Labels, n.Runs, n.Host.OSVersion = map[string]string{"pool": "rest"}, nil, "4.1"
	n.Wants, n.Host.Drains, n.Host.Changes = v1alpha1.WantsReboot, true, anUpdate
	return s
}

// of returns a policy of the snapshot.
func of(s *rollout.Snapshot, name string) *policy.Policy {
	return &s.Policies[slices.IndexFunc(s.Policies, func(p policy.Policy) bool { return p.Name == name })]
}

// TestCanaries has what n1 is held for, by hand.
func TestCanaries(t *testing.T) {
	const all = "Canary: policy rest: waits for policy canary: "
	failed := &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonStillWanted, End: atNoon.Add(-3 * time.Hour)}
	for name, c := range map[string]struct {
		edit func(s *rollout.Snapshot, c3, n1 *turn.Node)
		want string // "" is a grant
	}{
		"all have": {func(*rollout.Snapshot, *turn.Node, *turn.Node) {}, ""},
		"a millisecond is missing": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Runs.Since = c3.Runs.Since.Add(time.Millisecond) },
			all + "3 of 3 nodes run 4.2, the last since 2025-12-31 12:00:00 UTC, until 12:00:00 UTC"},
		"two hours are missing": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Runs.Since = c3.Runs.Since.Add(2 * time.Hour) },
			all + "3 of 3 nodes run 4.2, the last since 2025-12-31 14:00:00 UTC, until 14:00:00 UTC"},
		"no time is asked for": {func(s *rollout.Snapshot, c3, _ *turn.Node) { of(s, "rest").After[0].For, c3.Runs.Since = 0, atNoon }, ""},
		"not Ready all the time": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.ReadySince = atNoon.Add(-time.Hour) },
			all + "3 of 3 nodes run 4.2, the last since 11:00:00 UTC, until 2026-01-02 11:00:00 UTC"},
		"Ready since tomorrow, its kubelet says": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.ReadySince = atNoon.Add(24 * time.Hour) }, ""},
		"not Ready":                              {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Ready = false }, all + "2 of 3 nodes run 4.2; c3 is not Ready"},
		"cordoned":                               {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Unschedulable = true }, all + "2 of 3 nodes run 4.2; c3 is cordoned by another owner"},
		"older":                                  {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Host.OSVersion = "4.1" }, all + "2 of 3 nodes run 4.2; c3 runs 4.1"},
		"newer":                                  {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Host.OSVersion = "4.3" }, all + "2 of 3 nodes run 4.2; c3 runs 4.3"},
		"no version":                             {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Host.OSVersion = "" }, all + "2 of 3 nodes run 4.2; c3 does not say which OS version it runs"},
		"a wild text":                            {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Host.OSVersion = "\x1b[31m" + strings.Repeat("x", 99) }, all + "2 of 3 nodes run 4.2; c3 runs  [31m" + strings.Repeat("x", 32) + "…"},
		"no record":                              {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Runs = nil }, all + "2 of 3 nodes run 4.2; c3 has just begun to run it"},
		"another boot":                           {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.BootID, c3.Host.BootID = "b3", "b3" }, all + "2 of 3 nodes run 4.2; c3 has just begun to run it"},
		"silent since its boot": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.BootID = "b3" },
			all + "2 of 3 nodes run 4.2; c3 has not reported from its present boot"},
		"a record of the future": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Runs.Since = atNoon.Add(time.Hour) }, all + "2 of 3 nodes run 4.2; c3 has just begun to run it"},
		"never reported": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Wants, c3.Host, c3.RawHost, c3.Runs = "", "", nil, "", nil
		},
			all + "2 of 3 nodes run 4.2; c3 has not reported from its present boot"},
		"its host's file took it out, and it was released": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Wants, c3.Host, c3.RawHost, c3.Runs, c3.Held = "", "", nil, "", nil, v1alpha1.ReasonUnmanaged
		}, ""},
		"the same, but an admin manages it": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Wants, c3.Host, c3.RawHost, c3.Runs, c3.Held, c3.Managed = "", "", nil, "", nil, v1alpha1.ReasonUnmanaged, new(true)
		}, all + "2 of 3 nodes run 4.2; c3 has not reported from its present boot"},
		"the same, but its host reports again": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Runs, c3.Held = "", nil, v1alpha1.ReasonUnmanaged
		}, all + "2 of 3 nodes run 4.2; c3 has not reported from its present boot"},
		"the same, but idle": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.Wants, c3.Host, c3.RawHost, c3.Runs, c3.Held = "", nil, "", nil, v1alpha1.ReasonUnmanaged
		}, all + "2 of 3 nodes run 4.2; c3 has not reported from its present boot"},
		"failed":                    {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Last = failed }, all + "2 of 3 nodes run 4.2; c3 failed in its last turn"},
		"failed, and cleared since": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Last, c3.Retry = failed, "t0" }, all + "3 of 3 nodes run 4.2, the last since 09:00:00 UTC, until 2026-01-02 09:00:00 UTC"},
		"in its turn": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Turn = v1alpha1.StateDraining, "t1"
			c3.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: c3.UID, BootID: "b2", Wants: v1alpha1.WantsReboot, Drains: true, Policy: "canary", StartedAt: atNoon, StageAt: atNoon}
		}, all + "2 of 3 nodes run 4.2; c3 is in its turn"},
		"paused by an admin": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.State, c3.Paused = v1alpha1.StatePaused, &v1alpha1.Intent{}
		}, ""},
		"wants a newer one already": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.Wants, c3.Host.Veto = v1alpha1.WantsReboot, v1alpha1.ReasonMinUptime
		}, ""},
		"taken out": {func(_ *rollout.Snapshot, c3, _ *turn.Node) { c3.Managed, c3.Host.OSVersion = new(false), "4.1" }, ""},
		"detached": {func(_ *rollout.Snapshot, c3, _ *turn.Node) {
			c3.Detached, c3.Host.OSVersion = &v1alpha1.Intent{}, "4.1"
		}, ""},
		"two are missing": {func(s *rollout.Snapshot, c3, _ *turn.Node) { s.Nodes[0].Host.OSVersion, c3.Ready = "4.1", false },
			all + "1 of 3 nodes run 4.2; c1 runs 4.1"},

		"no node": {func(s *rollout.Snapshot, _, _ *turn.Node) { s.Nodes = s.Nodes[3:] }, "Canary: policy rest: waits for policy canary, which decides about no node"},
		"no node is left": {func(s *rollout.Snapshot, _, _ *turn.Node) {
			s.Nodes[0].Managed, s.Nodes[1].Managed, s.Nodes[2].Managed = new(false), new(false), new(false)
		}, "Canary: policy rest: waits for policy canary, which decides about no node"},
		"no policy":         {func(s *rollout.Snapshot, _, _ *turn.Node) { of(s, "rest").After[0].Policy = "canaries" }, "Canary: policy rest: waits for policy canaries, which does not exist or only adds rules"},
		"rules only":        {func(s *rollout.Snapshot, _, _ *turn.Node) { of(s, "canary").RulesOnly = true }, "Canary: policy rest: waits for policy canary, which does not exist or only adds rules"},
		"an invalid policy": {func(s *rollout.Snapshot, _, _ *turn.Node) { of(s, "canary").Problems = broken }, ""},
		"each other": {func(s *rollout.Snapshot, _, _ *turn.Node) { of(s, "canary").After = []policy.After{{Policy: "rest"}} },
			"Canary: policy rest: policies wait for each other: rest after canary after rest; remove one of these from rollout.after"},
		"a circle of three": {func(s *rollout.Snapshot, _, _ *turn.Node) {
			s.Policies = policy.NewSet(append(s.Policies, newPolicy("early", 0, map[string]string{"pool": "early"}))...)
			of(s, "canary").After, of(s, "early").After = []policy.After{{Policy: "gone"}, {Policy: "early"}}, []policy.After{{Policy: "rest"}}
		}, "Canary: policy rest: policies wait for each other: rest after canary after early after rest; remove one of these from rollout.after"},
		"a circle before it": {func(s *rollout.Snapshot, _, _ *turn.Node) { of(s, "canary").After = []policy.After{{Policy: "canary"}} }, ""},
		"a second policy": {func(s *rollout.Snapshot, _, _ *turn.Node) {
			of(s, "rest").After = append(of(s, "rest").After, policy.After{Policy: "gone"})
		}, "Canary: policy rest: waits for policy gone, which does not exist or only adds rules"},

		"unknown target": {func(_ *rollout.Snapshot, _, n1 *turn.Node) {
			n1.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate}}
		}, "Canary: policy rest: waits for policy canary, but the host does not say which OS version is staged"},
		"another target": {func(_ *rollout.Snapshot, _, n1 *turn.Node) {
			n1.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.20"}}
		}, all + "0 of 3 nodes run 4.20; c1 runs 4.2"},
		"no update": {func(s *rollout.Snapshot, _, n1 *turn.Node) { n1.Host.Changes, s.Nodes[0].Ready = another[:1], false }, ""},
		"an update as well": {func(s *rollout.Snapshot, _, n1 *turn.Node) {
			n1.Host.Changes, s.Nodes[0].Ready = slices.Concat(another[:1], anUpdate), false
		}, all + "2 of 3 nodes run 4.2; c1 is not Ready"},
		"a request that does not wait": {func(s *rollout.Snapshot, _, n1 *turn.Node) {
			n1.Request, n1.Host.Changes, s.Nodes[0].Ready = aRequest("disk", true), slices.Concat(anUpdate, []v1alpha1.Change{requested}), false
		}, all + "2 of 3 nodes run 4.2; c1 is not Ready"},

		// The reasons that do not end by themselves come first, those that do come after.
		"paused":   {func(s *rollout.Snapshot, c3, _ *turn.Node) { of(s, "rest").Paused, c3.Ready = true, false }, "Paused: policy rest is paused"},
		"observed": {func(s *rollout.Snapshot, c3, _ *turn.Node) { of(s, "rest").Observe, c3.Ready = true, false }, all + "2 of 3 nodes run 4.2; c3 is not Ready"},
		"a blackout as well": {func(s *rollout.Snapshot, c3, _ *turn.Node) {
			of(s, "rest").Blackouts = []policy.Blackout{{From: clock("11:00"), To: clock("13:00")}}
			c3.Ready = false
		}, all + "2 of 3 nodes run 4.2; c3 is not Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			s := canaries()
			c.edit(s, &s.Nodes[2], &s.Nodes[len(s.Nodes)-1])
			out := rollout.Decide(*s)
			v := out.Verdicts[len(out.Verdicts)-1]
			got := fmt.Sprintf("%s: %s", v.Held, v.Detail)
			if v.Move != nil && v.Move.Disturbs() {
				got = ""
			}
			if v.Node != "n1" || got != c.want {
				t.Errorf("%s: %q\nexpected %q", v.Node, got, c.want)
			}
			checkOutcome(t, *s)
			compare(t, *s)
		})
	}
}

// TestCanariesOfAPolicy checks which nodes are canaries, and of which policy.
func TestCanariesOfAPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(s *rollout.Snapshot)
		want map[string]string
	}{
		"all":                {func(*rollout.Snapshot) {}, map[string]string{"c1": "canary", "c2": "canary", "c3": "canary"}},
		"one is taken out":   {func(s *rollout.Snapshot) { s.Nodes[2].Managed = new(false) }, map[string]string{"c1": "canary", "c2": "canary"}},
		"no policy waits":    {func(s *rollout.Snapshot) { of(s, "rest").After = nil }, map[string]string{}},
		"both policies wait": {func(s *rollout.Snapshot) { of(s, "canary").After = []policy.After{{Policy: "rest"}} }, map[string]string{"c1": "canary", "c2": "canary", "c3": "canary", "n1": "rest"}},
	} {
		s := canaries()
		c.edit(s)
		nodes, _ := rollout.Canaries(*s)
		got := map[string]string{}
		for name, canary := range nodes {
			got[name] = canary.Policy
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
}

// TestNoCanaryEver checks which policies wait for canaries that do not exist, and what is said about it.
func TestNoCanaryEver(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(s *rollout.Snapshot)
		want map[string]string
	}{
		"canaries":              {func(*rollout.Snapshot) {}, map[string]string{}},
		"one that is not ready": {func(s *rollout.Snapshot) { s.Nodes = s.Nodes[2:]; s.Nodes[0].Ready = false }, map[string]string{}},
		"no node":               {func(s *rollout.Snapshot) { s.Nodes = s.Nodes[3:] }, map[string]string{"rest": "waits for policy canary, which decides about no node"}},
		"no policy": {func(s *rollout.Snapshot) { of(s, "rest").After[0].Policy = "gone" }, map[string]string{
			"rest": "waits for policy gone, which does not exist or only adds rules"}},
		"two reasons": {func(s *rollout.Snapshot) {
			of(s, "rest").After = []policy.After{{Policy: "canary"}, {Policy: "gone"}, {Policy: "lost"}}
		}, map[string]string{"rest": "waits for policy gone, which does not exist or only adds rules"}},
		"each other": {func(s *rollout.Snapshot) { of(s, "canary").After = []policy.After{{Policy: "rest"}} }, map[string]string{
			"rest":   "policies wait for each other: rest after canary after rest; remove one of these from rollout.after",
			"canary": "policies wait for each other: canary after rest after canary; remove one of these from rollout.after"}},
	} {
		s := canaries()
		c.edit(s)
		if _, never := rollout.Canaries(*s); !maps.Equal(never, c.want) {
			t.Errorf("%s: %q, expected %q", name, never, c.want)
		}
	}
}

// TestCanaryWakes: the coordinator decides again when the time is over.
func TestCanaryWakes(t *testing.T) {
	s := canaries()
	s.Nodes[1].Runs.Since = atNoon.Add(-23 * time.Hour)
	if out := rollout.Decide(*s); !out.Again.Equal(atNoon.Add(time.Hour)) {
		t.Errorf("again at %s", out.Again)
	}
}

// TestRecordRuns has what is recorded about c3, by hand.
func TestRecordRuns(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(s *rollout.Snapshot, c3 *turn.Node)
		want string
	}{
		"recorded":        {func(*rollout.Snapshot, *turn.Node) {}, ""},
		"no record":       {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs = nil }, "4.2 b2"},
		"another version": {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs.OSVersion = "4.1" }, "4.2 b2"},
		"another boot":    {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs.BootID = "b1" }, "4.2 b2"},
		"of the future":   {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs.Since = atNoon.Add(time.Hour) }, "4.2 b2"},
		"a moment ago": {func(_ *rollout.Snapshot, c3 *turn.Node) {
			c3.Runs.BootID, c3.Runs.Since = "b1", atNoon.Add(-59*time.Second)
		}, ""},
		"a minute ago": {func(_ *rollout.Snapshot, c3 *turn.Node) {
			c3.Runs.BootID, c3.Runs.Since = "b1", atNoon.Add(-time.Minute)
		}, "4.2 b2"},
		"paused": {func(_ *rollout.Snapshot, c3 *turn.Node) {
			c3.Runs, c3.State, c3.Paused = nil, v1alpha1.StatePaused, &v1alpha1.Intent{}
		}, "4.2 b2"},
		"not Ready":           {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.Ready = nil, false }, ""},
		"another boot's host": {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.BootID = nil, "b3" }, ""},
		"no version":          {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.Host.OSVersion = nil, "" }, ""},
		"a long version":      {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.Host.OSVersion = nil, strings.Repeat("4", 129) }, ""},
		"the longest":         {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.Host.OSVersion = nil, strings.Repeat("4", 128) }, strings.Repeat("4", 128) + " b2"},
		"in a turn": {func(_ *rollout.Snapshot, c3 *turn.Node) {
			c3.Runs, c3.State, c3.Turn, c3.Mark = nil, v1alpha1.StateUncordoning, "t1", true
			c3.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: c3.UID, BootID: "b1", Wants: v1alpha1.WantsReboot, Drains: true, Policy: "canary", StartedAt: atNoon, StageAt: atNoon}
		}, ""},
		"granted a turn": {func(_ *rollout.Snapshot, c3 *turn.Node) {
			c3.Runs, c3.Wants, c3.Host.Changes = nil, v1alpha1.WantsReboot, anUpdate
		}, ""},
		"stopped":         {func(s *rollout.Snapshot, c3 *turn.Node) { c3.Runs, s.Stopped = nil, true }, ""},
		"of a command":    {func(s *rollout.Snapshot, c3 *turn.Node) { c3.Runs, s.Epoch = nil, "" }, ""},
		"uncertain":       {func(s *rollout.Snapshot, c3 *turn.Node) { c3.Runs, s.Uncertain = nil, map[string]bool{"c3": true} }, ""},
		"no one waits":    {func(s *rollout.Snapshot, c3 *turn.Node) { c3.Runs, of(s, "rest").After = nil, nil }, ""},
		"another's wait":  {func(s *rollout.Snapshot, c3 *turn.Node) { c3.Runs, of(s, "rest").After[0].Policy = nil, "gone" }, ""},
		"no policy is it": {func(_ *rollout.Snapshot, c3 *turn.Node) { c3.Runs, c3.Labels = nil, nil }, ""},
	} {
		s := canaries()
		c.edit(s, &s.Nodes[2])
		got := ""
		v := rollout.Decide(*s).Verdicts[2]
		if m := v.Move; m != nil && m.Runs != nil {
			got = m.Runs.OSVersion + " " + m.Runs.BootID
			if m.From != m.To || !m.Keep || m.Grant != nil || m.Last != nil || len(m.Remove) > 0 || !m.Runs.Since.Equal(atNoon) {
				t.Errorf("%s: %+v, since %s", name, m, m.Runs.Since)
			}
			if _, err := v1alpha1.ParseRuns(v1alpha1.FormatRecord(m.Runs)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
	// One that waits keeps no other from being recorded.
	two := canaries()
	two.Nodes[0].Runs.BootID, two.Nodes[0].Runs.Since = "b1", atNoon.Add(-time.Second)
	two.Nodes[2].Runs = nil
	if out := rollout.Decide(*two); out.Verdicts[0].Move != nil || out.Verdicts[2].Move == nil || out.Verdicts[2].Move.Runs == nil {
		t.Errorf("c1 is recorded: %+v; c3: %+v", out.Verdicts[0].Move, out.Verdicts[2].Move)
	}
	// The reason that holds the node stays.
	s := canaries()
	c3 := &s.Nodes[2]
	c3.Runs, c3.Wants, c3.Host.Changes, c3.Host.Veto = nil, v1alpha1.WantsReboot, anUpdate, v1alpha1.ReasonWindow
	if v := rollout.Decide(*s).Verdicts[2]; v.Held != v1alpha1.ReasonWindow || v.Move == nil || v.Move.Runs == nil {
		t.Errorf("%+v", v)
	}
}

// TestOutrun: a turn is cancelled if a version that its canaries have not run would be booted by it.
func TestOutrun(t *testing.T) {
	newer := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.3"}}
	unknown := []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate}}
	for name, c := range map[string]struct {
		granted, staged []v1alpha1.Change
		edit            func(n1 *turn.Node, s *rollout.Snapshot)
		want            bool
	}{
		"the granted one":                            {anUpdate, anUpdate, nil, false},
		"a newer one":                                {anUpdate, newer, nil, true},
		"one that came later":                        {another, slices.Concat(another, newer), nil, true},
		"one that was run by then":                   {another, slices.Concat(another, anUpdate), nil, false},
		"the granted one, although a canary is gone": {anUpdate, anUpdate, func(_ *turn.Node, s *rollout.Snapshot) { s.Nodes[0].Ready = false }, false},
		"the version forgotten":                      {anUpdate, unknown, nil, false},
		"one of an unknown version that came later":  {another, slices.Concat(another, unknown), nil, true},
		"before the reboot": {anUpdate, newer, func(n1 *turn.Node, _ *rollout.Snapshot) {
			n1.State = v1alpha1.StateRebooting
			n1.Ack.State, n1.Ack.Report = v1alpha1.StateDraining, v1alpha1.ReportDone
		}, true},
		"after the commit": {anUpdate, newer, func(n1 *turn.Node, _ *rollout.Snapshot) {
			n1.State = v1alpha1.StateRebooting
			n1.Ack.State = v1alpha1.StateRebooting
		}, false},
		"silent since a boot":    {anUpdate, newer, func(n1 *turn.Node, _ *rollout.Snapshot) { n1.Host.BootID = "b1" }, false},
		"a policy that is wrong": {anUpdate, newer, func(_ *turn.Node, s *rollout.Snapshot) { of(s, "rest").Problems = broken }, false},
		"another policy that is wrong": {anUpdate, newer, func(_ *turn.Node, s *rollout.Snapshot) {
			rules := newPolicy("rules", -1, nil)
			rules.RulesOnly, rules.Problems = true, broken
			s.Policies = policy.NewSet(append(s.Policies, rules)...)
		}, true},
	} {
		s := canaries()
		n1 := &s.Nodes[3]
		n1.State, n1.Turn, n1.Mark, n1.Unschedulable = v1alpha1.StateDraining, "t1", true, true
		n1.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: n1.UID, BootID: "b2", Wants: v1alpha1.WantsReboot, Drains: true, Changes: c.granted,
			Policy: "rest", Terms: of(s, "rest").Terms, StartedAt: atNoon, StageAt: atNoon}
		n1.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b2", State: v1alpha1.StateDraining, Report: v1alpha1.ReportCommitted}
		n1.Host.Changes = c.staged
		if c.edit != nil {
			c.edit(n1, s)
		}
		v := rollout.Decide(*s).Verdicts[3]
		got := v.Move != nil && v.Move.On == turn.Vanished && v.Move.Reason == v1alpha1.ReasonCanary && v.Move.Grant.Result == v1alpha1.ResultCancelled
		if got != c.want {
			t.Errorf("%s: %+v, expected to be cancelled: %t", name, v.Move, c.want)
		}
		checkOutcome(t, *s)
		compare(t, *s)
	}
}

// TestCanariesTwin compares with the twin over clusters that differ from the one of [canaries] in a few things.
func TestCanariesTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	granted, held := 0, 0
	for range 4000 {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		d := dice(b)
		s := canaries()
		of(s, "rest").After[0].For = one(&d, 0, 10*time.Minute, 24*time.Hour)
		if d.oneIn(8) {
			of(s, "canary").After = []policy.After{{Policy: one(&d, "rest", "gone", "early")}}
		}
		for i := range s.Nodes {
			n := &s.Nodes[i]
			for range one(&d, 0, 0, 0, 0, 0, 1, 2) {
				switch d.pick(12) {
				case 0:
					n.Host.OSVersion = one(&d, "4.1", "4.3", "")
				case 1:
					n.Runs = nil
				case 2:
					n.Runs = &v1alpha1.Runs{OSVersion: mostly(&d, "4.2", "4.1"), BootID: mostly(&d, "b2", "b1"), Since: ago(&d)}
				case 3:
					n.ReadySince = ago(&d)
				case 4:
					n.Ready = false
				case 5:
					n.Unschedulable = true
				case 6:
					n.Last = &v1alpha1.Last{Turn: "t0", Result: one(&d, v1alpha1.ResultFailed, v1alpha1.ResultDone), End: ago(&d)}
					n.Retry = one(&d, "", "t0", "t0")
				case 7:
					n.Managed = new(d.oneIn(2))
				case 8:
					n.BootID = "b3"
				case 9:
					n.State, n.Host, n.Wants, n.RawHost = v1alpha1.StateAbsent, nil, "", ""
				case 10:
					n.Labels = map[string]string{"pool": one(&d, "canary", "rest", "")}
				case 11:
					n.State, n.Paused = v1alpha1.StatePaused, &v1alpha1.Intent{}
				}
				if n.Host == nil {
					break
				}
			}
		}
		compare(t, *s)
		if v := rollout.Decide(*s).Verdicts[3]; v.Move != nil && v.Move.Disturbs() {
			granted++
		} else if v.Held == v1alpha1.ReasonCanary {
			held++
		}
		if t.Failed() {
			return
		}
	}
	if granted < 500 || held < 500 {
		t.Errorf("n1 was granted a turn %d times and held %d times, too few to prove anything", granted, held)
	}
}
