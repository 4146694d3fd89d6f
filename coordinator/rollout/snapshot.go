package rollout

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Stop is when an emergency stop was set. The zero value is none.
type Stop struct{ Since, Until time.Time }

// And returns one stop that ends with next, and lasted as long as both stops together.
func (s Stop) And(next Stop) Stop {
	return Stop{next.Since.Add(-s.Until.Sub(s.Since)), next.Until}
}

// Snapshot is the cluster at one moment, as a leader sees it: what it listed from the
// quorum after it won the Lease, updated by a watch and overlaid by what its own writes
// returned.
type Snapshot struct {
	Now time.Time
	// Epoch is the leader's term. With "", as `lockkeeper status` has it, every turn
	// counts as a turn of this term.
	Epoch string
	// Self is the leader's own Node, which gets its turn last.
	Self string
	// Protocol is the leader's protocol; 0 is that of this process. Only a command that is not the
	// leader, and may be older or newer, sets it.
	Protocol int
	// LedUntil is when the previous leader last renewed the Lease. No leader has promoted a
	// node since then, so the clocks of turns of other terms are stopped. Zero: unknown, for
	// example because a person blanked the Lease.
	LedUntil time.Time
	// LedBy is the previous leader's term. "": unknown, because it gave the Lease back before
	// this instance has seen its name there, or because a person blanked the Lease.
	LedBy string
	// Rewound is when this process last noticed that the API server's store went
	// back in time, because it was restored from a backup. Zero: never.
	Rewound time.Time
	// Stopped reports whether the emergency stop is set, or there is no Lease.
	Stopped  bool
	StopText string
	// StoppedSince is since when this leader has seen the stop. Zero: unknown, or there is
	// none. A turn whose Node could not be written meanwhile has been stopped since then.
	StoppedSince time.Time
	// StopMissed holds the nodes under an earlier stop of this term that ended before the
	// leader could record on the Node that the turn's clock is stopped.
	StopMissed map[string]Stop

	// Policies are all DisruptionPolicies, invalid ones included. A node that
	// none of them selects is granted nothing.
	Policies policy.Set
	// Unread is set if the policies could not be read again for a while, so that
	// Policies may be outdated; it says why. No turn begins by outdated policies.
	Unread string
	// Gates holds the last answers of the policies' gates, by [GateKey]. For a leader, a
	// gate without an answer is closed. Without an Epoch such a gate is ignored.
	Gates map[string]Gate
	// Nodes are all Nodes of the cluster, in any order. A decision is quickest in the order of
	// their names.
	Nodes []turn.Node
	// Uncertain holds the nodes to which a write has an unknown outcome. Each takes a
	// slot, and nothing is granted while there is one.
	Uncertain map[string]bool
	// Unsettled holds the nodes of Uncertain whose outcome has been unknown for a minute.
	// The text says since when, and why.
	Unsettled map[string]string
	// Refused holds the nodes to which the API server has refused a write lately, with
	// its message. They are granted nothing, so that one node that an admission webhook
	// guards does not keep the others waiting. The coordinator keeps trying to move a
	// turn that is under way.
	Refused map[string]string
}

// Gate is the answer to a gate's query.
type Gate struct {
	Open bool
	// Detail says why it is closed: what the query returned, or why it failed.
	Detail string
}

// GateKey returns the key of a policy's gate in Snapshot.Gates.
func GateKey(policy, gate string) string { return policy + "/" + gate }

// Verdict is the decision about one node.
type Verdict struct {
	Node string
	// Policy is the name of the policy that decides the node's rollout, which
	// may be invalid; "" if none selects the node.
	Policy string
	// Held is why the node does not move, for LabelHeld. It is ReasonNone for a node that
	// moves to another state, that has nothing to wait for, or whose host works and is
	// not overdue. A move that releases the node sets it too.
	Held   v1alpha1.Reason
	Detail string
	// Move is what to write to the Node, or nil.
	Move *Move
}

// Move is one write to a Node. It is carried out with the resourceVersion of
// the Node in the snapshot, and dropped on a conflict.
type Move struct {
	From, To v1alpha1.State
	On       turn.Event // "" for a write that leaves the state alone
	Reason   v1alpha1.Reason

	// NewTurn: package coordinator generates a random ID for the turn, and puts it into
	// Grant and AnnotationTurn.
	NewTurn bool
	// Grant replaces AnnotationGrant (and AnnotationTurn by its Turn); nil
	// removes both, unless Keep.
	Grant *v1alpha1.Grant
	// Last, where not nil, replaces AnnotationLast.
	Last *v1alpha1.Last
	// Runs, where not nil, replaces AnnotationRuns.
	Runs *v1alpha1.Runs
	// Remove are further annotations to remove.
	Remove []string
	// Expired: Remove has intents whose until has passed. The write has to set
	// AnnotationExpired to another value, or the API server refuses it.
	Expired bool
	// Keep: turn and grant stay as they are.
	Keep bool
	// LetGo: the write releases a node that is detached or not managed. It removes
	// every key of the coordinator except held, and those of the host in
	// [v1alpha1.ReleasedKeys]; also last, unless Last is set.
	LetGo bool
}

// Disturbs reports whether the move grants a node its turn.
func (m *Move) Disturbs() bool { return m.On == turn.Granted }

