package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// systemCritical is the lowest priority of a critical pod; see SystemCriticalPriority in
// Kubernetes' pkg/apis/scheduling.
const systemCritical = 2_000_000_000

// Bounds of the schedule: a pod that cannot be evicted is tried less and less often.
const (
	// Delays before a pod's next eviction.
	minDelay = time.Second
	maxDelay = 30 * time.Second
	// freshDelay is the longest delay while the pod has been blocked for less than five times as
	// long: a budget often allows the eviction within a minute, when a pod on another node is
	// ready, and a user who removes an obstacle waits for the drain.
	freshDelay = 5 * time.Second
	// criticalAfter is how long critical pods wait for another pod that cannot be evicted.
	criticalAfter = 30 * time.Second
	// recheck is how long the watch may take to show an accepted eviction. An admission webhook
	// may accept an eviction and do nothing.
	recheck = 30 * time.Second
	// overdue is how long after its grace period a terminating pod becomes a
	// blocker: kubelet and watch need a moment, and clocks differ.
	overdue = 10 * time.Second
	// maxGone is how often the answer "there is no such pod" is accepted while the watch still
	// shows the pod.
	maxGone = 3
)

type kind int

const (
	accepted kind = iota // the pod is being deleted
	gone                 // no pod of this name, or one of another UID
	later                // not now; the drain tries again
	refused              // not before a user changes something
)

// answer is the result of one eviction.
type answer struct {
	kind       kind
	reason     Reason        // unless accepted
	message    string        // the server's message
	budget     string        // the PodDisruptionBudget that it names, or ""
	retryAfter time.Duration // 0: the server did not say
	overruled  string        // of a pod that was deleted by force: why it could not be evicted
}

// entry is a pod that must go.
type entry struct {
	facts
	inFlight  bool
	attempts  int // evictions sent
	failures  int // answers in a row that did not remove the pod
	notBefore time.Time
	accepted  bool
	blocker   *Blocker
	budget    *budget // that blocks the pod, as far as is known; or nil
	// goneBy is the end of a terminating pod's grace period by this host's clock.
	goneBy time.Time
	// refused is when the API server first refused to evict this pod, since it last accepted
	// that; zero if it has not refused.
	refused time.Time
}

// budget is a PodDisruptionBudget that refuses evictions. What it allows for one of its pods it
// allows for the others, so the drain asks it for one pod at a time, and each time for another
// one: after its first attempt, a pod costs no requests of its own. A budget applies other rules
// to pods that are not Ready, so they have a budget of their own here.
type budget struct {
	name      string // namespace/name
	unready   bool
	trying    types.UID // the pod whose eviction is in flight; "" for none
	failures  int       // answers in a row that removed no pod
	refused   time.Time // when the first of them came
	notBefore time.Time
}

// critical reports whether the pod is in the second of the two groups into which the kubelet's
// own shutdown divides pods: those that others depend on, such as the cluster's DNS.
func (e *entry) critical() bool { return e.priority >= systemCritical }

// blockedFrom returns from when the pod counts as blocked, so that critical pods need not wait for
// it; ok is false if it is not blocked. A refused eviction may succeed at the next attempt, and an
// API server that does not answer says nothing about the pod.
func (e *entry) blockedFrom() (at time.Time, ok bool) {
	switch {
	case e.verdict.Class == Wait:
		return e.goneBy.Add(overdue), true
	case e.blocker == nil || e.blocker.Reason == Unreachable:
		return time.Time{}, false
	case e.refused.IsZero(): // by the policy, or it comes back, or is not deleted
		return time.Time{}, true
	}
	return e.refused.Add(criticalAfter), true
}

func (e *entry) blocked(now time.Time) bool {
	at, ok := e.blockedFrom()
	return ok && !now.Before(at)
}

