package referee

import (
	"cmp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// leaseVersion is one version of the Lease. The zero value means that no Lease exists.
type leaseVersion struct {
	at      moment
	exists  bool
	holder  string
	stopped bool // the emergency stop is set, or no Lease exists
}

// onLease takes a version of the Lease. A nil obj means that the Lease does not exist.
func (e *engine) onLease(m moment, obj *coordinationv1.Lease) {
	e.now = m
	e.followLease(m, obj)
	for _, n := range e.nodes {
		e.runClock(n)
		e.overdueLate(n)
	}
}

// followLease keeps what later judgements need to know of a version of the Lease.
func (e *engine) followLease(m moment, obj *coordinationv1.Lease) {
	if !e.first {
		e.report.LeaseEvents++
	}
	before := e.lease()
	v := leaseVersion{at: m, stopped: true}
	if obj != nil {
		v.exists = true
		_, v.stopped = obj.Annotations[v1alpha1.AnnotationStop]
		if obj.Spec.HolderIdentity != nil {
			v.holder = *obj.Spec.HolderIdentity
		}
	}
	if v.holder != "" {
		e.held[v.holder], e.terms[v.holder] = true, true
	}
	if v.holder != "" && v.holder != before.holder && e.renewed != (moment{}) {
		e.unled = append(e.unled, span{e.renewed.by, m.after, v.holder})
	}
	if v.holder != "" || before.holder != "" && v.exists {
		e.renewed = m
	}
	e.followLeaders(v, obj)
	if len(e.leases) > 0 && v.exists == before.exists && v.holder == before.holder && v.stopped == before.stopped {
		return // only a renewal
	}
	e.leases = append(e.leases, v)
	switch {
	case before.exists && !v.exists:
		e.logLine("", "the Lease was deleted: everything stops")
	case v.stopped && !before.stopped:
		e.logLine("", "the emergency stop is set: %s", obj.Annotations[v1alpha1.AnnotationStop])
	case !v.stopped && before.stopped && len(e.leases) > 1:
		e.logLine("", "the emergency stop is lifted")
	}
	switch {
	case v.holder == before.holder:
	case v.holder == "":
		e.logLine("", "the leader gave the Lease back")
	default:
		e.logLine("", "term %s begins", v.holder)
	}
	for _, n := range e.nodes {
		e.updateWindows(n)
	}
}

// lease returns the current version.
func (e *engine) lease() leaseVersion {
	if len(e.leases) == 0 {
		return leaseVersion{stopped: true}
	}
	return e.leases[len(e.leases)-1]
}

// holderSince returns the moment since which the current holder has held the Lease without a stop.
func (e *engine) holderSince() moment {
	last := e.lease()
	since := last.at
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].holder == last.holder && !e.leases[i].stopped; i-- {
		since = e.leases[i].at
	}
	return since
}

// stoppedSince returns the moment since which the stop is set. ok is false if it is not set.
func (e *engine) stoppedSince() (since moment, ok bool) {
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].stopped; i-- {
		since, ok = e.leases[i].at, true
	}
	return since, ok
}

// fence judges a commit for which the host read its Node at revision read or later. The host read the Lease after that revision and before the
// commit, and no longer before the commit than actWithin. So one of the versions of the Lease in that interval must name the epoch without a stop, and
// must have been current at most actWithin ago. fence adds lag, because a fault may have delayed the commit's request.
func (e *engine) fence(n *node, epoch string, read int64) {
	var next moment // when the version at i was replaced
	for i := len(e.leases) - 1; i >= 0; i-- {
		l := &e.leases[i]
		if l.exists && !l.stopped && l.holder == epoch {
			if next != (moment{}) && e.now.elapsed(next) > actWithin+e.lag {
				e.breaks(Fence, n.name, "committed in the term %s at least %v after the Lease had ceased to allow it (%s)",
					epoch, e.now.elapsed(next).Round(time.Second), e.leaseText())
			}
			return
		}
		next = l.at
		if l.at.rev <= read {
			break // older versions had been replaced when the Node was read
		}
		if i == 0 {
			return // the Node was read before the referee started, and the Lease of that time is unknown
		}
	}
	rule := Fence
	if e.lease().stopped {
		rule = Stop
	}
	e.breaks(rule, n.name, "committed in the term %s, which the Lease did not allow at any moment since the Node was read (%s)", epoch, e.leaseText())
}

