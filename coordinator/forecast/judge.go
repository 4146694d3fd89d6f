package forecast

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// judge computes for each node whether it would be held, and its position in the queue.
//
// To find out what holds a node, judge applies the changes to that node only. Otherwise
// all nodes but one would be held, only because they take turns. To find the position,
// judge applies the changes to all nodes at once.
func (q *Question) judge() {
	now := rollout.Decide(q.in.Snapshot)
	then, together, alone := q.in.Snapshot, now, map[string]rollout.Verdict(nil)
	if len(q.in.Asked) > 0 {
		then.Nodes = slices.Clone(q.in.Nodes)
		for _, s := range q.nodes {
			if !s.InTurn() {
				then.Nodes[q.byName[s.Name]] = s.then
			}
		}
		together = rollout.Decide(then)
		alone = q.alone(&now, &together)
	}
	begins, notBefore := q.queue(then, &together)
	gated := map[string]bool{} // policies for whose gates the coordinator holds nodes
	for i := range q.in.Nodes {
		if n := &q.in.Nodes[i]; n.Held == v1alpha1.ReasonGateClosed && q.in.NoLeader == "" {
			gated[verdictOf(&now, n.Name).Policy] = true
		}
	}
	for _, s := range q.nodes {
		v, asked := alone[s.Name]
		if !asked {
			v = verdictOf(&now, s.Name)
		}
		s.judged(v, q.in.NoLeader)
		if s.Outcome == Goes || s.Outcome == Held {
			s.describeTurn(q.in.Now, &together, gated, begins, notBefore)
		} else {
			s.own.Ahead = nil
		}
	}
}

// verdictOf returns a node's verdict. Verdicts are ordered by name.
func verdictOf(out *rollout.Outcome, name string) rollout.Verdict {
	i, _ := slices.BinarySearchFunc(out.Verdicts, name, func(v rollout.Verdict, name string) int { return cmp.Compare(v.Node, name) })
	return out.Verdicts[i]
}

// alone returns the verdict on each node with the changes applied to that node only. now
// is the decision without the changes, together the decision with the changes on all
// nodes.
//
// A separate decision is needed only if another node may have taken the slot. A node that
// is granted its turn together with the others is also granted it alone, and a reason that
// is about the node or its policy holds it in both cases. The slots run out from the front
// of the queue to the back, so a Budget verdict also holds for all nodes behind that one.
func (q *Question) alone(now, together *rollout.Outcome) map[string]rollout.Verdict {
	waits := map[string]bool{}
	for _, name := range now.Queue() {
		waits[name] = true
	}
	ahead, before := map[string]int{}, 0 // how many nodes that wait already come before each node
	for _, name := range together.Queue() {
		if ahead[name] = before; waits[name] {
			before++
		}
	}
	inOrder := slices.Clone(q.nodes)
	slices.SortStableFunc(inOrder, func(a, b *subject) int { return cmp.Compare(ahead[a.Name], ahead[b.Name]) })
	seen := map[kind]slots{}
	all := make(map[string]rollout.Verdict, len(q.nodes))
	for _, s := range inOrder {
		v := verdictOf(together, s.Name)
		if v.Held == v1alpha1.ReasonBudget || v.Held == v1alpha1.ReasonControlPlane {
			k, at := kind{v.Policy, s.Unschedulable || s.Mark}, ahead[s.Name]
			known, spared := seen[k].at(at)
			if !spared || s.ControlPlane {
				known = q.decide(s)
			}
			if v = known; !s.ControlPlane {
				seen[k] = slots{true, at, v}
			}
		}
		all[s.Name] = v
	}
	return all
}

// decide returns the verdict on the node with the changes applied to that node only.
func (q *Question) decide(s *subject) rollout.Verdict {
	i := q.byName[s.Name]
	was := q.in.Nodes[i]
	q.in.Nodes[i] = s.then
	out := rollout.Decide(q.in.Snapshot)
	q.in.Nodes[i] = was
	return verdictOf(&out, s.Name)
}

// kind identifies nodes that are equal to the budgets except for their place in the queue.
type kind struct {
	policy      string
	unavailable bool // the node already counts as unavailable
}

// slots is the last decision about a node of a kind, and the node's place.
type slots struct {
	known   bool
	place   int
	verdict rollout.Verdict
}

// at returns the verdict on a node in the given place, which must not be before s.place.
// ok is false if the last decision does not determine it.
func (s slots) at(place int) (v rollout.Verdict, ok bool) {
	return s.verdict, s.known && (place == s.place || s.verdict.Held == v1alpha1.ReasonBudget)
}

// queue counts how many nodes come before each node, and returns when the nodes are
// expected to be granted their turns. The queue is empty under the emergency stop, so
// queue computes both as if the stop were lifted.
func (q *Question) queue(then rollout.Snapshot, out *rollout.Outcome) (at, notBefore map[string]time.Time) {
	lifted := out
	if then.Stopped {
		then.Stopped = false
		lifted = new(rollout.Decide(then))
	}
	ahead, place := map[string]int{}, map[string]int{}
	for _, name := range lifted.Queue() {
		p := verdictOf(out, name).Policy
		place[name] = ahead[p]
		ahead[p]++
	}
	for _, s := range q.nodes {
		if n, ok := place[s.Name]; ok {
			s.own.Ahead = &n
		}
	}
	return begins(then, lifted)
}

