package explore

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Bug is a clause of the protocol that the model leaves out on purpose, to test that the exploration finds the
// violation. The product has no such switches: the model executes a decision wrongly, or gives a core an input that
// defeats the clause.
type Bug uint8

// These are the planted bugs.
const (
	NoBug Bug = iota
	NoEpochCheck
	NoPrecondition
	CachedList
	NoBootInAcks
	UncordonUnmarked
	SlotFreedEarly
	ForeignPromoted
	BudgetOffByOne
	WantsBeforeSources
	BootOfGrant
	DoneInTwoWrites
	ClockRestarts
	TermSurvives
	MarkLeftBehind
	WaitsInSilence
	PodsNotSeen
	WantOfGrant
	RebootsAgain
	OffTable
	CommitBarsNothing
	TurnsBackTwice
	StartNotTold
	ReleaseLeavesKeys
	PublishesReleased
	OverdueStays
	VetoIgnored
	BackoffStays
	ReadsOnce
	HalfIsDone
	PartForgotten
	ControlIgnored
	ControlOnlyGranted
	RequestSwallowed
	RequestRepeated
	SettleForgotten
	PolicyIgnored
	TotalIgnored
	RefusalForgotten
	RefusedIsWritten
	FailedReadPasses
	RefusalSettles
	ProxyDeletes
	RefusedHoldsAll
	ForeignPauseIgnored
	ForeignForceIgnoresCommit
	UnledTimeCounts
	MissingLeaseIsNoStop
	BlockNotRead
	BlockVetoIgnored
	BlockOffByGrant
	BlockOffByOldPolicy
	BlockOffUnchecked
	BlockOffStays
	BlockNeverOff
	CanaryClockEarly
	CanaryBootIgnored
	CanaryBlipIgnored
	CanaryLieBelieved
	CanaryNewerIgnored
	CanaryBacksOut
	BlackoutIgnored
	BlackoutCancels
	BlackoutHoldsTurns
	PermitForgotten
	PermitUnread
	PermitEarly
	LockBelieved
	EpochContinued
)

var bugNames = []string{
	"no bug", "no epoch check at the commit", "commit without resourceVersion", "a first decision from a cached list",
	"no boot id in acks", "uncordon without mark", "slot freed before the uncordon", "a foreign epoch promoted",
	"budget off by one", "wants published before all sources were read", "the boot id taken only at the grant",
	"done after the boot and the fresh wants in two writes", "a timeout that restarts at each failover",
	"a term that survives a blanked Lease", "a silent host's mark left behind",
	"a turn that waits in silence",
	"no check for pods before the commit", "a commit based on the wants in the grant", "no check of the boot id before the reboot",
	"a move that is not in the table", "a commit that does not block other moves", "turns backed out one after another",
	"a process that does not record its own start time",
	"a release that leaves the host's keys for the host to remove", "a host that publishes after its release",
	"an overdue turn that is not aborted", "an unmanaged node's turn that ignores the host's own pause",
	"a not-before that never passes",
	"no read between the steps of a plan", "a plan that counts as carried out after its first step",
	"a host that forgets that it took part in the turn",
	"no rule for control-plane nodes", "a rule for control-plane nodes that leaves out late grants",
	"a request removed that was set after the commit", "a turn for a request that is gone",
	"a settle time that is counted from the node's own last turn",
	"policies without their own budgets", "no budget of all policies together",
	"a host that forgets a refusal whose answer is lost", "a host that takes a refused commit for written",
	"a host that commits although it could not read the Lease", "a lost write that counts as settled once it is refused",
	"a proxy's 404 that counts as a deleted Node", "a guarded Node's foreign turn that holds up the others",
	"a pause that does not freeze a foreign turn", "a forced detach that releases a committed foreign turn",
	"time without a Lease that counts against a turn", "a missing Lease that does not stop a host",
	"a cordon without a read of the pods that block", "a grant although pods block the drain",
	"Block off by the grant, and not by the host's record",
	"Block off after the host's policy has changed to Hold", "Block off as the host says, and not by the coordinator's clock",
	"Block off for a second turn", "pods that block after blockTimeout",
	"a canary's clock that starts before it has run the version for its time", "a canary's clock that a boot does not restart",
	"a canary's clock that goes on while it is not Ready", "a canary that counts for each version that it reports",
	"a turn that boots a newer version than it was granted for",
	"canaries that back out turns that have begun",
	"a blackout that is ignored", "a blackout that cancels turns", "a blackout that holds turns that have begun",
	"a host that forgets its permission once its client does not ask", "permission without the reads before it", "permission before the commit",
	"a process that takes the one before it for dead while it lives", "a process that continues the epoch of the one before it",
}

// String returns a description of the bug.
func (b Bug) String() string { return bugNames[b] }

