package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// maxSlack bounds how late a renewal may appear before the coordinator counts as gone: a
// leader's clock may be this far off the API server's.
const maxSlack = 30 * time.Second

// Build makes a Report. It does not change in.
func Build(in Input) Report {
	s := in.Present()
	out := rollout.Decide(s)
	r := Report{
		View: "cluster", Time: s.Now, Coordinator: in.Coordinator(),
		Figures: Figures{
			Total: out.Total, InTurn: out.InTurn, Unavailable: out.Unavailable, Budget: out.Budget,
			Failed: out.Failed, MaxFailed: maxFailed(out.Figures.Policies), Halted: out.Halted,
		},
		Policies: policies(out.Figures.Policies),
		Slots:    out.Slots,
		Versions: versions(s.Nodes),
	}
	if in.PoliciesErr != nil {
		r.PoliciesError = in.PoliciesErr.Error()
	}
	if !out.Settling.IsZero() {
		r.Figures.SettlingUntil = &out.Settling
	}
	if s.Stopped {
		r.Stop = &Stop{NoLease: !in.Lease.Exists, Text: in.Lease.StopText}
	}
	verdicts := make(map[string]*rollout.Verdict, len(out.Verdicts))
	for i := range out.Verdicts {
		verdicts[out.Verdicts[i].Node] = &out.Verdicts[i]
	}
	slots := make(map[string]*rollout.Slot, len(out.Slots))
	for i := range out.Slots {
		slots[out.Slots[i].Node] = &out.Slots[i]
	}
	if text := rollout.Taken(out.Slots); text != "" {
		r.taken = "Unavailable" + text + "."
	}
	r.Nodes = make([]Node, 0, len(s.Nodes))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		r.Nodes = append(r.Nodes, r.node(&in, n, verdicts[n.Name], slots[n.Name]))
	}
	slices.SortFunc(r.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Name, b.Name))
	})
	r.estimate(s, &out)
	if in.Selector != nil {
		r.only(&in)
	}
	r.count()
	r.Status = r.status()
	r.Summary = r.summary()
	return r
}

// only drops the nodes that the selector of in does not match, and what is known only of all nodes.
func (r *Report) only(in *Input) {
	r.Selector, r.End = in.Selector.String(), nil
	matches := map[string]bool{}
	for i := range in.Nodes {
		matches[in.Nodes[i].Name] = in.Selector.Matches(labels.Set(in.Nodes[i].Labels))
	}
	r.Nodes = slices.DeleteFunc(r.Nodes, func(n Node) bool { return !matches[n.Name] })
	r.Figures.Total, r.Figures.InTurn = len(r.Nodes), 0
	for i := range r.Nodes {
		if r.Nodes[i].State.InTurn() {
			r.Figures.InTurn++
		}
	}
}

// Present is the snapshot without an epoch: as a process sees it that does not coordinate.
func (in *Input) Present() rollout.Snapshot {
	s := in.Snapshot
	s.Epoch = ""
	s.Stopped = in.Lease.Err == nil && (in.Lease.Stopped || !in.Lease.Exists)
	s.StopText = in.Lease.StopText
	if s.Stopped && !in.Lease.Exists {
		s.StopText = "the Lease does not exist"
	}
	if c := in.Coordinator(); c.Live {
		if i := slices.IndexFunc(s.Nodes, func(n turn.Node) bool { return n.Name == c.Node && n.HostReported() }); i >= 0 {
			s.Protocol = s.Nodes[i].Host.Protocol
		}
	}
	return s
}

// maxFailed is how many nodes may fail before the first policy halts.
func maxFailed(policies []rollout.PolicyFigures) int {
	least, found := 0, false
	for i := range policies {
		if p := &policies[i]; (p.Selected > 0 || len(policies) == 1) && (!found || p.MaxFailed < least) {
			least, found = p.MaxFailed, true
		}
	}
	return least
}

// Coordinator is who coordinates, as the Lease says.
func (in *Input) Coordinator() Coordinator {
	l := &in.Lease
	c := Coordinator{Lease: l.Namespace + "/" + l.Name}
	if l.Err != nil {
		c.Error = l.Err.Error()
		return c
	}
	if c.Epoch = l.Holder; c.Epoch == "" {
		return c
	}
	c.Node = l.Holder
	if i := strings.LastIndexByte(l.Holder, '_'); i > 0 {
		c.Node = l.Holder[:i]
	}
	if !l.Acquired.IsZero() {
		c.Since = &l.Acquired
	}
	if !l.Renewed.IsZero() {
		c.Renewed = &l.Renewed
	}
	c.Live = l.Renewed.Add(l.Duration + min(l.Duration, maxSlack)).After(in.Now)
	return c
}

