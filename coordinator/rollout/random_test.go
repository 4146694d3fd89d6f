package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// dice makes choices out of bytes, so that the fuzzer steers them; when they
// run out every choice is the first.
type dice []byte

func (d *dice) pick(n int) int {
	if len(*d) == 0 {
		return 0
	}
	v := int((*d)[0])
	*d = (*d)[1:]
	return v % n
}

func (d *dice) oneIn(n int) bool { return d.pick(n) == n-1 }

func one[T any](d *dice, of ...T) T { return of[d.pick(len(of))] }

// mostly is usual, or rarely one of the others.
func mostly[T any](d *dice, usual T, others ...T) T {
	if d.oneIn(20) {
		return one(d, others...)
	}
	return usual
}

var (
	atNoon   = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	anUpdate = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}}
	another  = []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/reboot-required"}, {Source: v1alpha1.SourceRequest}}
	// tooLong is 6 KiB as a host may write it, and 36 KiB as JSON does.
	tooLong = []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: strings.Repeat("<", 6<<10)}}
)

// randomSnapshot is any cluster of up to eight nodes, also one that cannot be.
func randomSnapshot(d *dice) rollout.Snapshot {
	s := rollout.Snapshot{
		Now: atNoon, Epoch: mostly(d, "e1", ""), Self: one(d, "", "n0", "n1"), Stopped: d.oneIn(12), Unread: mostly(d, "", "forbidden"),
		Gates: map[string]rollout.Gate{}, Uncertain: map[string]bool{}, Refused: map[string]string{}, StopMissed: map[string]rollout.Stop{},
	}
	if s.Stopped {
		s.StoppedSince = ago(d)
	}
	var all []policy.Policy
	for i := range one(d, 1, 1, 1, 2, 3, 4) {
		all = append(all, randomPolicy(d, fmt.Sprint("p", i), i))
	}
	if d.oneIn(40) {
		all = nil
	}
	s.Policies = policy.NewSet(all...)
	for _, p := range all {
		for _, g := range p.Gates {
			if !d.oneIn(4) {
				s.Gates[rollout.GateKey(p.Name, g.Name)] = rollout.Gate{Open: d.oneIn(2), Detail: "no"}
			}
		}
	}
	s.LedUntil, s.Rewound = one(d, time.Time{}, ago(d)), mostly(d, time.Time{}, ago(d))
	s.LedBy = one(d, "", "e0", "e2")
	foreign := one(d, false, false, true)
	for i := range 1 + d.pick(8) {
		n := randomNode(d, fmt.Sprintf("n%d", i), s.Policies, foreign)
		s.Nodes = append(s.Nodes, n)
		if d.oneIn(40) {
			s.Uncertain[n.Name] = true
		}
		if d.oneIn(20) {
			s.Refused[n.Name] = "a webhook says no"
		}
		if d.oneIn(20) {
			s.StopMissed[n.Name] = rollout.Stop{Since: ago(d), Until: one(d, atNoon, atNoon.Add(-time.Minute), ago(d))}
		}
	}
	return s
}