// schedule decides which pod to evict when. It is pure: pods, answers and the time are
// arguments. It must not be used by several goroutines.
//
// As many evictions as width are in flight at once. An API server that is busy or away gets
// fewer: each answer that says so, and each missing one, halves width; all others widen it.
type schedule struct {
	concurrency int            // the most that width may be
	random      func() float64 // in [0, 1)

	pods     map[types.UID]*entry
	err      error
	synced   bool
	inFlight int
	width    float64 // at least 1
	evicted  int
	seen     map[types.UID]bool // pods that had to go
	cleared  map[types.UID]bool // controllers of which a pod was evicted
	returns  map[types.UID]int  // pods that came afterwards, by controller
}

func newSchedule(concurrency int, random func() float64) *schedule {
	return &schedule{
		concurrency: concurrency,
		random:      random,
		width:       float64(concurrency),
		pods:        map[types.UID]*entry{},
		seen:        map[types.UID]bool{},
		cleared:     map[types.UID]bool{},
		returns:     map[types.UID]int{},
	}
}

// observe updates the schedule with the pods that the watch shows.
func (s *schedule) observe(now time.Time, v snapshot) {
	s.err = v.err
	if !v.synced {
		return
	}
	was := s.pods
	s.pods = make(map[types.UID]*entry, len(v.pods))
	for _, f := range v.pods {
		e := was[f.UID]
		if e == nil {
			e = &entry{facts: f}
			s.seen[f.UID] = true
			s.arrived(now, e)
		}
		if e.verdict.Class != f.verdict.Class || f.verdict.Class == Block && e.verdict.Reason != f.verdict.Reason {
			e.blocker, e.refused, e.budget = nil, time.Time{}, nil
			e.goneBy = time.Time{} // of a deletion that is gone: the API server's store was set back
		}
		if (e.unready == "") != (f.unready == "") {
			e.budget = nil // it applies other rules now
		}
		if f.verdict.Class == Wait {
			e.terminates(now, &f, was[f.UID] != nil)
		}
		e.facts = f
		if f.verdict.Class == Block && e.blocker == nil {
			e.block(now, f.verdict.Reason, "", blockMessage(f.verdict.Reason))
		}
		s.pods[f.UID] = e
	}
	s.synced = true
}

// terminates sets when a terminating pod has to be gone. known reports whether the drain has seen the pod before. The API
// server writes the end of the grace period by its own clock, and this host's clock may be minutes off. So the grace period of a
// deletion that the drain sees counts from now. A pod that was terminating already has at most its whole grace period left.
func (e *entry) terminates(now time.Time, f *facts, known bool) {
	if !e.goneBy.IsZero() && f.deadline.Equal(e.deadline) {
		return // the same deletion
	}
	if f.deletionGrace == nil {
		e.goneBy = f.deadline
		return
	}
	by := now.Add(*f.deletionGrace)
	if !known && f.deadline.Before(by) {
		by = f.deadline
	}
	if e.goneBy.IsZero() || by.Before(e.goneBy) { // another deletion can only shorten it
		e.goneBy = by
	}
}

// arrived delays the evictions of a controller that keeps putting pods on this node, because
// its pods tolerate the cordon: otherwise the drain would evict them at the full rate.
func (s *schedule) arrived(now time.Time, e *entry) {
	if e.verdict.Class != Evict || !s.cleared[e.controller] {
		return
	}
	s.returns[e.controller]++
	if n := s.returns[e.controller]; n > 1 {
		e.notBefore = now.Add(s.delay(n-1, maxDelay))
		e.block(now, Returning, "", fmt.Sprintf(
			"the pod's controller has put %d pods on this node since one of its pods was evicted", n))
	}
}

