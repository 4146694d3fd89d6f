package coordinator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

const (
	// leadRound is how often a leader decides even if nothing has changed. Each round
	// also checks the clock's skew and shows that the loop is alive.
	leadRound = 30 * time.Second
	leadBound = 2 * time.Minute // how long the watchdog lets one round take
	// refusedFor is how long the leader writes nothing to a node after a refused write.
	refusedFor = 30 * time.Second
	// withoutPause is how much time the loop may spend on decisions before it pauses, and
	// maxPause the longest pause. See pauser.
	withoutPause = 100 * time.Millisecond
	maxPause     = time.Second
	// blindTerms is for how many Lease durations a leader keeps its term without a view
	// of the cluster.
	blindTerms = 3
	// maxBulk bounds the writes of one round to nodes in no turn, so that turns continue
	// while a whole fleet is adopted, paused or released.
	maxBulk = 25
	// maxAtATime is how many writes are under way at the same time, except for grants. With one at a
	// time, fifty turns would wait for each other, and a large fleet's reasons would take longer than
	// heldSpread if the API server needs more than 12 ms for each. While turns of another term are
	// left, it is one: a node whose write has an unknown outcome counts as unavailable, and for too
	// many of these nodes such turns are backed out.
	maxAtATime = 4
	// unsettledAfter is how long the outcome of a write may be unknown before the
	// leader reports it: in an Event, a metric, and the reason why it grants nothing.
	unsettledAfter = time.Minute
	// maxUncertain is how many writes may have an unknown outcome before the leader stops
	// writing. Each of them is repeated, which takes time.
	maxUncertain = 10
)

// leader is the leader of one term.
type leader struct {
	*candidate
	epoch, self string
	lock        *termLock
	over        context.CancelCauseFunc // ends the term
	beat        *systemd.Beat
	view        *kube.NodeWatch
	policies    *kube.Policies[policy.Policy]
	statuses    *statuses
	gates       *gate.Gates
	kick        chan struct{}
	// Only the loop uses the following fields, up to mu.
	blind  time.Time // since when the leader has no view of the cluster; zero: it has one
	unread string    // why it grants nothing by its policies, as in its last Status
	events *events
	facts  facts
	pace   heldPace
	pauser pauser
	// stopped is since when the leader has seen the emergency stop; zero: there is none.
	stopped time.Time
	// missed says, by node, when the stop was that is over and may not be recorded on the Node.
	missed map[string]rollout.Stop
	// handover is since when a node has been held with Handover; zero: no node is.
	handover time.Time

	mu        sync.Mutex
	uncertain map[string]unsettled
	refused   map[string]refusal
	settling  sync.WaitGroup
}