// step calls the real Step, or behaves like a host with the bug.
func (b Bug) step(o *step.Observation) step.Decision {
	b.observe(o)
	d := step.Step(*o)
	switch w := d.Write; {
	case w == nil:
	case b == WaitsInSilence && o.Node.State == v1alpha1.StateUncordoning && w.Ack.Report == v1alpha1.ReportDone:
		d.Write = nil
	case b == PermitEarly && o.Node.State == v1alpha1.StateRebooting && w.Ack.Report == v1alpha1.ReportCommitted:
		d.Write, d.Do = nil, step.DoPermit
	case b == WantOfGrant && o.Node.State == v1alpha1.StateRebooting && o.Node.Wants == v1alpha1.WantsNothing:
		delete(w.Labels, v1alpha1.LabelWants)
		delete(w.Annotations, v1alpha1.AnnotationHost)
	case b == UncordonUnmarked && o.Node.State == v1alpha1.StateUncordoning && w.Ack.Report == v1alpha1.ReportDone && o.Node.Unschedulable:
		w.Unschedulable = new(false)
	case b == DoneInTwoWrites && o.Node.State == v1alpha1.StateRebooting && w.Ack.Report == v1alpha1.ReportDone:
		delete(w.Labels, v1alpha1.LabelWants)
		delete(w.Annotations, v1alpha1.AnnotationHost)
	}
	return d
}

// observe changes what the host observes.
func (b Bug) observe(o *step.Observation) {
	switch b {
	case NoEpochCheck:
		if o.Fresh != nil && o.Node.Grant != nil {
			o.Fresh.Lease.Holder = o.Node.Grant.Epoch
		}
	case NoBootInAcks:
		if o.Node.Ack.BootID != "" {
			o.Node.Ack.BootID = o.Self.BootID
		}
	case BlockNotRead:
		if o.Fresh != nil {
			o.Fresh.Blocked = ""
		}
	case RefusalForgotten:
		o.UnsettledRefusal = v1alpha1.Ack{}
	case PermitForgotten:
		if h := o.Node.Host; h != nil && !o.Permission.Asked {
			forgot := *h
			forgot.Permits = ""
			o.Node.Host = &forgot
		}
	case PermitUnread:
		if o.Fresh == nil && o.Node.State == v1alpha1.StateRebooting && o.Node.Committed() {
			o.Fresh = &step.FreshRead{Commit: true, Lease: step.Lease{Exists: true, Holder: o.Node.Grant.Epoch}}
		}
	case MissingLeaseIsNoStop:
		if o.Fresh != nil && !o.Fresh.Lease.Exists && o.Node.Grant != nil {
			o.Fresh.Lease = step.Lease{Exists: true, Holder: o.Node.Grant.Epoch}
		}
	case StartNotTold:
		if h := o.Node.Host; h != nil && h.BootID == o.Self.BootID {
			o.Self.Started = h.Started
		}
	case PodsNotSeen:
		if o.Fresh != nil {
			o.Fresh.Evictable = 0
		}
	case WantOfGrant:
		if o.Node.State == v1alpha1.StateRebooting && o.Node.Wants == v1alpha1.WantsNothing && o.Node.Grant.BootID == o.Self.BootID {
			o.Sources.Wants, o.Sources.Drains, o.Sources.Changes = o.Node.Grant.Wants, o.Node.Grant.Drains, o.Node.Grant.Changes
		}
	case RebootsAgain:
		if o.Node.State == v1alpha1.StateRebooting && o.Node.Grant != nil {
			g := *o.Node.Grant
			g.BootID = o.Self.BootID
			o.Node.Grant = &g
		}
	case ReadsOnce:
		if o.Fresh == nil && o.Node.State == v1alpha1.StateApplying && o.Node.Committed() {
			o.Fresh = &step.FreshRead{Commit: true, Lease: step.Lease{Exists: true, Holder: o.Node.Grant.Epoch}}
		}
	case HalfIsDone:
		if c := o.Sources.Changes; o.Node.State == v1alpha1.StateApplying && o.Apply.Done && len(c) > 0 {
			o.Self.OSVersion = c[0].Version
			o.Sources = step.Sources{Complete: true, Wants: v1alpha1.WantsNothing}
		}
	case PartForgotten:
		if h := o.Node.Host; h != nil && o.Node.State == v1alpha1.StateBeforeUncordon {
			forgot := *h
			forgot.TakesPart = ""
			o.Node.Host = &forgot
		}
	case WantsBeforeSources:
		if !o.Sources.Complete {
			o.Sources = step.Sources{Complete: true, Wants: v1alpha1.WantsNothing}
		}
	}
	if b == PublishesReleased && o.Node.State == v1alpha1.StateAbsent {
		o.Node.Detached = nil
	}
}