// next starts one eviction, if there is one to start now.
func (s *schedule) next(now time.Time) (Pod, bool) {
	if s.full() {
		return Pod{}, false
	}
	critical := s.criticalMayLeave(now)
	var best *entry
	for _, e := range s.pods {
		if due, ok := e.due(critical); ok && !now.Before(due) && (best == nil || before(e, best) < 0) {
			best = e
		}
	}
	if best == nil {
		return Pod{}, false
	}
	if best.accepted {
		best.block(now, NotDeleted, "", "an eviction was accepted, but the pod is not being deleted")
	}
	if best.budget != nil {
		best.budget.trying = best.UID
	}
	best.inFlight = true
	best.attempts++
	s.inFlight++
	return best.Pod, true
}

// full reports whether as many evictions as allowed are in flight.
func (s *schedule) full() bool { return s.inFlight >= int(s.width) }

// criticalMayLeave reports whether critical pods may be evicted: once all others are gone or
// blocked.
func (s *schedule) criticalMayLeave(now time.Time) bool {
	for _, e := range s.pods {
		if !e.critical() && !e.blocked(now) {
			return false
		}
	}
	return true
}

// waits reports whether an eviction of the pod is still to be sent. critical says whether that
// of a critical pod may be.
func (e *entry) waits(critical bool) bool {
	return e.verdict.Class == Evict && !e.inFlight && (critical || !e.critical())
}

// due returns the earliest time of the next eviction of a pod that waits; ok is false if it does not wait, or if its
// budget is being asked for another pod.
func (e *entry) due(critical bool) (at time.Time, ok bool) {
	switch b := e.budget; {
	case !e.waits(critical):
		return time.Time{}, false
	case b == nil:
		return e.notBefore, true
	case b.trying == "" && b.notBefore.After(e.notBefore):
		return b.notBefore, true
	default:
		return e.notBefore, b.trying == ""
	}
}

// before orders evictions. Pods without an attempt come first, then those that have been due for
// longest, so that blocked pods delay no others. Then comes the lowest priority.
func before(a, b *entry) int {
	return cmp.Or(
		cmp.Compare(min(a.attempts, 1), min(b.attempts, 1)),
		a.notBefore.Compare(b.notBefore),
		cmp.Compare(a.priority, b.priority),
		comparePods(a.Pod, b.Pod),
	)
}

// answered records the result of an eviction that next started.
func (s *schedule) answered(now time.Time, uid types.UID, controller types.UID, a answer) {
	s.inFlight--
	switch {
	case a.kind != accepted && (a.reason == TooManyRequests || a.reason == Unreachable):
		s.width = max(s.width/2, 1)
	default:
		s.width = min(s.width+1/s.width, float64(s.concurrency))
	}
	tried := s.budgetOf(func(b *budget) bool { return b.trying == uid })
	if tried != nil {
		s.triedBudget(now, tried, a)
	}
	e := s.pods[uid]
	if a.kind == accepted {
		if e == nil || !e.accepted {
			s.evicted++
		}
		if controller != "" {
			s.cleared[controller] = true
		}
	}
	if e == nil {
		return
	}
	e.inFlight = false
	if a.kind == accepted {
		e.failures, e.refused, e.budget = 0, time.Time{}, nil
		if !e.accepted {
			e.blocker = nil
		}
		e.accepted = true
		e.notBefore = now.Add(recheck)
		return
	}
	e.failures++
	if e.refused.IsZero() && a.reason != Unreachable {
		e.refused = now
	}
	switch busy := a.reason == TooManyRequests || a.reason == Unreachable; {
	case a.budget != "":
		e.budget = s.refusedBy(now, e, a, tried)
	case !busy: // something else refuses the pod
		e.budget = nil
	}
	if e.budget == nil {
		e.notBefore = now.Add(s.wait(e.failures, longestDelay(now, e.refused), a.retryAfter))
	} else {
		e.notBefore = now.Add(max(minDelay, min(a.retryAfter, maxDelay))) // after the budget's other pods
	}
	if e.verdict.Class == Evict && (a.kind != gone || e.failures >= maxGone) {
		name := ""
		if a.budget != "" {
			name = e.budget.name
		}
		e.block(now, a.reason, name, e.explain(a))
	}
}