// randomPolicy is most often one that grants.
func randomPolicy(d *dice, name string, nr int) policy.Policy {
	selects := map[string]string{}
	if nr > 0 || d.oneIn(4) {
		selects = one(d, selects, map[string]string{"pool": "web"}, map[string]string{"pool": "db"}, map[string]string{"tier": "gold"})
	}
	p := newPolicy(name, int32(one(d, 0, 0, 10, -1000)), selects)
	p.MaxUnavailable = one(d, policy.Limit{Number: 1}, policy.Limit{Number: 2}, policy.Limit{Number: 3}, policy.Limit{Number: 5}, policy.Limit{Percent: 10}, policy.Limit{Percent: 50}, policy.Limit{Percent: 100})
	if d.oneIn(5) {
		p.MaxUnavailableTotal = new(one(d, policy.Limit{Number: 1}, policy.Limit{Number: 3}, policy.Limit{Percent: 30}, policy.Limit{Percent: 60}))
	}
	p.RulesOnly = d.oneIn(6)
	p.MaxFailed = one(d, 0, 0, 1)
	p.Settle = one(d, 0, time.Minute)
	p.BackoffMax = one(d, time.Hour, time.Hour, 10*time.Minute)
	p.Paused, p.Observe = d.oneIn(20), d.oneIn(8)
	p.Order = one(d, p.Order, p.Order, []v1alpha1.OrderKey{v1alpha1.OrderLastTurn, v1alpha1.OrderOldestBoot}, []v1alpha1.OrderKey{v1alpha1.OrderZone, v1alpha1.OrderLastTurn}, []v1alpha1.OrderKey{v1alpha1.OrderName}, nil)
	p.MaxTurnsPerDay = one(d, p.MaxTurnsPerDay, 1, 2)
	if d.oneIn(20) {
		p.Problems = broken
		if d.oneIn(2) {
			p.MaxUnavailable, p.MaxUnavailableTotal = policy.Limit{}, new(policy.Limit{})
		}
	}
	if d.oneIn(4) {
		for range 1 + d.pick(2) {
			// Now is noon on a Thursday: open for an hour yet; just opened; just closed; for
			// five minutes yet; since yesterday; not today; tonight.
			w, err := daily(one(d, "11:00+2h", "12:00+1h", "10:00+2h", "11:00+65m", "13:00+24h+Wed", "11:00+2h+Fri", "22:00+4h"))
			if err != nil {
				panic(err)
			}
			p.Windows = append(p.Windows, w)
		}
		p.ExpectedDuration = one(d, 15*time.Minute, 5*time.Minute, 61*time.Minute)
	}
	if d.oneIn(16) {
		// It holds; it is just over; it just begins; it begins before a turn would end; it is later.
		for range 1 + d.pick(2) {
			times := strings.Split(one(d, "11:00-13:00", "11:00-12:00", "12:00-12:01", "12:10-12:30", "15:00-16:00", "10:00-23:00"), "-")
			p.Blackouts = append(p.Blackouts, policy.Blackout{From: clock(times[0]), To: clock(times[1]), Name: "blackout"})
		}
	}
	if d.oneIn(8) {
		p.After = append(p.After, policy.After{Policy: fmt.Sprint("p", d.pick(5)), For: one(d, 0, 0, 10*time.Minute, time.Hour)})
	}
	if d.oneIn(8) {
		p.Gates = []v1alpha1.Gate{{Name: "replicas", Query: "up == 0"}, {Name: "errors", Query: "errors > 1"}}[:1+d.pick(2)]
	}
	p.Terms.BeforeDrain = randomHooks(d, "lb")
	p.Terms.BeforeReboot = randomHooks(d, "disks")
	p.Terms.BeforeUncordon = randomHooks(d, "lb-back")
	p.Terms.OnClose = one(d, "", v1alpha1.OnCloseCancel)
	p.Terms.DrainTimeout = one(d, v1alpha1.OnTimeoutAbort, v1alpha1.OnTimeoutWait, v1alpha1.OnTimeoutForce)
	p.Terms.WaitForVolumeDetach = d.oneIn(5)
	if d.oneIn(2) {
		p.Terms.BlockTimeout.Duration, p.Terms.OnBlockTimeout = one(d, time.Hour, time.Minute), mostly(d, v1alpha1.OnBlockTimeoutEvict, "")
	}
	return p
}

func randomHooks(d *dice, name string) []v1alpha1.Hook {
	if !d.oneIn(4) {
		return nil
	}
	return []v1alpha1.Hook{{Name: name, Timeout: metav1.Duration{Duration: 10 * time.Minute},
		OnTimeout: one(d, v1alpha1.OnTimeoutWait, v1alpha1.OnTimeoutContinue, v1alpha1.OnTimeoutAbort)}}
}