// lead leads until ctx or elected, the elector's own context, ends.
func (c *candidate) lead(ctx, elected context.Context, node string, lock *termLock, over context.CancelCauseFunc) {
	term := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(elected, cancel)()

	l := &leader{
		candidate: c, epoch: lock.identity, self: node, lock: lock, over: over, kick: make(chan struct{}, 1),
		uncertain: map[string]unsettled{}, refused: map[string]refusal{},
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer l.settling.Wait()
	defer cancel()

	// Each term has its own view. Its first list is a quorum read that begins after the
	// Lease was won. An earlier list may lack the last turns that the previous leader
	// granted.
	l.view = kube.WatchNodes(c.client, l.wake, func() { over(errRewound) })
	l.policies = kube.WatchPolicies(c.client, policy.Compile, l.wake)
	l.statuses = newStatuses(l.policies, c.Log)
	watching.Go(func() { l.view.Run(ctx) })
	watching.Go(func() { l.policies.Run(ctx) })
	watching.Go(func() { l.statuses.run(ctx) })
	// Each term queries the gates again. The answers of the previous leader do not count.
	l.gates = c.newGates(l.wake)
	watching.Go(func() { l.gates.Run(ctx) })
	c.lease.listenTo(l.leaseChanged)
	defer c.lease.listenTo(nil)
	l.events = c.newEvents(ctx, node)

	c.say(Status{Candidate: true, Leader: true, Epoch: l.epoch})
	defer func() { c.say(Status{Candidate: true, Why: ended(term)}) }()
	l.beat = c.Liveness.Beat("coordinator", leadBound)
	defer l.beat.Stop()
	for ctx.Err() == nil {
		l.beat.Alive()
		if err := skewed(c.client); err != nil {
			over(err)
			return
		}
		next := l.round(ctx)
		select {
		case <-ctx.Done():
		case <-l.kick:
		case <-time.After(next):
		}
	}
}

// newGates returns the gates of a term. changed is called when an answer changes.
func (c *candidate) newGates(changed func()) *gate.Gates {
	return gate.New(gate.Options{URL: c.PrometheusURL, TokenFile: c.PrometheusTokenFile, Version: c.Version, Changed: changed, Log: c.Log})
}

// newEvents returns the events of a term of this host, whose Node has that name.
func (c *candidate) newEvents(ctx context.Context, node string) *events {
	e := newEvents(ctx, c.client, node, c.Log)
	e.send, e.heldAfter = c.sender.Send, c.sender.HeldLongerThan()
	return e
}

// ended returns why the term ended, as text for users.
func ended(term context.Context) string {
	switch why := context.Cause(term); {
	case why == nil, why == errTermOver:
		return "its term ended; it campaigns again"
	case errors.Is(why, context.Canceled): // only the caller of Run cancels a term without another cause
		return "its term ended: lockkeeper stops, or the host shuts down"
	default:
		return "its term ended: " + strings.TrimPrefix(why.Error(), errTermOver.Error()+": ")
	}
}

func (l *leader) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// round decides once, carries out the verdicts, and pauses if decisions take too much time. It
// returns how long to wait for the next round if nothing changes.
func (l *leader) round(ctx context.Context) time.Duration {
	if !l.lock.fresh(l.RenewDeadline) {
		return l.RetryPeriod // the elector renews the Lease, or ends the term
	}
	began := time.Now()
	s, due, ok := l.snapshot()
	if !ok {
		l.reportBlind()
		return l.RetryPeriod
	}
	l.reportSight(s.Unread)
	l.events.reportIntents(&s, l.lease.now())
	out := rollout.Decide(s)
	l.gates.Ask(awaitedGates(s.Policies, out.Figures.Policies))
	l.statuses.set(out.Figures.Policies)
	if l.Decided != nil {
		l.Decided(time.Since(began), &s, &out)
	}
	l.events.reportWaiting(s.Now, &l.facts, &out)
	l.events.reportPolicies(out.Figures.Policies, l.policies.Get)
	decided := time.Now()
	left := l.carryOut(ctx, out.Verdicts)
	_ = pause(ctx, l.pauser.after(began, decided)-time.Since(decided)) // the loop ends with ctx
	next := min(leadRound, left, due, l.refusals())
	if !out.Again.IsZero() {
		next = min(next, max(time.Until(out.Again), 10*time.Millisecond))
	}
	return next
}

// pauser makes the loop pause for as long as its decisions take, so that a fleet that changes
// all the time costs at most half a CPU. The first tenth of a second of decisions needs no
// pause: if a host writes twice in a row, the second decision follows the first one at once.
// The time for which the loop waits for something else, for changes or for answers to its
// writes, counts as a pause. The zero value is ready to use.
type pauser struct {
	decided time.Time     // when the last decision ended
	debt    time.Duration // how much longer the loop had decided than paused by then
}

// after returns how long to pause from the end of a decision on; 0 or less: not at all.
func (p *pauser) after(began, decided time.Time) time.Duration {
	p.debt = max(p.debt-began.Sub(p.decided), 0) + decided.Sub(began)
	p.debt = min(p.debt, withoutPause+maxPause)
	p.decided = decided
	return p.debt - withoutPause
}
