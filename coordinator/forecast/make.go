package forecast

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Input is the input of a Forecast.
type Input struct {
	// Snapshot is the current state of the cluster. Its Epoch is "".
	rollout.Snapshot
	// NoLeader is why no instance would grant a turn; "" if an instance leads.
	NoLeader string
	// Names are the nodes in the question, each once.
	Names []string
	// Asked are changes to apply to all of these nodes, in addition to the pending ones.
	Asked []v1alpha1.Change
}

// Question is an Input with the plans of its nodes.
type Question struct {
	in     Input
	nodes  []*subject     // the nodes in the question, by name
	byName map[string]int // every node's index in in.Nodes
}

// subject is one node in the question.
type subject struct {
	*turn.Node // the node as it is now
	match      policy.Match
	plan       policy.Plan
	then       turn.Node // the node with the changes applied
	Answer
	own Node
}

// Ask computes the plans. It does not change in.
func Ask(in Input) *Question {
	q := &Question{in: in, byName: make(map[string]int, len(in.Nodes))}
	q.in.Nodes = slices.Clone(in.Nodes)
	for i := range q.in.Nodes {
		n := &q.in.Nodes[i]
		q.byName[n.Name] = i
		settle(n, &in.Snapshot)
	}
	for _, name := range slices.Sorted(slices.Values(in.Names)) {
		if i, ok := q.byName[name]; ok {
			q.nodes = append(q.nodes, q.subject(&q.in.Nodes[i]))
		}
	}
	return q
}

// settle applies the moves that the coordinator makes before it considers a turn: it
// removes expired intents, ends a pause, and adopts the node. These moves take a moment,
// so the forecast takes them as done.
func settle(n *turn.Node, s *rollout.Snapshot) {
	over := func(i *v1alpha1.Intent) bool { return i != nil && i.Until != nil && !i.Until.After(s.Now) }
	if over(n.Paused) {
		n.Paused = nil
	}
	if over(n.Detached) {
		n.Detached = nil
	}
	switch {
	case n.State == v1alpha1.StatePaused && n.Paused == nil:
		n.State = v1alpha1.StateIdle
	case n.State == v1alpha1.StateAbsent && !n.Mark && n.HostReported() && manages(n):
		n.State = v1alpha1.StateIdle
	}
}

// manages reports whether lockkeeper manages the node, or will in a moment.
func manages(n *turn.Node) bool {
	switch {
	case n.InTurn():
		return true
	case n.Managed != nil && !*n.Managed, n.Detached != nil, n.HostReported() && !n.Host.Managed:
		return false
	}
	return n.State != v1alpha1.StateAbsent || n.Host != nil && n.Host.Managed
}

// subject computes the plan of one node.
func (q *Question) subject(n *turn.Node) *subject {
	s := &subject{Node: n, match: q.in.Policies.For(n.Labels), own: Node{Name: n.Name}}
	var pending []v1alpha1.Change
	if n.HostReported() {
		pending = slices.Concat(n.Host.Changes, n.Host.HeldBack)
	}
	var count []v1alpha1.Change // the changes in the plan
	add := func(change v1alpha1.Change, pending bool) {
		c := Change{Change: change, Pending: pending}
		if pending && change.Source == v1alpha1.SourceRequest {
			c.Request = n.Request
		}
		choice := s.match.Choose(change)
		if choice.Rule != nil {
			c.Rule = new(ruleOf(*choice.Rule))
		}
		for _, r := range choice.Wider {
			c.Wider = append(c.Wider, ruleOf(r))
		}
		for _, r := range choice.Replaced {
			c.Replaced = append(c.Replaced, ruleOf(r))
		}
		// A host keeps watching what its policies named before they became invalid.
		if c.Unwatched = change.Watched() && c.Rule == nil && (!pending || s.match.Reason == ""); !c.Unwatched {
			count = append(count, change)
		}
		s.Changes = append(s.Changes, c)
	}
	for _, change := range q.in.Asked {
		i := slices.IndexFunc(pending, func(p v1alpha1.Change) bool { return p.Source == change.Source && p.Name == change.Name })
		known := i >= 0 && (change.Version == "" || change.Same(pending[i]))
		if known {
			change = pending[i]
		}
		add(change, known)
	}
	for _, change := range pending {
		if !slices.ContainsFunc(q.in.Asked, func(a v1alpha1.Change) bool { return a.Source == change.Source && a.Name == change.Name }) {
			add(change, true)
		}
	}
	s.plan = s.match.Plan(count)
	s.answerPlan(len(q.in.Nodes) == 1)
	s.then = s.with()
	if len(q.in.Asked) == 0 && n.HostReported() && (n.Wants != s.plan.Wants || n.Host.Drains != s.plan.Drains) {
		s.note("this plan uses the current policies; the host published %s, by the policies that it had read last", wants(n.Wants, n.Host.Drains))
	}
	s.notes(q.in.Asked)
	return s
}

func ruleOf(r policy.OwnedRule) Rule {
	return Rule{Key: policy.Key(&r.Rule), Policy: r.Policy, Costs: policy.Costs(&r.Rule)}
}

func (s *subject) note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// answerPlan copies the plan into the answer. only reports that the cluster has no other
// node.
func (s *subject) answerPlan(only bool) {
	p := &s.plan
	s.Wants, s.Drains = p.Wants, p.Drains && !only
	for _, step := range p.Steps {
		if step.Action.Type == v1alpha1.ActionDrain && only {
			s.note("it is the only node, so its turn has no drain")
			continue
		}
		one := Step{Action: step.Action.String()}
		for _, c := range step.Because {
			one.Because = append(one.Because, c.String())
		}
		s.Steps = append(s.Steps, one)
	}
	for _, h := range p.HeldBack {
		s.HeldBack = append(s.HeldBack, h.Change)
	}
}

