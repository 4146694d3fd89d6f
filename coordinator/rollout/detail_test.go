package rollout_test

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestDetails has what n1 is held for or waits for, as people read it. The facts are those of testdata/decide.
func TestDetails(t *testing.T) {
	const healthy = "rebooting ack=draining/done marked boot=b2 hostboot=b2"
	for facts, want := range map[string]string{
		"flooding":                                `UnknownState: lockkeeper.dev/state="flooding"`,
		"idle uncertain=n1":                       "Handover: the outcome of a write to n1 is unknown",
		"idle uncertain=n2 budget=iii":            "Handover: the outcome of a write to n2 is unknown",
		"idle uncertain=a unsettled=n2":           "Handover: the outcome of a write to n2 has been unknown since 11:58: timeout",
		"idle n2.foreign budget=ii":               "Handover: turns of another term come first",
		"idle policies-unread":                    "SourceUnreadable: the coordinator cannot read the policies again: forbidden",
		"idle policy=observe=true":                "WouldGrant: policy built-in only observes",
		"idle longchange=30":                      "InvalidRecord: the grant would be too large: the host names too many changes, or changes that are too long",
		"idle changes=Request":                    ": waits for its host to report that the request is gone",
		"idle badrecord":                          "InvalidRecord: lockkeeper.dev/host: 17000 bytes, expected at most 16384",
		"idle hostboot=b0":                        "HostSilent: no report from its present boot",
		"idle protocol=ii":                        "VersionSkew: the host speaks protocol 2, the coordinator 1",
		"idle newrecord":                          "VersionSkew: the host speaks protocol 2, the coordinator 1",
		"idle refused=n1":                         "Forbidden: a webhook says no",
		"idle owner=kured":                        "OtherManager: kured",
		"idle veto=Window":                        "Window: the host's own veto",
		"idle veto=Granted":                       `VersionSkew: the host has the veto "Granted", which the coordinator does not know`,
		"idle veto=InvalidPolicy":                 "InvalidPolicy: a policy that is valid here is invalid to the host, which has not read it again, or is older",
		"idle failed":                             "Failed: Overdue",
		"idle backedout":                          "Backoff: Overdue; tried again at 12:01:00 UTC",
		"idle silentback=cbf29ce484222325":        "HostSilent: no answer in its last turn; tried again at 12:01:00 UTC",
		"idle ended=5h turns=6h,5h limit=ii":      "TurnLimit: 2 turns within 24 hours, 2 allowed; the next may begin at 2026-01-02 06:00:00 UTC",
		"idle ended=5h turns=23h,22h,5h limit=ii": "TurnLimit: 3 turns within 24 hours, 2 allowed; the next may begin at 14:00:00 UTC",
		"paused paused":                           "Paused: disk",
		"absent marked paused":                    "OwnCordonLeft: disk",

		"idle silentback=cbf29ce484222325 turns=6h,5h limit=ii": "HostSilent: no answer in its last turn; 2 turns within 24 hours, 2 allowed; the next may begin at 2026-01-02 06:00:00 UTC",

		// What all nodes of a policy wait for. With several policies, it is said which.
		"idle n2.draining": "Budget: 1 unavailable, 1 allowed: n2 is in its turn",
		"idle n2.draining policy=web;select=pool:web": "Budget: policy built-in: 1 unavailable, 1 allowed: n2 is in its turn",
		"idle n2.failed": "Halted: 1 failed, 0 allowed",
		"idle n2.failed policy=web;select=pool:web":                                   "Halted: policy built-in: 1 failed, 0 allowed",
		"idle created=30s":                                                            "Budget: the fleet settles until 12:00:30 UTC",
		"idle policy=web;select=pool:web;total=0":                                     "Budget: 0 unavailable in all, 0 allowed in all by policy web",
		"idle policy=paused=true":                                                     "Paused: policy built-in is paused",
		`idle policy=blackout=11:00-13:00`:                                            `Window: blackout "race" holds until 13:00:00 UTC`,
		`idle policy=blackout=12:00-13:00`:                                            `Window: blackout "race" holds until 13:00:00 UTC`,
		`idle policy=blackout=12:14-13:00`:                                            `Window: blackout "race" begins at 12:14:00 UTC, and a turn takes 15m0s; the next turn may begin at 13:00:00 UTC`,
		`idle policy=window=11:00+2h;blackout=11:30-18:00`:                            `Window: blackout "race" holds until 18:00:00 UTC; the next turn may begin at 2026-01-02 11:00:00 UTC`,
		`idle policy=window=11:00+2h;blackout=12:14-12:30`:                            `Window: blackout "race" begins at 12:14:00 UTC, and a turn takes 15m0s; the next turn may begin at 12:30:00 UTC`,
		`idle policy=window=14:00+2h;blackout=13:00-15:00`:                            `Window: no window is open; the next opens at 15:00:00 UTC`,
		"idle policy=gate=a gate=built-in/a:closed":                                   "GateClosed: gate a is closed: 3 replicas are missing",
		"idle n2.cordoned policy=web;total=1;budget=2":                                "Budget: 1 unavailable in all, 1 allowed in all by policy web: n2 is cordoned by another owner",
		"idle policy=web;select=a:b;total=0;invalid=true n2.cordoned policy=budget=2": "Budget: 1 unavailable in all, 1 allowed in all by policy web, whose maxUnavailableTotal cannot be read: n2 is cordoned by another owner",

		"idle n2.cordoned policy=db;select=a:b;total=1 policy=web;select=a:b;total=1 policy=budget=2":              "Budget: 1 unavailable in all, 1 allowed in all by policy db: n2 is cordoned by another owner",
		"idle n2.cordoned policy=db;select=a:b;total=1 policy=web;select=a:b;total=0;invalid=true policy=budget=2": "Budget: 1 unavailable in all, 1 allowed in all by policy db: n2 is cordoned by another owner",

		// etcd's quorum.
		"idle control-plane n2.control-plane n2.draining budget=iii": "ControlPlane: n2 is in a turn",
		"idle control-plane n2.control-plane n2.notready budget=iii": "ControlPlane: n2 is not Ready",
		"idle control-plane n2.control-plane n2.cordoned budget=iii": "ControlPlane: n2 is unschedulable",

		// In a turn.
		"draining ack=draining/seen":             ": waits for the host to drain",
		"draining ack=draining/done hostboot=b0": ": waits for the host to report what it wants in this boot",
		"rebooting ack=draining/done marked":     ": waits for the host to reboot",
		healthy:                                  ": waits for the host to report that it is healthy",
		"rebooting ack@b2=rebooting/done marked boot=b2 hostboot=b2 notready":                ": waits for the node to be Ready",
		"applying ack=applying/committed grant.nodrain grant.wants=apply":                    ": waits for the host to apply its plan",
		"uncordoning ack=uncordoning/done marked":                                            ": waits for the host to uncordon its node",
		"uncordoning ack=uncordoning/seen marked since=5m":                                   "Overdue: waits for the host to uncordon its node",
		"uncordoning ack=uncordoning/refused:Uncordoned marked":                              "Uncordoned: the host refused",
		"before-drain hooks=before-drain:Wait":                                               ": waits for hook lb, the host to acknowledge its turn",
		"before-drain ack=before-drain/seen hooks=before-drain:Wait units=before-drain":      ": waits for hook lb, the host's hook units",
		"before-drain ack=before-drain/seen hooks=before-drain:Wait hostboot=b0":             ": waits for hook lb, the host to report what it wants in this boot",
		"before-reboot ack=draining/done marked grant.detach volumes=v1":                     ": waits for 1 volume to detach: v1",
		"before-reboot ack=draining/done marked grant.detach volumes=v1,v2,v3":               ": waits for 3 volumes to detach: v1, v2, v3",
		"before-reboot ack=draining/done marked grant.detach volumes=v1,v2,v3,v4,v5":         ": waits for 5 volumes to detach: v1, v2, v3 and 2 more",
		"before-reboot ack=draining/done marked grant.detach hooks=before-reboot:Wait":       ": waits for hook lb",
		"before-drain ack=before-drain/seen grant.detach volumes=v1 hooks=before-drain:Wait": ": waits for hook lb",
		"before-uncordon ack=draining/done marked hooks=before-uncordon:Wait":                ": waits for hook lb",
		"before-uncordon since=2m hooks=before-uncordon:Wait":                                ": waits for hook lb",
		"before-uncordon since=3h hooks=before-uncordon:Wait":                                "Overdue: waits for hook lb",
		"draining ack=draining/committed marked grant.epoch=e0 n2.foreign":                   "Handover: more nodes than the budget are unavailable",
		"before-uncordon ack=before-uncordon/failed:HookFailed marked units=before-uncordon": "Failed: HookFailed",
	} {
		for _, v := range rollout.Decide(situation(t, strings.Fields(facts))).Verdicts {
			if got := string(v.Held) + ": " + v.Detail; v.Node == "n1" && got != want {
				t.Errorf("%s:\n\tgot:      %s\n\texpected: %s", facts, got, want)
			}
		}
	}
}

