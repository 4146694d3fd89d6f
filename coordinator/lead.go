package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
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
	// blindTerms is for how many Lease durations a leader goes on that does not
	// see what to decide on.
	blindTerms = 3
	// maxBulk bounds the writes to nodes in no turn in one round: whole fleets
	// are taken in, paused and let go, and turns go on meanwhile.
	maxBulk = 25
	// unsettledAfter is how long the outcome of a write may be unknown before the
	// leader reports it: in an Event, a metric, and the reason why it grants nothing.
	unsettledAfter = time.Minute
	// maxUncertain is how many writes may be without a known outcome before
	// nothing more is written: each takes its time and is repeated.
	maxUncertain = 10
)

// refusal is why and until when a node is left alone.
type refusal struct {
	until time.Time
	words string // the API server's
	// told: to write the reason was tried as well.
	told bool
}

// unsettled is a write whose outcome is not known.
type unsettled struct {
	since time.Time
	why   string // what the last try came to
}

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
	// Each term asks for itself: what the last leader was told does not count.
	l.gates = gate.New(gate.Options{URL: c.PrometheusURL, TokenFile: c.PrometheusTokenFile, Version: c.Version, Changed: l.wake, Log: c.log})
	watching.Go(func() { l.gates.Run(ctx) })
	c.lease.listenTo(l.leaseChanged)
	defer c.lease.listenTo(nil)
	l.events = newEvents(ctx, c.client, c.log)
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
		return "its term ended; it stands again"
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
		l.gropes()
		return l.RetryPeriod
	}
	l.sees(s.Unread)
	l.events.looked(&s, l.candidate.lease.now(), l.view.Get)
	out := rollout.Decide(s)
	l.gates.Ask(gatesOf(s.Policies, out.Figures.Policies))
	took := time.Since(began)
	l.rest = min(took, maxRest)
	l.statuses.are(out.Figures.Policies)
	if l.Decided != nil {
		l.Decided(took, &s, &out)
	}
	nodes := make(map[string]*turn.Node, len(s.Nodes))
	for i := range s.Nodes {
		nodes[s.Nodes[i].Name] = &s.Nodes[i]
	}
	l.events.decided(s.Now, nodes, &out)
	l.events.judged(out.Figures.Policies, l.policies.Get)
	left := l.carryOut(ctx, out.Verdicts, nodes)
	next := min(leadRound, left, due, l.refusals())
	if !out.Again.IsZero() {
		next = min(next, max(time.Until(out.Again), 10*time.Millisecond))
	}
	return next
}

// gropes is a round without Nodes or Lease in view. A leader that cannot see
// keeps everybody else from leading: it says so, and in the end gives its term
// back. Another candidate may see more.
func (l *leader) gropes() {
	if l.blind.IsZero() {
		l.blind = time.Now()
	}
	since := time.Since(l.blind)
	if since < l.RenewDeadline {
		return
	}
	why := l.unseen()
	if since >= blindTerms*l.LeaseDuration {
		l.candidate.log.Warn("gives its term back", "epoch", l.epoch, "why", why)
		l.over(blocker{why})
		return
	}
	l.say(Status{Candidate: true, Leader: true, Epoch: l.epoch, Why: why.Error(), Blocked: true})
}

// unseen says what it is that a leader does not see, and why.
func (l *leader) unseen() error {
	what, err := "its own term in the Lease", l.candidate.lease.Err()
	switch {
	case !l.view.Listed():
		what, err = "the Nodes", l.view.Err()
	case !l.policies.Listed():
		what, err = "the DisruptionPolicies", l.policies.Err()
	}
	if err == nil {
		return fmt.Errorf("it leads, and has not seen %s yet", what)
	}
	return fmt.Errorf("it leads, and does not see %s: %w", what, err)
}

// sees is a round with all in view; unread is why nothing is granted by the
// policies in it, or "".
func (l *leader) sees(unread string) {
	if l.blind.IsZero() && l.told == unread {
		return
	}
	l.blind, l.told = time.Time{}, unread
	s := Status{Candidate: true, Leader: true, Epoch: l.epoch}
	if unread != "" {
		s.Why, s.Blocked = "it leads and grants nothing, because it cannot read the DisruptionPolicies again: "+unread, true
	}
	l.say(s)
}