// decide calls the real Decide, or behaves like a coordinator with the bug.
func (b Bug) decide(s rollout.Snapshot) rollout.Outcome {
	was := map[string]*turn.Node{}
	for i := range s.Nodes {
		n := s.Nodes[i]
		was[n.Name] = &n
		b.show(&s.Nodes[i], &s)
	}
	dark := b == BlackoutHoldsTurns && len(s.Policies[0].Blackouts) > 0
	if b == BlackoutIgnored {
		s.Policies = slices.Clone(s.Policies)
		for i := range s.Policies {
			s.Policies[i].Blackouts = nil
		}
	}
	out := rollout.Decide(s)
	for i := range out.Verdicts {
		if b == WaitsInSilence && out.Verdicts[i].Held == v1alpha1.ReasonOverdue {
			out.Verdicts[i].Held = v1alpha1.ReasonNone
		}
		m, n := out.Verdicts[i].Move, was[out.Verdicts[i].Node]
		switch {
		case dark && m != nil && m.From.InTurn():
			out.Verdicts[i].Move, out.Verdicts[i].Held = nil, v1alpha1.ReasonWindow
		case b == OffTable && m != nil && m.From == v1alpha1.StateDraining && m.To == v1alpha1.StateRebooting:
			m.To = v1alpha1.StateBeforeDrain
		case b == ReleaseLeavesKeys && m != nil:
			m.LetGo = false
		case b == RequestSwallowed && m != nil && m.Last != nil && m.Last.Result == v1alpha1.ResultDone:
			m.Remove = append(m.Remove, v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow)
		case b == OverdueStays && m != nil && m.On == turn.Aborted:
			out.Verdicts[i].Move, out.Verdicts[i].Held = nil, v1alpha1.ReasonOverdue
		case m == nil || m.Grant == nil:
		case b == BootOfGrant && n.Grant != nil && m.From != m.To && m.To == v1alpha1.StateRebooting:
			m.Grant.BootID = n.Grant.BootID
		case b == ClockRestarts && m.Reason == v1alpha1.ReasonHandover:
			m.Grant.StageAt, m.Grant.StartedAt = now, now
		case b == UnledTimeCounts && m.Reason == v1alpha1.ReasonHandover:
			m.Grant.PausedFor = n.Grant.PausedFor
		}
	}
	return out
}

// show changes the Node that the coordinator sees.
func (b Bug) show(n *turn.Node, s *rollout.Snapshot) {
	b.showBlocks(n)
	b.showCanary(n)
	switch b {
	case NoBootInAcks:
		if n.Ack.BootID != "" {
			n.Ack.BootID = n.BootID
		}
	case RequestRepeated:
		if h := n.Host; h != nil && v1alpha1.Has(h.Changes, v1alpha1.SourceRequest) && n.Request == nil {
			n.Request = &v1alpha1.Request{Action: "reboot"}
		}
	case SettleForgotten:
		if l := n.Last; l != nil && !n.Wants.Something() {
			before := *l
			before.End = now.Add(-eon)
			n.Last = &before
		}
	case ControlIgnored:
		n.ControlPlane = false
	case ControlOnlyGranted:
		n.ControlPlane = n.ControlPlane && (!n.InTurn() || n.Grant == nil || n.Grant.Epoch == s.Epoch)
	case VetoIgnored:
		if h := n.Host; h != nil && n.Managed != nil && !*n.Managed {
			seen := *h
			seen.Veto = v1alpha1.ReasonNone
			n.Host = &seen
		}
	case BackoffStays:
		if l := n.Last; l != nil && l.NotBefore != nil {
			later := *l
			later.NotBefore = new(now.Add(time.Hour))
			n.Last = &later
		}
	case TurnsBackTwice:
		if n.State == v1alpha1.StateUncordoning {
			n.Ready = false // so that Decide does not count it as a node that finishes its turn
		}
	case CommitBarsNothing:
		if n.Ack.Report == v1alpha1.ReportCommitted {
			n.Ack.Report = v1alpha1.ReportSeen
		}
	case SlotFreedEarly:
		if n.State == v1alpha1.StateUncordoning && n.Mark {
			n.Mark = false
			n.Ack = v1alpha1.Ack{Turn: n.Turn, BootID: n.BootID, State: n.State, Report: v1alpha1.ReportDone}
		}
	case ForeignPromoted:
		if n.Ours() && n.Grant.Epoch != s.Epoch {
			g := *n.Grant
			g.Epoch = s.Epoch
			n.Grant = &g
		}
	case ForeignPauseIgnored:
		if n.Ours() && n.Grant.Epoch != s.Epoch {
			n.Paused = nil
		}
	case ForeignForceIgnoresCommit:
		if n.Ours() && n.Grant.Epoch != s.Epoch && n.Detached != nil && n.Detached.Force {
			n.Ack.Report = v1alpha1.ReportSeen
		}
	case BlackoutCancels:
		if n.Grant != nil {
			g := *n.Grant
			g.Terms.OnClose = v1alpha1.OnCloseCancel
			n.Grant = &g
		}
	case RefusedHoldsAll:
		s.Refused = nil
	case MarkLeftBehind:
		if n.InTurn() && n.Grant != nil && n.Ack.Turn != n.Turn && n.Mark && now.Sub(n.Grant.StartedAt) > time.Hour {
			n.Mark = false
		}
	}
}

// Bugs returns all planted bugs.
func Bugs() []Bug {
	all := make([]Bug, 0, len(bugNames))
	for b := range bugNames {
		all = append(all, Bug(b))
	}
	return slices.Delete(all, 0, 1)
}
