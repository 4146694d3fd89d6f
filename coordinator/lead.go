package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

const (
	// leadRound is how often a leader decides although nothing changed: for
	// its clock's skew and the liveness of the loop, not for the nodes.
	leadRound = 30 * time.Second
	leadBound = 2 * time.Minute // what the watchdog allows the loop
	// refusedFor is how long a node is left alone whose write was refused.
	refusedFor = 30 * time.Second
	// maxRest is the most that the loop rests after a decision. It rests as long
	// as the decision took, so that a fleet in uproar costs half a CPU, and a
	// promotion no more than that.
	maxRest = 100 * time.Millisecond
	// blindTerms is for how many Lease durations a leader keeps its term although it
	// does not see what to decide on.
	blindTerms = 3
	// maxBulk bounds the writes to nodes in no turn in one round: whole fleets
	// are adopted, paused and released, and turns continue meanwhile.
	maxBulk = 25
	// unsettledAfter is how long the outcome of a write may be unknown before the
	// leader reports it: in an Event, a metric, and the reason why it grants nothing.
	unsettledAfter = time.Minute
	// maxUncertain is how many writes may be without a known outcome before
	// nothing more is written: each takes its time and is repeated.
	maxUncertain = 10
)

// leader is one term.
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
	// The loop's alone.
	blind  time.Time // since when it does not see what to decide on; zero: it does
	told   string    // why it grants nothing by them, as its Status has it
	events *events
	facts  facts
	pace   heldPace
	rest   time.Duration // see maxRest
	// handover is since when a node is held with Handover; zero while none is.
	handover time.Time

	mu        sync.Mutex
	uncertain map[string]unsettled
	refused   map[string]refusal
	settling  sync.WaitGroup
}

// lead leads until ctx ends, or the elector's own context does.
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

	// A view of its own for each term: its first list is a quorum read that
	// began after the Lease was won. A list from before may lack the turns
	// that the last leader granted last.
	l.view = kube.WatchNodes(c.client, l.wake, func() { over(errRewound) })
	l.policies = kube.WatchPolicies(c.client, policy.Compile, l.wake)
	l.statuses = newStatuses(c.client, l.policies, c.log)
	watching.Go(func() { l.view.Run(ctx) })
	watching.Go(func() { l.policies.Run(ctx) })
	watching.Go(func() { l.statuses.run(ctx) })
	// Each term asks again: the answers that the last leader got do not count.
	l.gates = gate.New(gate.Options{URL: c.PrometheusURL, TokenFile: c.PrometheusTokenFile, Version: c.Version, Changed: l.wake, Log: c.log})
	watching.Go(func() { l.gates.Run(ctx) })
	c.lease.listenTo(l.leaseChanged)
	defer c.lease.listenTo(nil)
	l.events = newEvents(ctx, c.client, node, c.log)
	l.events.send, l.events.heldAfter = c.sender.Send, c.sender.HeldLongerThan()

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
		if pause(ctx, l.rest) != nil {
			return
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-l.kick:
		case <-t.C:
		}
		t.Stop()
	}
}

// ended says why a term did, for people.
func ended(term context.Context) string {
	why := context.Cause(term)
	if why == nil || errors.Is(why, context.Canceled) || why == errTermOver {
		return "its term ended; it campaigns again"
	}
	return "its term ended: " + why.Error()
}

func (l *leader) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// round decides once and carries the verdicts out. It returns how long to wait
// if nothing changes.
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
	l.events.reportIntents(&s, l.candidate.lease.now(), l.view.Get)
	out := rollout.Decide(s)
	l.gates.Ask(awaitedGates(s.Policies, out.Figures.Policies))
	took := time.Since(began)
	l.rest = min(took, maxRest)
	l.statuses.set(out.Figures.Policies)
	if l.Decided != nil {
		l.Decided(took, &s, &out)
	}
	nodes := make(map[string]*turn.Node, len(s.Nodes))
	for i := range s.Nodes {
		nodes[s.Nodes[i].Name] = &s.Nodes[i]
	}
	l.events.reportWaiting(s.Now, nodes, &out)
	l.events.reportPolicies(out.Figures.Policies, l.policies.Get)
	left := l.carryOut(ctx, out.Verdicts, nodes)
	next := min(leadRound, left, due, l.refusals())
	if !out.Again.IsZero() {
		next = min(next, max(time.Until(out.Again), 10*time.Millisecond))
	}
	return next
}
