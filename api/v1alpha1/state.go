package v1alpha1

import "slices"

// State is the value of [LabelState]: where in its turn a node is. The one
// table of what follows what is in package node/turn and rendered to
// docs/node-states.md.
type State string

// The states.
const (
	// StateAbsent: no label; the node is not managed.
	StateAbsent State = ""
	// StateIdle: managed, and in no turn.
	StateIdle State = "idle"
	// StatePaused: managed, in no turn, and an admin has paused it.
	StatePaused State = "paused"
	// StateBeforeDrain: hooks work before pods are evicted.
	StateBeforeDrain State = "before-drain"
	// StateDraining: the host cordons its Node and evicts its pods.
	StateDraining State = "draining"
	// StateBeforeReboot: hooks work on the drained node.
	StateBeforeReboot State = "before-reboot"
	// StateRebooting: the host reboots and proves its health.
	StateRebooting State = "rebooting"
	// StateApplying: the host reloads or restarts what its plan names.
	StateApplying State = "applying"
	// StateBeforeUncordon: hooks work before pods may come back; also where
	// a turn that is backed out goes first, so that hooks undo hooks' work.
	StateBeforeUncordon State = "before-uncordon"
	// StateUncordoning: the host undoes its own cordon.
	StateUncordoning State = "uncordoning"
)

// States are all states in the order of a turn, StateAbsent first.
func States() []State {
	return []State{
		StateAbsent, StateIdle, StatePaused, StateBeforeDrain, StateDraining, StateBeforeReboot,
		StateRebooting, StateApplying, StateBeforeUncordon, StateUncordoning,
	}
}

// Known reports whether s is one of the states. A host that meets a state it
// does not know (of a newer coordinator, or mistyped) does nothing.
func (s State) Known() bool { return slices.Contains(States(), s) }

// InTurn reports whether a node in this state is in a turn, and so takes a
// slot of the budget. A state that is not known is taken to be in one: that
// is the safe side.
func (s State) InTurn() bool { return s != StateAbsent && s != StateIdle && s != StatePaused }

// HookStage reports whether the state waits for hooks and nothing else.
func (s State) HookStage() bool {
	return s == StateBeforeDrain || s == StateBeforeReboot || s == StateBeforeUncordon
}

// String returns the label's value, and "absent" for StateAbsent.
func (s State) String() string {
	if s == StateAbsent {
		return "absent"
	}
	return string(s)
}

// Wants is the value of [LabelWants]: the strongest action in a host's plan.
type Wants string

// What a host can want, weakest first.
const (
	// WantsNothing: the host is up to date.
	WantsNothing Wants = "nothing"
	// WantsApply: units are to be reloaded or restarted; no pod has to go.
	WantsApply Wants = "apply"
	// WantsDrain: the same, on a drained node.
	WantsDrain Wants = "drain"
	// WantsReboot: the host has to reboot.
	WantsReboot Wants = "reboot"
)

var wantsByStrength = []Wants{WantsNothing, WantsApply, WantsDrain, WantsReboot}

// Known reports whether w is one of the values above.
func (w Wants) Known() bool { return slices.Contains(wantsByStrength, w) }

// AtLeast reports whether w is as strong as other or stronger. A value that
// is not known is weaker than all others.
func (w Wants) AtLeast(other Wants) bool {
	return slices.Index(wantsByStrength, w) >= slices.Index(wantsByStrength, other)
}

// Something reports whether w is known and more than WantsNothing.
func (w Wants) Something() bool { return w.Known() && w != WantsNothing }

// Result is how a turn ended; it is in [Last].
type Result string

// The results.
const (
	// ResultDone: the changes of the turn are in effect.
	ResultDone Result = "Done"
	// ResultCancelled: the turn ended early, and no failure of the node was the cause. The want
	// vanished, an admin took the node out, the policy no longer allowed the turn (its windows
	// closed, it holds the version back, its canaries do not run the version), or a new leader
	// found too many turns.
	ResultCancelled Result = "Cancelled"
	// ResultBackedOut: the turn could not continue and was backed out. The node tries
	// again after [Last].NotBefore, after all others.
	ResultBackedOut Result = "BackedOut"
	// ResultFailed: the host did what the turn was for, and it did not work.
	// It counts against maxFailed until AnnotationRetry clears it.
	ResultFailed Result = "Failed"
)

// String returns the action as "Reboot" or "Restart containerd.service".
func (a Action) String() string {
	if a.Unit != "" {
		return string(a.Type) + " " + a.Unit
	}
	return string(a.Type)
}

// StateDoc is a state with what it means for a node and what a person can do.
type StateDoc struct {
	State State
	Means string
	Do    string
}

// Doc returns what the state means, or the zero StateDoc for one that is not
// known here.
func (s State) Doc() StateDoc {
	for _, d := range stateDocs {
		if d.State == s {
			return d
		}
	}
	return StateDoc{}
}

// stateDocs are all states, in the order of [States].
var stateDocs = []StateDoc{
	{StateAbsent, "no coordinator manages the node", "check that an instance coordinates (`lockkeeper status`), and that the node is neither detached nor labeled lockkeeper.dev/managed=false"},
	{StateIdle, "the node is managed and in no turn", "nothing"},
	{StatePaused, "an admin has paused the node; it gets no turn", "`lockkeeper resume NODE` to continue"},
	{StateBeforeDrain, "hooks run before pods are evicted: those of the policy, and the units that lockkeeper-before-drain.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateDraining, "the host cordons its node and evicts its pods", "nothing; if it lasts, `systemctl status lockkeeper` on the host names the pod that blocks"},
	{StateBeforeReboot, "hooks run on the drained node: those of the policy, and the units that lockkeeper-before-reboot.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateRebooting, "the host waits for inhibitors and sessions, commits, reboots, and proves its health in the new boot", "nothing; if it does not come back, check the machine; it still takes a slot"},
	{StateApplying, "the host reloads or restarts what its plan names", "nothing"},
	{StateBeforeUncordon, "hooks run before pods may come back: those of the policy, and the units that lockkeeper-before-uncordon.target wants", "nothing; if it lasts, `lockkeeper status NODE` names the hook"},
	{StateUncordoning, "the host undoes its own cordon as soon as its node is Ready", "nothing; if it lasts, check the kubelet"},
}