// wants returns what a host wants, as text for users.
func wants(w v1alpha1.Wants, drains bool) string {
	if w == v1alpha1.WantsReboot && !drains {
		return "wants=reboot without a drain"
	}
	return "wants=" + string(w)
}

// notes adds the remarks on the plan.
func (s *subject) notes(asked []v1alpha1.Change) {
	for _, c := range asked {
		switch {
		case c.Source == v1alpha1.SourceSentinel:
			s.note("hosts look for a sentinel only if [sources] sentinels in their file names it")
		case c.Source == v1alpha1.SourceOSUpdate && c.Version == "" && slices.Contains(s.HeldBack, c):
			s.note("without a version, this change counts as held back, because its version may be one that holdBack matches: name it with --change os:VERSION")
		}
	}
	if len(asked) > 0 && s.InTurn() {
		s.note("a change that arrives during the turn joins it if it makes the turn stronger and draining is not over; otherwise it waits for the next turn")
	}
	if s.match.Reason != "" && len(s.Changes) > 0 {
		s.note("a host that has read valid policies since it started continues to use them")
	}
}

// with returns the node with the plan in place of what its host publishes.
func (s *subject) with() turn.Node {
	n := *s.Node
	n.Wants = s.plan.Wants
	if n.Request == nil && v1alpha1.Has(s.plan.Changes(), v1alpha1.SourceRequest) {
		n.Request, n.Requests = &v1alpha1.Request{Action: "reboot"}, v1alpha1.Requests{Waits: v1alpha1.Digest("reboot")}
	}
	if n.Host == nil {
		return n
	}
	h := *n.Host
	h.Changes, h.Drains = s.plan.Changes(), s.plan.Drains
	if h.Veto == v1alpha1.ReasonHeldBack {
		h.Veto = v1alpha1.ReasonNone
	}
	h.Veto = cmp.Or(h.Veto, s.plan.Veto)
	n.Host = &h
	return n
}

// Draining returns the names of the nodes whose plan drains. Only their pods matter.
func (q *Question) Draining() []string {
	var names []string
	for _, s := range q.nodes {
		if s.Drains {
			names = append(names, s.Name)
		}
	}
	return names
}

// Answer returns the Forecast.
func (q *Question) Answer(pods Pods) Forecast {
	q.judge()
	budgets := read(pods.Budgets)
	f := Forecast{Time: q.in.Now, Asked: q.in.Asked, Unseen: pods.Unseen, NoPods: pods.NoPods, Groups: []Group{}}
	byAnswer := map[string]int{}
	for _, s := range q.nodes {
		if s.Drains {
			s.addDrain(q.in.Now, pods.OnNode[s.Name], budgets)
		}
		f.Held = f.Held || s.Outcome == Held || s.Outcome == InTurn && s.Held != ""
		key, err := json.Marshal(&s.Answer)
		if err != nil { // only a time outside the years of RFC 3339 gets here
			key = []byte(s.Name)
		}
		i, ok := byAnswer[string(key)]
		if !ok {
			i = len(f.Groups)
			byAnswer[string(key)] = i
			f.Groups = append(f.Groups, Group{Answer: s.Answer})
		}
		f.Groups[i].Nodes = append(f.Groups[i].Nodes, s.own)
	}
	slices.SortStableFunc(f.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Nodes[0].Name, b.Nodes[0].Name))
	})
	return f
}

func (g *Group) rank() int {
	return slices.Index([]Outcome{InTurn, Goes, Held, Nothing, NotManaged}, g.Outcome)
}

// terms returns the terms of the node's turn, or of the turn that it would have.
func (s *subject) terms() *v1alpha1.Terms {
	switch {
	case s.InTurn() && s.Ours():
		return &s.Grant.Terms
	case s.match.Policy != nil && len(s.match.Policy.Problems) == 0:
		return &s.match.Policy.Terms
	}
	return &v1alpha1.Terms{}
}

// addDrain records what the drain does with the pods, and for how long pods that block may keep
// the node from its turn.
func (s *subject) addDrain(now time.Time, pods []*corev1.Pod, budgets map[string][]budget) {
	terms := s.terms()
	rules := terms.PodRules
	if s.InTurn() && s.Ours() && s.Grant.BlockOff {
		rules = rules.WithoutBlock()
	}
	s.own.addDrain(rules, pods, budgets)
	if s.InTurn() || len(s.own.Block) == 0 {
		return
	}
	l := &BlockLimit{Timeout: terms.BlockTimeout, Then: cmp.Or(terms.OnBlockTimeout, v1alpha1.OnBlockTimeoutHold)}
	s.own.BlockLimit = l
	if h := s.Host; s.HostReported() && !h.BlockedSince.IsZero() && !h.BlockedSince.After(now) {
		l.Since = new(h.BlockedSince.UTC())
		if l.Timeout.Duration > 0 {
			l.Ends = new(l.Since.Add(l.Timeout.Duration))
		}
		l.Off = h.BlockOff && terms.BlockLimit() > 0 && !l.Ends.After(now)
	}
	if s.Outcome == Goes && !l.Off {
		s.Outcome, s.Held, s.Why = Held, v1alpha1.ReasonDrainBlocked, "its host publishes this veto because of the pods that block"
	}
}