// ago is a time before now, or rarely after it.
func ago(d *dice) time.Time {
	return atNoon.Add(-one(d, 3*time.Hour, 20*time.Minute, 90*time.Second, 20*time.Second, 0, -30*time.Second, -time.Hour, 70*time.Second))
}

func randomNode(d *dice, name string, set policy.Set, foreign bool) turn.Node {
	n := turn.Node{
		Name: name, UID: name + "-uid", ResourceVersion: "7", Created: atNoon.Add(-mostly(d, 48*time.Hour, 10*time.Second)),
		BootID: mostly(d, "b1", "b2", ""), Ready: !d.oneIn(20), Unschedulable: d.oneIn(12),
		Zone: one(d, "a", "b"), ControlPlane: d.oneIn(4),
	}
	n.Labels = map[string]string{"pool": one(d, "web", "web", "db", "")}
	if d.oneIn(3) {
		n.Labels["tier"] = "gold"
	}
	n.State = one(d, v1alpha1.StateIdle, v1alpha1.StateIdle, v1alpha1.StateIdle, v1alpha1.StateIdle, v1alpha1.StateIdle, v1alpha1.StateIdle,
		v1alpha1.StateAbsent, v1alpha1.StatePaused, v1alpha1.StateBeforeDrain, v1alpha1.StateDraining, v1alpha1.StateBeforeReboot,
		v1alpha1.StateRebooting, v1alpha1.StateApplying, v1alpha1.StateBeforeUncordon, v1alpha1.StateUncordoning, mostly(d, v1alpha1.StateIdle, "flooding"))
	if !d.oneIn(20) {
		n.Host = &v1alpha1.Host{
			Protocol: mostly(d, 1, 2, 9), Version: "v", NodeUID: mostly(d, n.UID, "other"), BootID: mostly(d, "b1", "b0"),
			BootTime: ago(d), Managed: !d.oneIn(20), Veto: mostly(d, "", v1alpha1.ReasonWindow, v1alpha1.ReasonHostPaused, v1alpha1.ReasonHeldBack),
			Drains: !d.oneIn(5), Changes: one(d, anUpdate, anUpdate, anUpdate, another, another, tooLong), OSVersion: "4.1",
		}
		if d.oneIn(30) {
			if n.Host.BlockOff = true; !d.oneIn(5) {
				n.Host.BlockedSince = ago(d)
			}
		}
		if d.oneIn(10) {
			n.Host.HookStages = []v1alpha1.State{one(d, v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeUncordon)}
		}
		n.Wants = one(d, v1alpha1.WantsReboot, v1alpha1.WantsReboot, v1alpha1.WantsDrain, v1alpha1.WantsApply, v1alpha1.WantsNothing)
		if n.Wants == v1alpha1.WantsNothing {
			n.Host.Drains, n.Host.Changes = false, nil
		}
	}
	if n.Host != nil && d.oneIn(2) {
		n.Host.OSVersion = one(d, "4.2", "4.2", "4.2", "4.3", "")
		if !d.oneIn(4) {
			n.Runs = &v1alpha1.Runs{OSVersion: mostly(d, n.Host.OSVersion, "4.0"), BootID: mostly(d, "b1", "b0"), Since: ago(d)}
		}
		n.ReadySince = mostly(d, time.Time{}, ago(d))
	}
	n.Owner = mostly(d, "", "cluster-autoscaler")
	n.Deleted = n.Owner != "" && d.oneIn(3)
	if d.oneIn(4) {
		setRequest(&n.Request, &n.Requests, "memory", d.oneIn(2))
	}
	if d.oneIn(20) {
		n.Managed = new(d.oneIn(2))
	}
	if d.oneIn(20) {
		n.Paused = randomIntent(d)
	}
	if d.oneIn(20) {
		n.Detached = randomIntent(d)
	}
	if d.oneIn(4) {
		n.Last = &v1alpha1.Last{Turn: "t0", Result: one(d, v1alpha1.ResultDone, v1alpha1.ResultBackedOut, v1alpha1.ResultBackedOut, v1alpha1.ResultFailed),
			Reason: mostly(d, v1alpha1.ReasonOverdue, v1alpha1.ReasonHostSilent), Changes: one(d, anUpdate, another, nil), End: ago(d)}
		if n.Last.Result == v1alpha1.ResultBackedOut {
			n.Last.Attempts = d.pick(9)
			n.Last.NotBefore = new(ago(d))
		}
		for range one(d, 0, 1, 2, 7) {
			n.Last.Turns = append(n.Last.Turns, atNoon.Add(-one(d, 23*time.Hour, 25*time.Hour, time.Hour)))
		}
		slices.SortFunc(n.Last.Turns, time.Time.Compare)
		n.Retry = one(d, "", "", "t0", "t1")
	}
	if !n.State.InTurn() {
		n.Mark = d.oneIn(20)
		return n
	}
	n.Mark = d.oneIn(2)
	n.Unschedulable = mostly(d, n.Mark, !n.Mark)
	randomTurn(d, &n, set, foreign)
	return n
}