// snapshot returns the cluster as this leader sees it, and how soon another one is
// due although nothing changes. ok is false before the leader has seen it all, and
// when the Lease that it sees is not its own.
func (l *leader) snapshot() (s rollout.Snapshot, due time.Duration, ok bool) {
	if !l.view.Listed() || !l.policies.Listed() {
		return s, 0, false
	}
	s = rollout.Snapshot{
		Now: time.Now().Truncate(time.Millisecond).UTC(), Epoch: l.epoch, Self: l.self,
		LedUntil: l.lock.ledUntil(), Rewound: l.candidate.rewoundAt(),
		Policies: policy.NewSet(l.policies.Compiled()...), Gates: answered(l.gates), Uncertain: map[string]bool{}, Unsettled: map[string]string{}, Refused: map[string]string{},
	}
	lease := l.candidate.lease.now()
	if holderOf(lease) != l.epoch {
		// Not seen yet, or somebody else's: the elector ends the term.
		return s, 0, false
	}
	s.Unread, due = unread(l.policies.Age(), l.policies.Err())
	s.StopText, s.Stopped = lease.Annotations[v1alpha1.AnnotationStop]
	l.writes(&s)
	s.Nodes = l.facts.of(l.view.All())
	return s, due, true
}

// writes adds this term's refused writes, and those with an unknown outcome, to
// the snapshot.
func (l *leader) writes(s *rollout.Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, u := range l.uncertain {
		s.Uncertain[name] = true
		if time.Since(u.since) >= unsettledAfter {
			s.Unsettled[name] = fmt.Sprintf("since %s UTC: %s", u.since.UTC().Format(time.TimeOnly), u.why)
		}
	}
	for name, r := range l.refused {
		if time.Now().Before(r.until) {
			s.Refused[name] = r.words
		}
	}
}

// carryOut writes what the verdicts say: first what goes on and gives back,
// then the grants, then what becomes of nodes in no turn, last the reasons. It
// returns how soon another round is due for what it left undone.
func (l *leader) carryOut(ctx context.Context, verdicts []rollout.Verdict, nodes map[string]*turn.Node) time.Duration {
	for _, kind := range []moveKind{inTurn, granted, bulk} {
		done := 0
		for _, v := range verdicts {
			if v.Move == nil || kindOf(v.Move) != kind || l.leftAlone(v.Node, &v) {
				continue
			}
			if ctx.Err() != nil || kind == granted && l.uncertainNow() > 0 || l.uncertainNow() >= maxUncertain {
				return leadRound // a write of this round went astray: no more grants
			}
			if kind == bulk && done == maxBulk {
				return 0
			}
			l.write(ctx, nodes[v.Node], patchOf(nodes[v.Node], &v), &v)
			done++
		}
	}
	return l.tellHeld(ctx, verdicts, nodes)
}

// moveKind is the order in which moves are written.
type moveKind int

const (
	inTurn  moveKind = iota // a turn goes on, gives back or ends
	granted                 // a turn begins
	bulk                    // neither
)

func kindOf(m *rollout.Move) moveKind {
	switch {
	case m.Disturbs():
		return granted
	case m.From.InTurn() || m.To.InTurn():
		return inTurn
	}
	return bulk
}

func (l *leader) uncertainNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.uncertain)
}

// answersMissing reports whether the API server may be away: the outcome of a
// write has just become unknown, or the outcome of many. Writing reasons can wait
// then.
func (l *leader) answersMissing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.uncertain {
		if time.Since(u.since) < handoverAfter {
			return true
		}
	}
	return len(l.uncertain) >= maxUncertain
}

// refusals forgets the refusals whose time is over. It returns the time until the
// next one ends, or until a write counts as unsettled.
func (l *leader) refusals() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := refusedFor
	for _, u := range l.uncertain {
		if left := unsettledAfter - time.Since(u.since); left > 0 {
			next = min(next, left)
		}
	}
	for name, r := range l.refused {
		left := time.Until(r.until)
		if left <= 0 {
			delete(l.refused, name)
			continue
		}
		next = min(next, left)
	}
	return next
}