// span is the time between two writes of the Lease, and who held it then, or first after it.
type span struct {
	from, to time.Time
	holder   string
}

// ran returns for how long since a time leaders could continue a turn: without stops, if stops says so, and without the time between two leaders. Only
// the terms that the turn has been of count, as the Lease does not say how long there was no leader before a term that left the turn alone. unnoticed
// is how much more the leaders may believe to have had.
func (e *engine) ran(since time.Time, terms []string, stops bool) (d, unnoticed time.Duration) {
	spans := slices.Clone(e.unled)
	for i, l := range e.leases {
		if s := (span{l.at.by, e.now.after, l.holder}); stops && l.stopped {
			if i+1 < len(e.leases) {
				s.to = e.leases[i+1].at.after
			}
			for _, next := range e.leases[i+1:] {
				s.holder = cmp.Or(s.holder, next.holder)
			}
			spans = append(spans, s)
		}
	}
	spans = slices.DeleteFunc(spans, func(s span) bool { return !slices.Contains(terms, s.holder) })
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var gaps []span
	for _, s := range spans {
		if last := len(gaps) - 1; last >= 0 && s.from.Sub(gaps[last].to) < time.Second { // less is unknown about each write of the Lease
			gaps[last].to = time.Unix(0, max(gaps[last].to.UnixNano(), s.to.UnixNano()))
		} else {
			gaps = append(gaps, s)
		}
	}
	for _, g := range gaps {
		if !g.to.After(since) {
			continue
		}
		if g.from.After(since) {
			d += g.from.Sub(since)
			since = g.from
		}
		unnoticed += min(noticesStop, g.to.Sub(since))
		since = g.to
	}
	return d + max(0, e.now.by.Sub(since)), unnoticed
}

// noticesStop is how much of each stop, or of each time without a leader, a leader may not have noticed.
const noticesStop = 30 * time.Second

// overdue judges a leader that calls a turn overdue. By a timeout of the grant, the stage has lasted for too long.
func (e *engine) overdue(n *node, before, after *turn.Node) {
	g := before.Grant
	held := before.State == after.State && after.Held == v1alpha1.ReasonOverdue && before.Held != after.Held
	ends := after.Grant != nil && after.Grant.Reason == v1alpha1.ReasonOverdue
	if g == nil || n.turn == nil || !before.Ours() || g.Reason == v1alpha1.ReasonOverdue || !held && !ends {
		return
	}
	if e.early(n, before, after) {
		lasted, _ := e.lasted(n, before, after)
		e.breaks(Overdue, n.name, "overdue in %s after %v, its timeout is %v", before.State, lasted.Round(time.Second), timeout(before))
	}
}

// early reports whether the stage before a leader's write cannot be overdue yet.
func (e *engine) early(n *node, before, after *turn.Node) bool {
	lasted, unnoticed := e.lasted(n, before, after)
	return lasted+max(unnoticed, noticesStop) < timeout(before)
}

// lasted returns for how long the stage before a leader's write has run. A leader begins no stage under a stop, so a leader that sees only after the
// stop a stage that someone else has begun cannot know that the stop is to be left out.
func (e *engine) lasted(n *node, before, after *turn.Node) (d, unnoticed time.Duration) {
	return e.ran(before.Grant.StageAt, append(slices.Clone(n.turn.terms), epochOf(after)), !n.turn.edited)
}

// timeout returns the shortest timeout of the state of a node in a turn.
func timeout(n *turn.Node) time.Duration {
	t := &n.Grant.Terms
	switch n.State {
	case v1alpha1.StateDraining:
		return t.Draining.Duration
	case v1alpha1.StateRebooting:
		return t.Rebooting.Duration
	case v1alpha1.StateApplying:
		return t.Applying.Duration
	case v1alpha1.StateUncordoning:
		return t.Uncordoning.Duration
	}
	least := t.HostHooks.Duration
	for _, h := range t.Hooks(n.State) {
		least = min(least, h.Timeout.Duration)
	}
	return least
}

func (e *engine) leaseText() string {
	switch l := e.lease(); {
	case !l.exists:
		return "there is no Lease"
	case l.stopped:
		return "the emergency stop is set"
	case l.holder == "":
		return "it has no holder"
	default:
		return "it names " + l.holder
	}
}