// node reports one node. The reason that the coordinator wrote on the Node counts while a
// live coordinator keeps it current; otherwise the decision made here counts.
func (r *Report) node(in *Input, n *turn.Node, v *rollout.Verdict, slot *rollout.Slot) Node {
	out := Node{
		Name: n.Name, Policy: v.Policy, Slot: slot, Managed: managed(n), State: n.State, Wants: n.Wants,
		Ready: n.Ready, Unschedulable: n.Unschedulable, Marked: n.Mark, OwnCordon: n.OwnCordon(), ControlPlane: n.ControlPlane, Zone: n.Zone, BootID: n.BootID,
		Host: n.Host, Grant: n.Grant, Last: n.Last, Ack: n.Ack.String(), Paused: n.Paused, Detached: n.Detached, Request: n.Request, Retry: n.Retry,
	}
	for _, p := range n.Problems {
		out.Problems = append(out.Problems, p.String())
	}
	if n.InTurn() {
		out.Turn = n.Turn
		if g := n.Grant; g != nil {
			out.TurnSince, out.StageSince = &g.StartedAt, &g.StageAt
			for _, h := range g.Terms.Hooks(n.State) {
				out.Hooks = append(out.Hooks, Hook{h.Name, n.Hooks[h.Name] == n.Turn})
			}
		}
	}
	next := v.Move != nil && v.Move.To != n.State
	if !next { // with a move, it is the reason of the move
		out.Held, out.Why = v.Held, v.Detail
	}
	if r.heldIsCurrent() && n.Held != "" && n.Held != v.Held {
		out.Held, out.Why = n.Held, ""
		// The coordinator may know something that is not on the Nodes, such as a
		// write with an unknown outcome. It reports that on the policy.
		if c := in.Progressing[v.Policy]; c.Reason == string(n.Held) {
			out.Why = c.Message
		}
	}
	if r.PoliciesError != "" {
		r.withoutPolicies(&out, n, v)
	}
	silent := out.Managed && !n.InTurn() && n.State.Known() && !n.HostReported()
	switch {
	case out.Held == "" && silent:
		out.Held, out.Why = v1alpha1.ReasonHostSilent, "no report from its present boot"
	case out.Held == "" && next && r.Coordinator.Live:
		out.Why = nextText(n, v.Move)
	case out.Held == "" && next && r.Coordinator.Error == "":
		out.Held, out.Why = v1alpha1.ReasonNoCoordinator, nextText(n, v.Move)
	case out.Held == v1alpha1.ReasonPaused && n.Paused != nil && reasonOf(n.Paused) != "":
		out.Why = strings.TrimPrefix(reasonOf(n.Paused), ": ")
	case out.Held == v1alpha1.ReasonDetached && n.Detached != nil && reasonOf(n.Detached) != "":
		out.Why = strings.TrimPrefix(reasonOf(n.Detached), ": ")
	case out.Why == "" && out.Held != "":
		out.Why = out.Held.Doc().Means
	}
	out.Status = out.status(next, r.settling(v.Policy))
	if out.Status == Rolling && !r.Coordinator.Live && r.Coordinator.Error == "" {
		out.Status = Held // it may finish its stage; without a coordinator it then stays there
	}
	out.optedOut = n.Managed != nil && !*n.Managed || n.Detached != nil || out.Held == v1alpha1.ReasonUnmanaged
	out.rank = out.ranked()
	return out
}

// withoutPolicies corrects what was decided as if no policies existed, when in fact the
// caller may not read them.
func (r *Report) withoutPolicies(out *Node, n *turn.Node, v *rollout.Verdict) {
	if v.Held != v1alpha1.ReasonNoPolicy {
		return // it is held by something other than its policy
	}
	switch {
	case !r.heldIsCurrent():
		out.Held, out.Why = v1alpha1.ReasonNoCoordinator, ""
	case n.Held == v1alpha1.ReasonNone:
		out.Held, out.Why = v1alpha1.ReasonNone, "waits for the coordinator; its policy could not be read here"
	default:
		out.Held, out.Why = n.Held, ""
	}
	r.Figures.Halted = r.Figures.Halted || out.Held == v1alpha1.ReasonHalted
}