// Outcome is what Decide returns.
type Outcome struct {
	// Verdicts has one verdict for each node, ordered by name.
	Verdicts []Verdict
	// Again is when the next decision may differ although no Node changes; the zero time
	// means never.
	Again time.Time
	// Slots are the nodes that count as unavailable, by name.
	Slots []Slot
	Figures
	queue []*place
}

// Queue returns the nodes that wait only because of their policies and the budgets, and
// those that are granted their turn now, in the order of their turns. It is empty under the
// emergency stop. Each call sorts them, which for a large fleet takes as long as a third of a
// decision.
func (o *Outcome) Queue() []string {
	names := make([]string, 0, len(o.queue))
	for _, p := range slices.SortedFunc(slices.Values(o.queue), inOrder) {
		names = append(names, p.verdict.Node)
	}
	return names
}

// Figures are counts over the snapshot.
type Figures struct {
	Total       int // Nodes in the cluster
	Managed     int // have a state
	Reporting   int // of Managed: the host has reported in the Node's present boot
	Wanting     int // want something, or are in a turn
	InTurn      int
	Unavailable int // as the budgets count them
	Failed      int // failed, and no retry has cleared them
	// Budget is how many may be unavailable at the most: the sum over the valid
	// policies that decide about a node, and no more than the smallest
	// maxUnavailableTotal.
	Budget int
	// Halted: at least one policy is halted.
	Halted bool
	// Settling is when the last policy's nodes will have settled; the zero time if all
	// have.
	Settling time.Time
	// Policies has the figures of each policy, in the order of the Set.
	Policies []PolicyFigures
}

// PolicyFigures are counts over the nodes whose rollout one policy decides. A
// turn that another policy granted, or one that this policy granted on a node
// that has another by now, counts in both: in InTurn, Unavailable and Failed.
// Its JSON form is part of that of `lockkeeper status -o json`.
type PolicyFigures struct {
	// Name is the policy's name.
	Name string `json:"name"`
	// Generation is the policy's metadata.generation.
	Generation int64 `json:"generation,omitempty"`

	// RulesOnly is true if the policy only adds rules and decides no rollout.
	RulesOnly bool `json:"rulesOnly,omitempty"`
	// Observe is true if the policy's mode is Observe, so that it grants nothing.
	Observe bool `json:"observe,omitempty"`
	// Paused is true if the policy's spec.paused is true.
	Paused   bool             `json:"paused,omitempty"`
	Problems []policy.Problem `json:"-"` // with any it is invalid

	// Selected is the number of managed nodes whose rollout the policy decides. A percentage in the
	// policy is a percentage of them.
	Selected int `json:"selected"`
	// UpToDate is the number of these nodes that want nothing and are in no turn.
	UpToDate int `json:"upToDate"`
	// Wanting is the number of these nodes that want something or are in a turn.
	Wanting int `json:"wanting"`
	// InTurn is the number of nodes in a turn.
	InTurn int `json:"inTurn"`
	// Unavailable is the number of nodes that count as unavailable under the policy's
	// `maxUnavailable`.
	Unavailable int `json:"unavailable"`
	// Failed is the number of nodes that count under the policy's `maxFailed`.
	Failed int `json:"failed"`
	// Allowed is the policy's `maxUnavailable`, as a number of nodes.
	Allowed int `json:"allowed"`
	// MaxFailed is how many nodes may fail before the policy halts.
	MaxFailed int `json:"maxFailed"`
	// Halted is true if the policy grants nothing until failed turns are cleared.
	Halted bool `json:"halted"`
	// Settling is when the settle time after the policy's last turn ends. It is missing if the time
	// has ended.
	Settling time.Time `json:"settlingUntil,omitzero"`
	// Held is the number of nodes that are held, by reason.
	Held map[v1alpha1.Reason]int `json:"held,omitempty"`
	// Details has, for each reason in Held, the explanation about one node.
	Details map[v1alpha1.Reason]string `json:"-"`
	// Moving are those of Selected that are in a turn, or granted one now, and not
	// held.
	Moving int `json:"-"`
	// Waiting are those of Selected that want something and are in no turn. InTurn also has nodes
	// that another policy selects by now, so it says nothing about how many wait.
	Waiting int `json:"-"`
	// Matches are what the policies say of Selected, all that the same ones
	// select together. Of a policy with rulesOnly, whose Selected is 0, they are
	// what the policies say of all managed nodes that it selects.
	Matches []MatchFigures `json:"-"`
}

// MatchFigures are the managed nodes that the same policies select.
type MatchFigures struct {
	policy.Match
	Nodes int
}

// managed reports whether the node is managed, as far as the Node says. A node whose host
// has never reported is not managed.
func managed(n *turn.Node) bool {
	if n.Managed != nil && !*n.Managed {
		return false
	}
	if n.State == v1alpha1.StateAbsent && n.Detached != nil {
		return false
	}
	if n.State != v1alpha1.StateAbsent {
		return true
	}
	return n.Host != nil && n.Host.Managed
}

// byUs reports whether the node is, or may be, unavailable because of lockkeeper: it is in
// a turn or has the mark, whatever its labels say.
func byUs(n *turn.Node) bool { return n.InTurn() || n.Mark }
