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

// judge says of each node whether it would be held, and where in its queue it
// stands.
//
// What holds a node is asked of it alone, as if the changes came to no other: that
// those asked about have to take turns is no reason to say that all but one are
// held. How many come before it is asked as if they came to all at once, because
// they will.
func (q *Question) judge() {
	now := rollout.Decide(q.in.Snapshot)
	together, alone := now, map[string]rollout.Verdict(nil)
	var begins map[string]time.Time
	if len(q.in.Asked) > 0 {
		then := q.in.Snapshot
		then.Nodes = slices.Clone(q.in.Nodes)
		for _, s := range q.nodes {
			if !s.InTurn() {
				then.Nodes[q.byName[s.Name]] = s.then
			}
		}
		together = rollout.Decide(then)
		alone = q.alone(&now, &together)
		begins = q.queue(then, &together)
	} else {
		begins = q.queue(q.in.Snapshot, &now)
	}
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
			s.course(q.in.Now, &together, gated, begins)
		} else {
			s.own.Ahead = nil
		}
	}
}

// verdictOf finds a node's verdict, which stand in the order of names.
func verdictOf(out *rollout.Outcome, name string) rollout.Verdict {
	i, _ := slices.BinarySearchFunc(out.Verdicts, name, func(v rollout.Verdict, name string) int { return cmp.Compare(v.Node, name) })
	return out.Verdicts[i]
}

// alone judges each node as if the changes came to it alone. now is the decision
// without them, together the one with all.
//
// A node that is granted its turn beside the others is granted it alone as well, and
// what holds it for its own sake, or all of its policy's nodes, does so too. Only
// where others may have taken its slot is there anything to decide; and slots are
// only taken, so that the first in the queue for whom none was left speaks for those
// behind it.
func (q *Question) alone(now, together *rollout.Outcome) map[string]rollout.Verdict {
	waits := make(map[string]bool, len(now.Queue))
	for _, name := range now.Queue {
		waits[name] = true
	}
	ahead, before := map[string]int{}, 0 // how many that wait already come before it
	for _, name := range together.Queue {
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

// decide asks what would be if the changes came to one node alone.
func (q *Question) decide(s *subject) rollout.Verdict {
	i := q.byName[s.Name]
	was := q.in.Nodes[i]
	q.in.Nodes[i] = s.then
	out := rollout.Decide(q.in.Snapshot)
	q.in.Nodes[i] = was
	return verdictOf(&out, s.Name)
}

// kind are nodes that differ in nothing that a budget is about, but in how many
// come before them.
type kind struct {
	policy      string
	unavailable bool // it counts already
}

// slots is what was decided last of a kind, and in what place.
type slots struct {
	known   bool
	place   int
	verdict rollout.Verdict
}

// at is what that says of a node in the same place, or behind it.
func (s slots) at(place int) (v rollout.Verdict, ok bool) {
	return s.verdict, s.known && (place == s.place || s.verdict.Held == v1alpha1.ReasonBudget)
}

// queue counts how many come before each node, and returns when the nodes are expected
// to be granted their turns. Under the emergency stop there is no queue: both are as if
// the stop were lifted.
func (q *Question) queue(then rollout.Snapshot, out *rollout.Outcome) map[string]time.Time {
	lifted := out
	if then.Stopped {
		then.Stopped = false
		lifted = new(rollout.Decide(then))
	}
	names := lifted.Queue
	ahead, place := map[string]int{}, map[string]int{}
	for _, name := range names {
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

// judged says what becomes of the node by its verdict.
func (s *subject) judged(v rollout.Verdict, noLeader string) {
	s.Policy = v.Policy
	hold := func(reason v1alpha1.Reason, why string) { s.Outcome, s.Held, s.Why = Held, reason, why }
	switch n := s.Node; {
	case n.InTurn():
		s.Outcome, s.State, s.Held, s.Why = InTurn, n.State, v.Held, v.Detail
	case len(s.Changes) > 0 && !s.plan.Wants.Something():
		s.Outcome = Nothing // whoever may hold the node
	case !looksAfter(n) && (n.Host != nil || n.Managed != nil || n.Detached != nil || len(s.Changes) == 0):
		s.Outcome = NotManaged
		s.Why = notManaged(n)
	case !looksAfter(n):
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

// course says what the turn would be, and when.
func (s *subject) course(now time.Time, out *rollout.Outcome, gated map[string]bool, begins map[string]time.Time) {
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
	if len(p.Windows) > 0 {
		open, until, next := policy.OpenUntil(p.Windows, now, p.ExpectedDuration)
		if !until.IsZero() {
			r.Closes = new(until.UTC())
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
	for _, g := range p.Gates {
		r.Gates = append(r.Gates, g.Name)
	}
	r.GateClosed = len(p.Gates) > 0 && gated[p.Name]
	s.Rollout = r
	if at, known := begins[s.Name]; known && s.own.Ahead != nil {
		s.own.BeginsIn = &metav1.Duration{Duration: at.Sub(now)}
	}
}

// stages are those of the turn under the policy.
func (s *subject) stages(p *policy.Policy) {
	g := v1alpha1.Grant{Wants: s.plan.Wants, Drains: s.Drains, Terms: p.Terms}
	plan, waits := turn.Plan{Drains: g.Drains, Reboots: g.Wants == v1alpha1.WantsReboot}, rollout.WaitsIn(s.Node, &g)
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
		default:
			stage.Limit.Duration, stage.OnTimeout = p.Terms.Limit(at), v1alpha1.OnTimeoutWait
		}
		s.Stages = append(s.Stages, stage)
		at, ok = turn.Next(at, turn.Progressed, plan, waits)
	}
}