func randomIntent(d *dice) *v1alpha1.Intent {
	i := &v1alpha1.Intent{Reason: "why", Force: d.oneIn(3)}
	if d.oneIn(3) {
		i.Until = new(ago(d))
	}
	return i
}

func randomTurn(d *dice, n *turn.Node, set policy.Set, foreign bool) {
	p := policy.Default() // one that is gone, and nobody knows
	if len(set) > 0 && !d.oneIn(10) {
		p = set[d.pick(len(set))]
	}
	if d.oneIn(4) {
		n.Volumes = []string{"a", "b"}
	}
	n.Turn = mostly(d, "t1", "", "t2")
	if d.oneIn(30) {
		return
	}
	g := &v1alpha1.Grant{
		Turn: "t1", Epoch: "e1", NodeUID: mostly(d, n.UID, "other"), BootID: mostly(d, "b1", "b0", ""),
		Wants: one(d, v1alpha1.WantsReboot, v1alpha1.WantsReboot, v1alpha1.WantsDrain, v1alpha1.WantsApply), Drains: !d.oneIn(4), OnlyNode: d.oneIn(20),
		Changes: anUpdate, OSVersion: "4.1", Policy: p.Name, Terms: p.Terms, StartedAt: ago(d), StageAt: ago(d),
	}
	if foreign && d.oneIn(2) {
		g.Epoch = "e0"
	}
	if d.oneIn(10) {
		g.PausedSince = new(ago(d))
		g.PausedFor.Duration = time.Minute
	}
	if g.Changes = one(d, anUpdate, another); d.oneIn(3) {
		setRequest(&g.Request, &g.Requests, "memory", d.oneIn(2))
	}
	if d.oneIn(10) {
		g.Result, g.Reason = v1alpha1.ResultFailed, v1alpha1.ReasonNotUpdated
	}
	n.Grant = g
	n.Hooks = map[string]string{one(d, "lb", "disks", "lb-back"): mostly(d, "t1", "t0")}
	if d.oneIn(4) {
		return
	}
	n.Ack = v1alpha1.Ack{Turn: mostly(d, "t1", "t0"), BootID: mostly(d, "b1", "b0", "b2"), State: mostly(d, n.State, v1alpha1.StateDraining),
		Report: one(d, v1alpha1.ReportSeen, v1alpha1.ReportCommitted, v1alpha1.ReportDone, v1alpha1.ReportDone, v1alpha1.ReportRefused, v1alpha1.ReportFailed)}
	if n.Ack.Report == v1alpha1.ReportRefused || n.Ack.Report == v1alpha1.ReportFailed {
		n.Ack.Reason = one(d, v1alpha1.ReasonUncordoned, v1alpha1.ReasonUnhealthy, v1alpha1.ReasonNotUpdated, v1alpha1.ReasonWantGone,
			v1alpha1.ReasonStillWanted, v1alpha1.ReasonApplyFailed)
	}
}