// heldIsCurrent reports whether the label held is what a live coordinator keeps current.
func (r *Report) heldIsCurrent() bool {
	return r.Stop == nil && (r.Coordinator.Live || r.Coordinator.Error != "")
}

func nextText(n *turn.Node, m *rollout.Move) string {
	switch {
	case m.Disturbs():
		return "next in line, enters " + m.To.String()
	case n.State == v1alpha1.StateAbsent:
		return "about to be adopted"
	case m.Reason != "":
		return fmt.Sprintf("moves to %s (%s)", m.To, m.Reason)
	}
	return "moves to " + m.To.String()
}

// managed reports whether lockkeeper manages the node, by the same rule as package rollout.
func managed(n *turn.Node) bool {
	switch {
	case n.Managed != nil && !*n.Managed && !n.InTurn():
		return false
	case n.State != v1alpha1.StateAbsent:
		return true
	}
	return n.Detached == nil && n.Host != nil && n.Host.Managed
}

// bySelf are the reasons that end without action within minutes.
var bySelf = map[v1alpha1.Reason]bool{
	v1alpha1.ReasonMinUptime: true, v1alpha1.ReasonSessions: true, v1alpha1.ReasonLoadBalancerDelay: true,
}

func (n *Node) status(next, settling bool) Status {
	busy := n.State.InTurn() || n.Managed && n.Wants.Something() || next
	switch {
	case n.Held == v1alpha1.ReasonNone && busy:
		return Rolling
	case n.Held == v1alpha1.ReasonNone:
		return UpToDate
	case bySelf[n.Held], n.Held == v1alpha1.ReasonBudget && settling:
		return Rolling
	case n.Held == v1alpha1.ReasonPaused && !busy:
		return UpToDate // it wants nothing, so the pause holds nothing back
	case (n.Held == v1alpha1.ReasonDetached || n.Held == v1alpha1.ReasonUnmanaged) && !busy:
		return UpToDate // lockkeeper does not update it
	}
	return Held
}

// needsAttention reports whether something holds the node that is its own, and not what all nodes
// wait for.
func (n *Node) needsAttention() bool {
	switch n.Held {
	case v1alpha1.ReasonBudget, v1alpha1.ReasonStopped, v1alpha1.ReasonHalted, v1alpha1.ReasonWindow, v1alpha1.ReasonCanary, v1alpha1.ReasonGateClosed, v1alpha1.ReasonWouldGrant:
		return false
	}
	return n.Status == Held
}

func (n *Node) ranked() int {
	switch {
	case n.State.InTurn():
		return 0
	case n.needsAttention(), len(n.Problems) > 0:
		return 1
	case n.Status == Rolling, n.Status == Held:
		return 2
	case n.State == v1alpha1.StatePaused, n.Detached != nil, n.failedBefore(), n.Slot != nil:
		return 3
	case n.Managed:
		return rankIdle
	}
	return rankIdle + 1
}

// rankIdle is the rank of nodes that need no attention.
const rankIdle = 4

// failedBefore reports whether the node counts as failed by its last turn.
func (n *Node) failedBefore() bool {
	return !n.State.InTurn() && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed && n.Retry != n.Last.Turn
}

func (r *Report) count() {
	f := &r.Figures
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !n.Managed {
			continue
		}
		f.Managed++
		reported := n.Host != nil && n.Host.BootID == n.BootID
		switch {
		case n.State.InTurn():
		case n.Wants == v1alpha1.WantsReboot:
			f.WantReboot++
		case n.Wants == v1alpha1.WantsDrain:
			f.WantDrain++
		case n.Wants == v1alpha1.WantsApply:
			f.WantApply++
		case reported && n.Wants == v1alpha1.WantsNothing:
			f.UpToDate++
		default:
			f.Unknown++
		}
	}
}

func (r *Report) status() Status {
	switch {
	case r.Stop != nil:
		return Stopped
	case r.Figures.Halted && r.Selector == "":
		return Halted
	}
	return r.nodesStatus()
}

// nodesStatus is the status of the nodes, without regard to a stop or halt.
func (r *Report) nodesStatus() Status {
	worst, unseen := UpToDate, false
	for i := range r.Nodes {
		n := &r.Nodes[i]
		switch n.Status {
		case Rolling:
			return Rolling
		case Held:
			worst = Held
		}
		unseen = unseen || !n.Managed && !n.optedOut
	}
	if r.Figures.Managed == 0 && unseen {
		// Not up to date but unknown: lockkeeper does not run anywhere yet.
		return Held
	}
	return worst
}
