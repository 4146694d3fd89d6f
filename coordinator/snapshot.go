package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// reportBlind handles a round without a view of the cluster. Such a leader keeps all other
// candidates from leading. So after a while it reports the problem, and later it gives up
// its term, because another candidate may have a view.
func (l *leader) reportBlind() {
	if l.blind.IsZero() {
		l.blind = time.Now()
	}
	since := time.Since(l.blind)
	if since < l.RenewDeadline {
		return
	}
	why := l.unseen()
	if since >= blindTerms*l.LeaseDuration {
		l.Log.Warn("gives up its term", "epoch", l.epoch, "why", why)
		l.over(blocker{why})
		return
	}
	l.say(Status{Candidate: true, Leader: true, Epoch: l.epoch, Why: why.Error(), Blocked: true})
}

// unseen returns an error that says what is missing in the leader's view, and why.
func (l *leader) unseen() error {
	what, err := "its own term in the Lease", l.lease.Err()
	switch {
	case !l.seesNodes():
		what, err = "the Nodes", l.view.Err()
		if err == nil && l.view.Listed() {
			err = errors.New("the API server has not answered yet")
		}
	case !l.policies.Listed():
		what, err = "the DisruptionPolicies", l.policies.Err()
	}
	if err == nil {
		return fmt.Errorf("it leads, and has not seen %s yet", what)
	}
	return fmt.Errorf("it leads, and does not see %s: %w", what, err)
}

// reportSight handles a round with a view of the cluster. unread is why the leader grants
// nothing by its policies, or "".
func (l *leader) reportSight(unread string) {
	if l.blind.IsZero() && l.unread == unread {
		return
	}
	l.blind, l.unread = time.Time{}, unread
	s := Status{Candidate: true, Leader: true, Epoch: l.epoch}
	if unread != "" {
		s.Why, s.Blocked = "it leads and grants nothing, because it cannot read the DisruptionPolicies again: "+unread, true
	}
	l.say(s)
}

// snapshot returns the cluster as this leader sees it, and how soon another snapshot is
// due even if nothing changes. ok is false if a part is not listed yet, if the Nodes cannot be
// read again for too long, or if the Lease in the view does not name this term.
func (l *leader) snapshot() (s rollout.Snapshot, due time.Duration, ok bool) {
	if !l.seesNodes() || !l.policies.Listed() {
		return s, 0, false
	}
	s = rollout.Snapshot{
		Now: time.Now().Truncate(time.Millisecond).UTC(), Epoch: l.epoch, Self: l.self,
		LedUntil: l.lock.ledUntil(), Rewound: l.rewoundAt(),
		LedBy:    l.lock.ledBy(),
		Policies: policy.NewSet(l.policies.Compiled()...), Gates: answered(l.gates), Uncertain: map[string]bool{}, Unsettled: map[string]string{}, Refused: map[string]string{},
	}
	lease := l.lease.now()
	if holderOf(lease) != l.epoch {
		// The watch is behind, or the Lease has another holder and the elector ends the
		// term.
		return s, 0, false
	}
	s.Unread, due = unread(l.policies.Age(), l.policies.Err())
	if age := l.view.Age(); age > 0 {
		due = min(due, max(maxUnread-age, 0)+time.Millisecond)
	}
	s.StopText, s.Stopped = lease.Annotations[v1alpha1.AnnotationStop]
	was := l.stopped
	s.StoppedSince = l.stoppedSince(s.Stopped, s.Now)
	// The outcomes of writes before the Nodes: a write that settles in between is seen on its
	// Node. The other way around, neither would show it.
	l.writes(&s)
	s.Nodes = l.facts.of(l.view.All())
	if !s.Stopped && !was.IsZero() {
		l.stopOver(&s, was)
	}
	s.StopMissed = l.stopMissed(s.Uncertain)
	return s, due, true
}

// seesNodes reports whether the leader has listed the Nodes, and has a watch of them or lost it
// less than [maxUnread] ago. Without that, it would not see that others cordon Nodes, or that
// Nodes are not Ready, and would grant turns beyond the budget.
func (l *leader) seesNodes() bool { return l.view.Listed() && l.view.Age() < maxUnread }

// stopOver notes the nodes that were in a turn, or may have been, under a stop that has just
// ended.
func (l *leader) stopOver(s *rollout.Snapshot, since time.Time) {
	if l.missed == nil {
		l.missed = map[string]rollout.Stop{}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.InTurn() || s.Uncertain[n.Name] {
			l.missed[n.Name] = l.missed[n.Name].And(rollout.Stop{Since: since, Until: s.Now})
		}
	}
}

// stopMissed returns the nodes on which a stop that is over is not recorded, and forgets the
// others. What it cannot know yet, because the outcome of a write is unknown, it keeps.
func (l *leader) stopMissed(uncertain map[string]bool) map[string]rollout.Stop {
	maps.DeleteFunc(l.missed, func(name string, stop rollout.Stop) bool {
		if uncertain[name] {
			return false
		}
		n := l.facts.node(name)
		// The last case: the stage began after the stop.
		return n == nil || !n.InTurn() || n.Grant == nil || n.Grant.Epoch != l.epoch || n.Grant.PausedSince != nil || !stop.Until.After(n.Grant.StageAt)
	})
	return l.missed
}

