package turn

import (
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Event is what can happen to a node, as the coordinator sees it.
type Event string

// The events.
const (
	// Adopted: host is valid for this Node and boot, managed and not detached.
	Adopted Event = "adopted"
	// Marked: a node in no turn has the mark, and neither a pause nor a detach freezes
	// it.
	Marked Event = "marked"
	// Granted: the coordinator gives the node its turn.
	Granted Event = "granted"
	// Paused and Resumed: an admin set or removed the annotation.
	Paused  Event = "paused"
	Resumed Event = "resumed"
	// Released: managed=false, or detached, in no turn.
	Released Event = "released"
	// LetGo: detached with force.
	LetGo Event = "let go"
	// Progressed: what the state waits for has happened.
	Progressed Event = "done"
	// Vanished: the want is gone or fell below what the state needs, or an admin
	// detaches the node or sets managed=false.
	Vanished Event = "want vanished"
	// Refused: the host will not do it, and has not done it.
	Refused Event = "refused"
	// Failed: the host did it, it did not work, and the host is not healthy.
	Failed Event = "failed"
	// FailedHealthy: the host did it, it did not work, and the host is healthy.
	FailedHealthy Event = "failed, healthy"
	// Aborted: overdue, and the turn ends: onTimeout is Abort, or the host has not begun to
	// reboot or to apply.
	Aborted Event = "overdue, Abort"
	// Overran: overdue, and onTimeout is Wait, the host has begun, or the state only waits.
	Overran Event = "overdue, Wait"
	// TakenBack: the host is silent in the turn's first state, and nothing was marked or
	// committed.
	TakenBack Event = "taken back"
	// Cleared: an admin's retry names the turn that failed.
	Cleared Event = "retry"
	// Replaced: the Node's UID is not the grant's.
	Replaced Event = "replaced"
)

// Events returns all events, in the order of the documentation.
func Events() []Event {
	return []Event{
		Adopted, Marked, Granted, Paused, Resumed, Released, LetGo, Progressed, Vanished, Refused,
		Failed, FailedHealthy, Aborted, Overran, TakenBack, Cleared, Replaced,
	}
}

// Plan is what a turn involves.
type Plan struct {
	Drains  bool // the node is drained
	Reboots bool // the host reboots
}

// PlanOf returns the plan of a grant.
func PlanOf(g *v1alpha1.Grant) Plan {
	return Plan{Drains: g.Drains, Reboots: g.Wants == v1alpha1.WantsReboot}
}

// Condition limits an edge to some plans.
type Condition string

// The conditions.
const (
	Always        Condition = ""
	ifDrains      Condition = "the plan drains"
	ifNoDrain     Condition = "the plan has no drain"
	ifReboots     Condition = "the plan reboots"
	ifNoReboot    Condition = "the plan does not reboot"
	ifOnlyReboots Condition = "the plan reboots without a drain"
	ifOnlyApplies Condition = "the plan neither drains nor reboots"
)

// holds reports whether the condition holds for the plan.
func (c Condition) holds(p Plan) bool {
	switch c {
	case ifDrains:
		return p.Drains
	case ifNoDrain:
		return !p.Drains
	case ifReboots:
		return p.Reboots
	case ifNoReboot:
		return !p.Reboots
	case ifOnlyReboots:
		return !p.Drains && p.Reboots
	case ifOnlyApplies:
		return !p.Drains && !p.Reboots
	}
	return c == Always
}

// Edge leads to the next state.
type Edge struct {
	On Event
	If Condition
	To v1alpha1.State
}

// Row is one state of the table.
type Row struct {
	State v1alpha1.State
	// Host is what the host does in it.
	Host string
	// Needs is the weakest want that lets the turn continue. A weaker want backs the
	// turn out. WantsNothing means that the state only gives the node back.
	Needs v1alpha1.Wants
	// Edges lead to the next states. For an event and a plan there is at most one.
	Edges []Edge
	// Stays holds the events that can happen and change nothing, and why. An event in
	// neither Edges nor Stays cannot happen in this state.
	Stays map[Event]string
}

const (
	onlyGivesBack = "the state only gives the node back"
	slotStays     = "the slot stays taken and the label held says why"
	hooksAgain    = "the host runs its hook units again, after longer and longer pauses or when retry names the turn; done in place of failed advances the turn"
)

// to returns an edge to the state for each of the events, for all plans.
func to(state v1alpha1.State, events ...Event) []Edge {
	var edges []Edge
	for _, e := range events {
		edges = append(edges, Edge{e, Always, state})
	}
	return edges
}

// These edges are the same in several states: the coordinator backs the turn out before its
// commit, it gives the node back after the disruption, and the turn is gone.
var (
	backedOut = to(v1alpha1.StateBeforeUncordon, Vanished, Refused, Failed, FailedHealthy, Aborted, TakenBack)
	givenBack = to(v1alpha1.StateBeforeUncordon, Refused, FailedHealthy, Aborted, Cleared, TakenBack)
	gone      = to(v1alpha1.StateAbsent, LetGo, Replaced)
	released  = to(v1alpha1.StateAbsent, Released, LetGo)
)

// table is the only definition of the state machine. [Next] passes through hook stages
// with nothing to wait for, so no edge has to mention that.
var table = []Row{
	{
		State: v1alpha1.StateAbsent, Host: "publishes wants and host, if it is managed", Needs: v1alpha1.WantsNothing,
		Edges: slices.Concat(to(v1alpha1.StateBeforeUncordon, Marked), to(v1alpha1.StateIdle, Adopted)),
		Stays: map[Event]string{
			Paused: "nothing to freeze", Released: "already released", LetGo: "already released",
		},
	}, {
		State: v1alpha1.StateIdle, Host: "nothing", Needs: v1alpha1.WantsNothing,
		Edges: slices.Concat(to(v1alpha1.StateBeforeUncordon, Marked), []Edge{
			{Granted, ifDrains, v1alpha1.StateBeforeDrain},
			{Granted, ifOnlyReboots, v1alpha1.StateBeforeReboot},
			{Granted, ifOnlyApplies, v1alpha1.StateApplying},
		}, to(v1alpha1.StatePaused, Paused), released),
		Stays: map[Event]string{},
	}, {
		State: v1alpha1.StatePaused, Host: "nothing", Needs: v1alpha1.WantsNothing,
		Edges: slices.Concat(to(v1alpha1.StateBeforeUncordon, Marked), to(v1alpha1.StateIdle, Resumed), released),
		Stays: map[Event]string{Paused: "already paused"},
	}, {
		State: v1alpha1.StateBeforeDrain, Host: "runs its hook units; done", Needs: v1alpha1.WantsDrain,
		Edges: slices.Concat(to(v1alpha1.StateDraining, Progressed), backedOut, gone),
		Stays: map[Event]string{Overran: slotStays},
	}, {
		State: v1alpha1.StateDraining, Needs: v1alpha1.WantsDrain,
		Host: "commits by cordoning with the mark or, if the node was cordoned before, by an ack committed; evicts; done",
		Edges: slices.Concat([]Edge{
			{Progressed, ifReboots, v1alpha1.StateBeforeReboot},
			{Progressed, ifNoReboot, v1alpha1.StateApplying},
		}, backedOut, gone),
		Stays: map[Event]string{Overran: slotStays},
	}, {
		State: v1alpha1.StateBeforeReboot, Host: "runs its hook units; done", Needs: v1alpha1.WantsReboot,
		Edges: slices.Concat(to(v1alpha1.StateRebooting, Progressed), backedOut, gone),
		Stays: map[Event]string{Overran: slotStays},
	}, {
		State: v1alpha1.StateRebooting, Needs: v1alpha1.WantsReboot,
		Host:  "in a turn with a drain: checks that the Node is unschedulable (otherwise refused:Uncordoned) and evicts new pods; waits for inhibitors and sessions; commits; reboots once; proves its health in the new boot; done and fresh wants in one write",
		Edges: slices.Concat(to(v1alpha1.StateBeforeUncordon, Progressed, Vanished), givenBack, gone),
		Stays: map[Event]string{Failed: slotStays, Overran: slotStays},
	}, {
		State: v1alpha1.StateApplying, Needs: v1alpha1.WantsNothing,
		Host: "commits; daemon-reload, reload, restart in plan order; done and fresh wants in one write",
		Edges: slices.Concat([]Edge{
			{Progressed, ifDrains, v1alpha1.StateBeforeUncordon},
			{Progressed, ifNoDrain, v1alpha1.StateIdle},
		}, givenBack, gone),
		Stays: map[Event]string{
			Vanished: "the host finishes what it began, or refuses", Failed: slotStays, Overran: slotStays,
		},
	}, {
		State: v1alpha1.StateBeforeUncordon, Host: "runs its hook units, if it takes part in the turn; done", Needs: v1alpha1.WantsNothing,
		Edges: slices.Concat(to(v1alpha1.StateUncordoning, Progressed), to(v1alpha1.StateIdle, TakenBack), gone),
		Stays: map[Event]string{
			Vanished: onlyGivesBack, Refused: slotStays, Failed: hooksAgain, FailedHealthy: hooksAgain, Overran: slotStays,
		},
	}, {
		State: v1alpha1.StateUncordoning, Needs: v1alpha1.WantsNothing,
		Host:  "when its Node is Ready: undoes its own cordon and removes the mark; done in the same write",
		Edges: slices.Concat(to(v1alpha1.StateIdle, Progressed, TakenBack), gone),
		Stays: map[Event]string{
			Vanished: onlyGivesBack, Refused: slotStays, Failed: slotStays, FailedHealthy: slotStays, Overran: slotStays,
		},
	},
}

// Table returns a copy of the table, for tests and documentation.
func Table() []Row { return slices.Clone(table) }

// Find returns the row of a state; ok is false for a state that is not known.
func Find(s v1alpha1.State) (row Row, ok bool) {
	for _, r := range table {
		if r.State == s {
			return r, true
		}
	}
	return Row{}, false
}

// Next returns the state that follows s on the event, for the plan. ok is false if the
// node stays. Next passes through a hook stage if waits reports that there is nothing to
// wait for in it.
func Next(s v1alpha1.State, on Event, plan Plan, waits func(v1alpha1.State) bool) (to v1alpha1.State, ok bool) {
	row, known := Find(s)
	if !known {
		return s, false
	}
	for _, e := range row.Edges {
		if e.On != on || !e.If.holds(plan) {
			continue
		}
		if e.To.HookStage() && !waits(e.To) {
			return Next(e.To, through(on), plan, waits)
		}
		return e.To, true
	}
	return s, false
}

// through returns the event on which a hook stage with nothing to wait for is left. A
// turn that is taken back does not continue to uncordoning: there is no cordon, and a silent
// host could not answer.
func through(on Event) Event {
	if on == TakenBack {
		return TakenBack
	}
	return Progressed
}

// Reachable reports whether the coordinator may replace the state from with the state to
// in one write: along one edge, or through hook stages with nothing to wait for. The test
// bed checks every change of the label with it.
func Reachable(from, to v1alpha1.State) bool {
	row, ok := Find(from)
	if !ok {
		return false
	}
	for _, e := range row.Edges {
		if e.To == to || e.To.HookStage() && reachableOn(e.To, through(e.On), to) {
			return true
		}
	}
	return false
}

func reachableOn(from v1alpha1.State, on Event, to v1alpha1.State) bool {
	row, _ := Find(from)
	for _, e := range row.Edges {
		if e.On == on && (e.To == to || e.To.HookStage() && reachableOn(e.To, on, to)) {
			return true
		}
	}
	return false
}