// leave leaves a node alone for a while, because of err. It asks for another
// round: what was meant for this node may be another's.
func (l *leader) leave(name string, d time.Duration, err error, told bool) {
	l.mu.Lock()
	l.refused[name] = refusal{time.Now().Add(d), "the coordinator's write: " + err.Error(), told}
	l.mu.Unlock()
	l.wake()
}

// leftAlone reports whether nothing is written to the node at present: a write
// to it was refused lately, or the outcome of one is not known.
func (l *leader) leftAlone(name string, v *rollout.Verdict) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused, found := l.refused[name]
	_, uncertain := l.uncertain[name]
	return uncertain || found && time.Now().Before(refused.until) && (v.Move != nil || refused.told)
}

// write sends one patch, to a node that is not left alone, and takes in what
// became of it.
func (l *leader) write(ctx context.Context, n *turn.Node, p kube.Patch, v *rollout.Verdict) {
	if !l.lock.fresh(l.RenewDeadline) {
		return
	}
	l.beat.Alive()
	obj, outcome, err := kube.Write(ctx, l.client, p)
	switch outcome {
	case kube.Written:
		l.logWrite(n, v, obj.Annotations[v1alpha1.AnnotationTurn])
		l.events.wrote(n, v, obj.Annotations[v1alpha1.AnnotationTurn])
		l.view.Overlay(obj)
		if v.Move != nil {
			l.wake() // what becomes of the others may follow from it
		}
	case kube.Conflict:
		// The Node changed after the decision: the leader drops the decision.
		l.log.Debug("a decision came too late", "node", n.Name, "err", err)
		l.view.Overlay(obj)
		l.wake()
	case kube.Gone:
		l.view.Forget(p.Node, p.ResourceVersion)
		l.wake()
	case kube.Refused:
		systemd.LogEvent(l.log, slog.LevelError, v1alpha1.MessageWriteRefused, "the API server refuses a decision", "node", n.Name, "err", err, "again_in", refusedFor)
		l.events.refuses(n, l.client.Explain(err).Text)
		l.leave(n.Name, refusedFor, err, v.Move == nil)
	case kube.Unknown:
		if ctx.Err() != nil {
			return // the term is over, and with it the request
		}
		l.log.Warn("the outcome of a write is not known; nothing is granted until it is", "node", n.Name, "err", err)
		l.uncertainAbout(n.Name, err)
		l.settling.Go(func() { l.settle(ctx, p) })
	}
}

// uncertainAbout records that the outcome of a write to the node is unknown, and
// why.
func (l *leader) uncertainAbout(node string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.uncertain[node]
	if u.since.IsZero() {
		u.since = time.Now()
	}
	u.why = l.client.Explain(err).Text
	l.uncertain[node] = u
}

// settle repeats a write until its outcome is known.
func (l *leader) settle(ctx context.Context, p kube.Patch) {
	obj, err := kube.Settle(ctx, l.client, p, func(err error) { l.uncertainAbout(p.Node, err) })
	if err != nil {
		return // the term is over
	}
	if obj == nil {
		l.view.Forget(p.Node, p.ResourceVersion)
	} else {
		l.view.Overlay(obj)
	}
	l.mu.Lock()
	delete(l.uncertain, p.Node)
	l.mu.Unlock()
	l.wake()
}

// leaseChanged is told of every version of the Lease. Its own renewals are no
// reason to decide.
func (l *leader) leaseChanged(before, now *coordinationv1.Lease) {
	l.logStop(before, now)
	if before == nil || now == nil || holderOf(before) != holderOf(now) || stopOf(before) != stopOf(now) {
		l.wake()
	}
}

// stopOf is the emergency stop on a Lease, as its presence and its words.
func stopOf(lease *coordinationv1.Lease) (stop struct {
	text string
	set  bool
}) {
	stop.text, stop.set = lease.Annotations[v1alpha1.AnnotationStop]
	return stop
}
