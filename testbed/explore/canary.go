package explore

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// canaryPool is the pool of the canaries, and canaryTime for how long they have to run a version.
const (
	canaryPool = 1
	canaryTime = 24 * time.Hour
)

// sinceOf returns a time that is longer ago than canaryTime, or one that is not. It is never within the minute in which a
// coordinator does not replace a record of its own.
func sinceOf(long bool) time.Time {
	if long {
		return now.Add(-eon)
	}
	return now.Add(-2 * time.Minute)
}

// blackedOut returns the policies with a blackout that holds.
func blackedOut(set policy.Set) policy.Set {
	dark := slices.Clone(set)
	for i := range dark {
		dark[i].Blackouts = []policy.Blackout{{From: now.Add(-time.Hour), To: now.Add(time.Hour), Name: "explored"}}
	}
	return dark
}

func (m *model) policiesIn(dark bool) policy.Set {
	if dark {
		return m.dark
	}
	return m.policies
}

// canarySteps yields the steps that only canaries, and those that wait for them, need. ranTime lets the canaries' time pass
// for all that one Node shows. offer has an update engine find the
// version that another host's has found, or runs.
func (m *model) canarySteps(s *state, n *node, do doer, write func(func(*object)) func(*node, *event)) {
	api := &m.objects[n.api]
	if m.fault(s, newer) && n.change == 2 {
		do(newer, 0, func(t *node, _ *event) { t.change = 3 })
	}
	for i := range m.Nodes {
		if v := max(s.n[i].change, s.n[i].version); v > max(n.change, n.version) {
			do(offer, int8(v), func(t *node, _ *event) { t.change = v })
		}
	}
	if n.pool != canaryPool {
		return
	}
	do(ranTime, 0, func(t *node, _ *event) {
		m.each(t, func(o *object) {
			o.runs.long, o.readyLong, o.last.settles = o.runs.version != 0, o.ready, false
		})
		t.ran = t.shown
	})
	if m.fault(s, blip) && api.ready {
		do(blip, 0, write(func(o *object) { o.ready, o.readyLong = false, false }))
	}
	if m.fault(s, lie) && shownVersion(api) == n.version {
		do(lie, 0, write(func(o *object) { o.host.version++ }))
	}
}

// shownVersion returns the OS version that a Ready node's host has reported in its present boot, or 0.
func shownVersion(o *object) uint8 {
	if !o.exists() || !o.ready || o.wants == 0 || o.host.boot != o.boot || o.host.uid != o.uid {
		return 0
	}
	return o.host.version
}

// follow maintains what the node has shown since its time began. Only a boot changes the version that runs, so a host that
// reports another one meanwhile has still run the one before, and it has run for long whatever it has reported for long.
func (n *node) follow(was, is *object) {
	if restarts(was, is) {
		n.shown, n.ran = 0, 0
	}
	if v := shownVersion(is); v != 0 {
		n.shown |= 1 << v
	}
}

// restarts reports whether a canary's time begins again with the change of its Node.
func restarts(was, is *object) bool {
	failed := results[is.last.result] == v1alpha1.ResultFailed && is.last.turn != was.last.turn
	return failed || was.uid != is.uid || was.boot != is.boot || !is.ready
}

// canariesRan reports whether all canaries have run the version for their time. It reads what their Nodes show, and not
// what a coordinator has recorded.
func (m *model) canariesRan(s *state, version uint8) bool {
	some := false
	for i := range m.Nodes {
		n := &s.n[i]
		o := &m.objects[n.api]
		if n.pool != canaryPool || !o.exists() || o.managed != 0 || o.detached != 0 {
			continue
		}
		failed := results[o.last.result] == v1alpha1.ResultFailed && o.retry != o.last.turn
		if failed || n.ran>>version&1 == 0 || shownVersion(o) != version || o.st() == v1alpha1.StateAbsent || o.st().InTurn() || o.unsched {
			return false
		}
		some = true
	}
	return some
}

// canariesFirst checks that no leader grants a node a turn for an OS version, or promotes it to the reboot into one that it
// was not granted for, before the canaries have run that version.
func canariesFirst(m *model, e *event, before, s *state) string {
	if !m.After || e.action.kind != decide || !m.holds(before, e.term) {
		return ""
	}
	for i := range m.Nodes {
		n, w := &before.n[i], &s.n[i].terms[e.term]
		if n.pool == canaryPool || w.write != toSend {
			continue
		}
		b, a := &m.objects[n.api], &m.objects[w.obj]
		v := b.host.change
		takes := a.turn == b.turn && a.grant.change == v && b.grant.change != v
		promoted := a.st() == v1alpha1.StateRebooting && b.st() != v1alpha1.StateRebooting && b.grant.change != v && b.host.boot == b.boot
		if v != 0 && (w.grant || takes || promoted) && !m.canariesRan(before, v) {
			return "a node is to boot " + version(v) + " before the canaries have run it"
		}
	}
	return ""
}

// darkHolds checks that no term grants a turn in a blackout. A request that does not wait is the exception.
func darkHolds(m *model, e *event, before, s *state) string {
	if !before.dark {
		return ""
	}
	for i := range m.granted(e, s) {
		if m.objects[before.n[i].api].now == 0 {
			return "a turn is granted in a blackout"
		}
	}
	return ""
}

// underWay checks that neither a blackout nor canaries end a turn that has begun, unless the policy says so or the turn would
// boot another version than it was granted for.
func underWay(m *model, e *event, _, _ *state) string {
	b, a := &e.before, &e.after
	if e.writer != leadWrites && e.writer != lateLeader || b.turn == 0 || a.turn != b.turn || a.grant.reason == b.grant.reason {
		return ""
	}
	switch r := reasons[a.grant.reason]; {
	case r == v1alpha1.ReasonWindow && !m.OnClose:
		return "a turn is backed out because of a blackout"
	case r == v1alpha1.ReasonCanary && b.host.change == b.grant.change:
		return "a turn is backed out because its canaries no longer run the version"
	}
	return ""
}

// showCanary changes what the coordinator sees of the versions that nodes run.
func (b Bug) showCanary(n *turn.Node) {
	switch {
	case b == CanaryClockEarly && n.HostReported() && n.Ready:
		n.Runs, n.ReadySince = &v1alpha1.Runs{OSVersion: n.Host.OSVersion, BootID: n.BootID, Since: sinceOf(true)}, sinceOf(true)
	case b == CanaryBlipIgnored:
		n.ReadySince = sinceOf(true)
	case b == CanaryBootIgnored && n.Runs != nil:
		n.Runs = &v1alpha1.Runs{OSVersion: n.Runs.OSVersion, BootID: n.BootID, Since: n.Runs.Since}
	case b == CanaryLieBelieved && n.Runs != nil && n.Host != nil:
		n.Runs = &v1alpha1.Runs{OSVersion: n.Host.OSVersion, BootID: n.Runs.BootID, Since: n.Runs.Since}
	case b == CanaryNewerIgnored && n.InTurn() && n.Grant != nil && n.Host != nil, b == CanaryBacksOut && n.InTurn() && n.Grant != nil:
		g := *n.Grant
		if g.Changes = nil; b == CanaryNewerIgnored {
			g.Changes = n.Host.Changes
		}
		n.Grant = &g
	}
}