// stoppedSince returns since when the leader has seen the emergency stop that is set now.
func (l *leader) stoppedSince(stopped bool, now time.Time) time.Time {
	switch {
	case !stopped:
		l.stopped = time.Time{}
	case l.stopped.IsZero():
		l.stopped = now
	}
	return l.stopped
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
			s.Refused[name] = r.message
		}
	}
}

// leaseChanged receives every version of the Lease. The leader's own renewals are not a
// reason to decide.
func (l *leader) leaseChanged(before, now *coordinationv1.Lease) {
	l.logStop(before, now)
	if before == nil || now == nil || holderOf(before) != holderOf(now) || stopOf(before) != stopOf(now) {
		l.wake()
	}
}

// stop is an emergency stop: whether it is set, and its reason.
type stop struct {
	text string
	set  bool
}

// stopOf returns the emergency stop on a Lease. A missing Lease is a stop too.
func stopOf(lease *coordinationv1.Lease) stop {
	if lease == nil {
		return stop{"there is no Lease", true}
	}
	text, set := lease.Annotations[v1alpha1.AnnotationStop]
	return stop{text, set}
}

// facts caches what turn.FromNode returns for each version of a Node, in the order of their names.
// In a fleet of five thousand, Nodes change many times a second. Without the cache, parsing all
// Nodes each time would be most of a leader's work.
type facts struct {
	from []*corev1.Node // from the view; shared and never changed
	all  []turn.Node
	at   map[string]int // the index in the slices, by name
}

// of returns the facts of the Nodes, which are in the order of their names, and drops all others
// from the cache. The next call overwrites the result. The caller must not change it, nor the
// records that it points to.
func (f *facts) of(nodes []*corev1.Node) []turn.Node {
	if len(nodes) != len(f.from) {
		return f.rebuild(nodes)
	}
	for i, n := range nodes {
		switch was := f.from[i]; {
		case was == n:
		case was.Name == n.Name:
			f.from[i], f.all[i] = n, turn.FromNode(n)
		default:
			return f.rebuild(nodes)
		}
	}
	return f.all
}

// node returns the node of that name, as in the last result of of, or nil.
func (f *facts) node(name string) *turn.Node {
	if i, known := f.at[name]; known {
		return &f.all[i]
	}
	return nil
}

// rebuild is like of, for when Nodes have been created or deleted.
func (f *facts) rebuild(nodes []*corev1.Node) []turn.Node {
	old := *f
	*f = facts{from: slices.Clone(nodes), all: make([]turn.Node, len(nodes)), at: make(map[string]int, len(nodes))}
	for i, n := range nodes {
		f.at[n.Name] = i
		if was, known := old.at[n.Name]; known && old.from[was] == n {
			f.all[i] = old.all[was]
		} else {
			f.all[i] = turn.FromNode(n)
		}
	}
	return f.all
}

// awaitedGates returns the gates that nodes wait for: those of each policy with a node that
// wants something and is in no turn. The other gates are not queried, so the first turn of
// a rollout waits for the first answer.
func awaitedGates(policies policy.Set, figures []rollout.PolicyFigures) []gate.Query {
	waits := map[string]bool{}
	for i := range figures {
		waits[figures[i].Name] = figures[i].Waiting > 0
	}
	var all []gate.Query
	for i := range policies {
		p := &policies[i]
		if !waits[p.Name] || len(p.Problems) > 0 {
			continue
		}
		for _, g := range p.Gates {
			all = append(all, gate.Query{Key: gate.Key{Policy: p.Name, Gate: g.Name}, Expr: g.Query})
		}
	}
	return all
}

// answered returns the answers of the gates in the form that Decide takes.
func answered(gates *gate.Gates) map[string]rollout.Gate {
	all := map[string]rollout.Gate{}
	for key, a := range gates.Answers() {
		all[rollout.GateKey(key.Policy, key.Gate)] = rollout.Gate{Open: a.Open, Detail: a.Detail}
	}
	return all
}

// maxUnread is how long a leader still grants by policies that it cannot read again, and decides
// by Nodes that it cannot read again. If nothing is wrong, it lists them again within that time. A
// user may have paused a policy meanwhile, and hosts do not check for that.
const maxUnread = time.Minute

// unread returns why nothing is granted by policies of that age (see [kube.Watch.Age]), or
// "", and how soon the result may change even if nothing happens. err is why they cannot be
// read now. kube.ErrNotServed does not count as a failed read.
func unread(age time.Duration, err error) (why string, due time.Duration) {
	switch {
	case age == 0, errors.Is(err, kube.ErrNotServed):
		return "", leadRound
	case age < maxUnread:
		return "", min(leadRound, maxUnread-age)
	case err == nil:
		err = errors.New("the API server has not answered yet")
	}
	return err.Error(), kube.CatchUp
}