// triedBudget records the answer for a pod of the budget.
func (s *schedule) triedBudget(now time.Time, b *budget, a answer) {
	b.trying = ""
	if a.kind == accepted { // perhaps it allows another one
		b.failures, b.notBefore = 0, now
		return
	}
	if b.failures++; b.failures == 1 {
		b.refused = now
	}
	b.notBefore = now.Add(s.wait(b.failures, longestDelay(now, b.refused), a.retryAfter))
}

// refusedBy returns the budget that refused the eviction of e. tried is the budget that was asked, which has its delay
// already. An answer for a pod of which the budget was not known yet says nothing new about a known one, except for how
// long the API server wants to be left alone. All pods of the budget get the figures of this answer.
func (s *schedule) refusedBy(now time.Time, e *entry, a answer, tried *budget) *budget {
	name, unready := e.Namespace+"/"+a.budget, e.unready != ""
	b := s.budgetOf(func(b *budget) bool { return b.name == name && b.unready == unready })
	switch {
	case b == nil: // the pod may have been blocked for long
		b = &budget{name: name, unready: unready, failures: e.failures, refused: e.refused}
		b.notBefore = now.Add(s.wait(b.failures, longestDelay(now, b.refused), a.retryAfter))
	case b != tried && a.retryAfter > 0:
		if at := now.Add(s.wait(0, longestDelay(now, b.refused), a.retryAfter)); at.After(b.notBefore) {
			b.notBefore = at
		}
	}
	for _, other := range s.pods {
		if other.budget == b && other != e && other.verdict.Class == Evict {
			other.block(now, a.reason, name, other.explain(a))
		}
	}
	return b
}

// budgetOf returns a budget that matches, or nil.
func (s *schedule) budgetOf(matches func(*budget) bool) *budget {
	for _, e := range s.pods {
		if e.budget != nil && matches(e.budget) {
			return e.budget
		}
	}
	return nil
}

// longestDelay returns the longest delay after an answer. It is a fifth of the time since the first refusal: few requests,
// and the drain ends soon after the obstacle does. While the API server has never answered, it is maxDelay.
func longestDelay(now, refused time.Time) time.Duration {
	if refused.IsZero() {
		return maxDelay
	}
	return min(max(now.Sub(refused)/5, freshDelay), maxDelay)
}

// wait returns the time until the next eviction after some failures, and after a Retry-After, which may be 0.
func (s *schedule) wait(failures int, longest, retryAfter time.Duration) time.Duration {
	wait := s.delay(failures, longest)
	if retryAfter > 0 {
		requested := min(max(retryAfter, minDelay), maxDelay)
		wait = max(wait, requested+time.Duration(s.random()*float64(requested)/4))
	}
	return wait
}

// delay doubles with each failure. It is random in the upper half of that, so that pods that
// were blocked at the same time are not tried again at the same time.
func (s *schedule) delay(failures int, longest time.Duration) time.Duration {
	d := min(longest, minDelay<<min(failures, 16))
	return d/2 + time.Duration(s.random()*float64(d)/2)
}

// wake returns when next may have a pod to evict, or progress something to report, even if
// nothing else happens; zero means never.
func (s *schedule) wake(now time.Time) time.Time {
	var at time.Time
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	critical := s.criticalMayLeave(now)
	waiting := !critical && slices.ContainsFunc(slices.Collect(maps.Values(s.pods)), func(e *entry) bool { return e.critical() && e.waits(true) })
	for _, e := range s.pods {
		if t, ok := e.blockedFrom(); waiting && ok && t.After(now) {
			soonest(t)
		}
		switch due, ok := e.due(critical); {
		case ok && !s.full():
			soonest(due)
		case e.verdict.Class == Wait:
			if t := e.goneBy.Add(overdue); t.After(now) {
				soonest(t)
			}
		}
	}
	return at
}

// done reports whether the watch shows a drained node.
func (s *schedule) done() bool { return s.synced && len(s.pods) == 0 }