// TestDetailsOfRecords is the same for facts that are in the node's records.
func TestDetailsOfRecords(t *testing.T) {
	file := func(name string) v1alpha1.Change {
		return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: "1"}
	}
	still := func(changes ...v1alpha1.Change) func(n *turn.Node) {
		return func(n *turn.Node) {
			n.Last = &v1alpha1.Last{Turn: "t0", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonStillWanted, Changes: changes}
			n.Host.Changes = changes
		}
	}
	const hooks = "before-uncordon ack=before-uncordon/failed:HookFailed marked units=before-uncordon"
	for name, c := range map[string]struct {
		facts  string
		change func(n *turn.Node)
		want   string
	}{
		"one file differs again":   {"idle", still(file("/a")), "Failed: StillWanted: File /a@1"},
		"two files differ again":   {"idle", still(file("/a"), file("/b")), "Failed: StillWanted: File /a@1 and 1 more"},
		"no change is recorded":    {"idle", still(), "Failed: StillWanted"},
		"a hook unit failed":       {hooks, func(n *turn.Node) { n.Host.HookFailed = "a.service" }, "Failed: HookFailed: a.service"},
		"a unit of the plan did":   {"applying ack=applying/failed:ApplyFailed grant.nodrain grant.wants=apply notready", func(n *turn.Node) { n.Host.ApplyFailed = "b.service" }, "Failed: ApplyFailed: b.service"},
		"from another boot":        {hooks, func(n *turn.Node) { n.Host.HookFailed, n.Host.BootID = "a.service", "b0" }, "Failed: HookFailed"},
		"detached by its owner":    {"absent marked detached", func(n *turn.Node) { n.Detached.Reason = "theirs" }, "OwnCordonLeft: theirs"},
		"released, and not theirs": {"absent held=Unmanaged managed=false nohost", func(n *turn.Node) { n.Detached = &v1alpha1.Intent{Reason: "theirs"} }, "Unmanaged: "},
		"released to its owner":    {"absent held=Detached detached nohost", func(n *turn.Node) { n.Detached.Reason = "theirs" }, "Detached: theirs"},
	} {
		s := situation(t, strings.Fields(c.facts))
		c.change(&s.Nodes[0])
		for _, v := range rollout.Decide(s).Verdicts {
			if got := string(v.Held) + ": " + v.Detail; v.Node == "n1" && got != c.want {
				t.Errorf("%s: %q, expected %q", name, got, c.want)
			}
		}
	}
}