// judged sets the node's outcome from its verdict.
func (s *subject) judged(v rollout.Verdict, noLeader string) {
	s.Policy = v.Policy
	hold := func(reason v1alpha1.Reason, why string) { s.Outcome, s.Held, s.Why = Held, reason, why }
	switch n := s.Node; {
	case n.InTurn():
		s.Outcome, s.State, s.Held, s.Why = InTurn, n.State, v.Held, v.Detail
	case len(s.Changes) > 0 && !s.plan.Wants.Something():
		s.Outcome = Nothing // even if something holds the node
	case !manages(n) && (n.Host != nil || n.Managed != nil || n.Detached != nil || len(s.Changes) == 0):
		s.Outcome = NotManaged
		s.Why = notManaged(n)
	case !manages(n):
		hold(v1alpha1.ReasonHostSilent, "lockkeeper has never reported from this node")
	case !n.HostReported():
		hold(v1alpha1.ReasonHostSilent, "no report from its present boot")
	case !s.plan.Wants.Something():
		s.Outcome = Nothing
	case v.Held == v1alpha1.ReasonHeldBack:
		hold(v.Held, "its plan would boot a version that a policy holds back")
	case v.Held != v1alpha1.ReasonNone:
		hold(v.Held, v.Detail)
	case n.Mark:
		hold(v1alpha1.ReasonOwnCordonLeft, "")
	case n.Paused != nil:
		hold(v1alpha1.ReasonPaused, n.Paused.Reason)
	case noLeader != "":
		hold(v1alpha1.ReasonNoCoordinator, noLeader)
	default:
		s.Outcome = Goes
	}
	if s.Held != "" && s.Why == "" {
		s.Why = s.Held.Doc().Means
	}
}

func notManaged(n *turn.Node) string {
	switch {
	case n.Managed != nil && !*n.Managed:
		return v1alpha1.LabelManaged + "=false"
	case n.Detached != nil:
		return "it is detached"
	case n.Host != nil:
		return "managed_by_default is false in its host's file"
	}
	return "lockkeeper has never reported from this node"
}

// describeTurn fills in what the turn would do, and when.
func (s *subject) describeTurn(now time.Time, out *rollout.Outcome, gated map[string]bool, begins, notBefore map[string]time.Time) {
	p := s.match.Policy
	if p == nil || len(p.Problems) > 0 || !s.plan.Wants.Something() {
		s.own.Ahead = nil
		return
	}
	s.stages(p)
	r := &Rollout{}
	for i := range out.Policies {
		if f := &out.Policies[i]; f.Name == p.Name {
			r.Allowed, r.Unavailable = f.Allowed, f.Unavailable
		}
	}
	skips := slices.ContainsFunc(s.Changes, func(c Change) bool { return c.Request != nil && c.Request.Now })
	if len(p.Windows)+len(p.Blackouts) > 0 && !skips {
		open, until, next := p.OpenUntil(now, p.ExpectedDuration)
		if !until.IsZero() {
			r.Closes = new(until.UTC())
		}
		if b := cmp.Or(p.Blackout(now), p.Blackout(until)); b != nil {
			r.Blackout, r.BlackoutEnds = b.Name, new(b.To.UTC())
		}
		switch {
		case open:
		case next.IsZero():
			r.NeverOpens = true
		default:
			r.Opens = new(next.UTC())
		}
		if p.Terms.OnClose == v1alpha1.OnCloseCancel {
			r.OnClose = p.Terms.OnClose
		}
	}
	if !skips {
		for _, g := range p.Gates {
			r.Gates = append(r.Gates, g.Name)
		}
		r.GateClosed = len(p.Gates) > 0 && gated[p.Name]
	}
	s.Rollout = r
	if at, known := begins[s.Name]; known && s.own.Ahead != nil {
		s.own.BeginsIn = &metav1.Duration{Duration: at.Sub(now)}
	} else if at, known := notBefore[s.Name]; known {
		s.own.NotBefore = new(at.UTC())
	}
}

// stages fills in the stages of the turn under the policy.
func (s *subject) stages(p *policy.Policy) {
	g := v1alpha1.Grant{Wants: s.plan.Wants, Drains: s.Drains, Terms: p.Terms}
	plan, waits := turn.PlanOf(&g), rollout.WaitsIn(s.Node, &g)
	at, ok := turn.Next(v1alpha1.StateIdle, turn.Granted, plan, waits)
	for ok && at.InTurn() {
		stage := Stage{State: at, Hooks: p.Terms.Hooks(at)}
		switch {
		case at.HookStage():
			if s.Host != nil && slices.Contains(s.Host.HookStages, at) {
				stage.HostHooks = p.Terms.HostHooks
			}
			stage.Volumes = at == v1alpha1.StateBeforeReboot && p.Terms.WaitForVolumeDetach && g.Drains
		case at == v1alpha1.StateDraining:
			stage.Limit.Duration, stage.OnTimeout = p.Terms.Limit(at), p.Terms.DrainTimeout
		case at != v1alpha1.StateUncordoning && p.Terms.DrainTimeout != v1alpha1.OnTimeoutWait:
			stage.Limit.Duration, stage.OnTimeout = p.Terms.Limit(at), v1alpha1.OnTimeoutAbort // unless the host has begun
		default:
			stage.Limit.Duration, stage.OnTimeout = p.Terms.Limit(at), v1alpha1.OnTimeoutWait
		}
		s.Stages = append(s.Stages, stage)
		at, ok = turn.Next(at, turn.Progressed, plan, waits)
	}
}
