package coordinator

import (
	"errors"
	"fmt"
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

// reportBlind is a round without Nodes or Lease in view. A leader that cannot see
// keeps everybody else from leading: it says so, and in the end gives its term
// back. Another candidate may see more.
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

// reportSight reports a round with all in view; unread is why nothing is granted by the
// policies in it, or "".
func (l *leader) reportSight(unread string) {
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
		// Not seen yet, or another holder's: the elector ends the term.
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

// leaseChanged receives every version of the Lease. The leader's own renewals are not a
// reason to decide.
func (l *leader) leaseChanged(before, now *coordinationv1.Lease) {
	l.logStop(before, now)
	if before == nil || now == nil || holderOf(before) != holderOf(now) || stopOf(before) != stopOf(now) {
		l.wake()
	}
}

// stopOf returns the emergency stop on a Lease: its reason, and whether it is set.
func stopOf(lease *coordinationv1.Lease) (stop struct {
	text string
	set  bool
}) {
	stop.text, stop.set = lease.Annotations[v1alpha1.AnnotationStop]
	return stop
}

// facts are what the core knows of each Node, by name, read once for each
// version of it: one of five thousand Nodes changes many times a second, and
// reading the records of all the others again would be most of a leader's work.
type facts map[string]fact

type fact struct {
	from *corev1.Node // as the view handed it out: shared, and never changed
	node turn.Node
}

// of returns the facts of the Nodes, in their order, and forgets all others.
// What it returns shares the records that the facts point to, which nobody
// changes.
func (f *facts) of(nodes []*corev1.Node) []turn.Node {
	if *f == nil || len(*f) > len(nodes) {
		kept := make(facts, len(nodes))
		for _, n := range nodes {
			if known, ok := (*f)[n.Name]; ok {
				kept[n.Name] = known
			}
		}
		*f = kept
	}
	all := make([]turn.Node, 0, len(nodes))
	for _, n := range nodes {
		known := (*f)[n.Name]
		if known.from != n {
			known = fact{n, turn.FromNode(n)}
			(*f)[n.Name] = known
		}
		all = append(all, known.node)
	}
	return all
}

// awaitedGates are the gates that somebody waits for: those of the policies that have
// a node which wants something and is in no turn. Nobody asks the others, and so
// the first turn of a rollout waits for a first answer.
func awaitedGates(policies policy.Set, figures []rollout.PolicyFigures) []gate.Query {
	waits := map[string]bool{}
	for i := range figures {
		waits[figures[i].Name] = figures[i].Wanting > figures[i].InTurn
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

// answered are the answers to the gates, as a decision takes them.
func answered(gates *gate.Gates) map[string]rollout.Gate {
	all := map[string]rollout.Gate{}
	for key, a := range gates.Answers() {
		all[rollout.GateKey(key.Policy, key.Gate)] = rollout.Gate{Open: a.Open, Detail: a.Detail}
	}
	return all
}

// maxUnread is how long a leader grants by policies that it cannot read again. Within
// that they are listed again if nothing is wrong. Meanwhile a user may have paused
// them, and hosts do not check for that.
const maxUnread = time.Minute

// unread returns why nothing is granted by policies of that age (see
// [kube.Watch.Age]), or "", and how soon the answer may differ although nothing
// happens. err is why they cannot be read at present. That the API server does not
// serve the kind is an answer.
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