// TestDetailsOfAnotherDay: backoffMax and settle may be as long as a day, so the time alone would look as if it were over.
func TestDetailsOfAnotherDay(t *testing.T) {
	for facts, want := range map[string]string{
		"idle backedout":                   "Backoff: Overdue; tried again at 2026-01-02 01:00:00 UTC",
		"idle silentback=cbf29ce484222325": "HostSilent: no answer in its last turn; tried again at 2026-01-02 01:00:00 UTC",
		"idle created=1h":                  "Budget: the fleet settles until 2026-01-02 11:00:00 UTC",
	} {
		s := situation(t, strings.Fields(facts))
		s.Policies[0].BackoffMax, s.Policies[0].Settle = 24*time.Hour, 24*time.Hour
		if l := s.Nodes[0].Last; l != nil {
			l.NotBefore = new(s.Now.Add(13 * time.Hour))
		}
		for _, v := range rollout.Decide(s).Verdicts {
			if got := string(v.Held) + ": " + v.Detail; v.Node == "n1" && got != want {
				t.Errorf("%s: %q, expected %q", facts, got, want)
			}
		}
	}
}

// TestAgain has after how long the next decision may differ although no Node changes; 0 is never.
func TestAgain(t *testing.T) {
	for facts, want := range map[string]time.Duration{
		"idle":                 0,
		"idle wants=nothing":   0,
		"idle created=30s":     30 * time.Second,
		"idle n2.ended=50s":    10 * time.Second,
		"idle rewound=20s":     40 * time.Second,
		"idle paused-until=1m": time.Minute + 2*time.Second, // see expirySlack
		"idle paused-until=1m detached-until=30s": 32 * time.Second,
		"idle backedout":                        time.Minute,
		"idle silentback=cbf29ce484222325":      time.Minute,
		"idle ended=5h turns=7h,6h,5h limit=ii": 18 * time.Hour,
		"idle policy=window=11:00+2h":           45*time.Minute + time.Millisecond, // the first moment at which a turn does not fit
		"idle policy=window=11:00+74m":          23 * time.Hour,
		"idle policy=window=13:00+1h":           time.Hour,

		// In a turn: the host's first report, then the state's own time. The stage began a minute ago.
		"draining":                               time.Minute,
		"draining frozen-for=30s":                90 * time.Second,
		"draining ack=draining/committed marked": 59 * time.Minute,
		"draining ack=draining/committed marked frozen-for=9m":                              68 * time.Minute,
		"draining ack=draining/committed marked paused":                                     0,
		"rebooting ack=rebooting/committed marked paused frozen-since=30s":                  0,
		"rebooting ack=rebooting/committed marked":                                          29 * time.Minute,
		"applying ack=applying/committed grant.nodrain grant.wants=apply":                   14 * time.Minute,
		"uncordoning ack=uncordoning/seen marked":                                           4 * time.Minute,
		"before-drain ack=before-drain/seen hooks=before-drain:Wait":                        9 * time.Minute,
		"before-drain ack=before-drain/seen units=before-drain":                             29 * time.Minute,
		"draining ack=draining/committed marked grant.close=Cancel policy=window=11:00+65m": 5 * time.Minute,
		"draining ack=draining/committed marked grant.epoch=e0":                             0,
	} {
		s := situation(t, strings.Fields(facts))
		out := rollout.Decide(s)
		var got time.Duration
		if !out.Again.IsZero() {
			got = out.Again.Sub(s.Now)
		}
		if got != want {
			t.Errorf("%s: again after %v, expected %v", facts, got, want)
		}
	}
}
