package forecast

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Outcome is what would happen to a node.
type Outcome string

// The outcomes.
const (
	// Nothing: the node has nothing to do.
	Nothing Outcome = "Nothing"
	// Goes: the node would be granted its turn now.
	Goes Outcome = "Goes"
	// Held: the node would be held, for the reason in [Answer].Held.
	Held Outcome = "Held"
	// InTurn: the node is in a turn already.
	InTurn Outcome = "InTurn"
	// NotManaged: lockkeeper does not manage the node.
	NotManaged Outcome = "NotManaged"
)

// Forecast is what would happen to the nodes in the question. Its JSON form is that of
// `lockkeeper plan -o json`: fields are added, never renamed.
type Forecast struct {
	Time time.Time `json:"time"` // when the input was read, by the API server's clock
	// Asked are the changes in the question. If it is empty, the forecast is about the
	// changes that the hosts publish.
	Asked []v1alpha1.Change `json:"asked,omitempty"`
	// Held reports whether at least one of the nodes would be held.
	Held bool `json:"held"`
	// Unseen lists what could not be read and is missing in the forecast.
	Unseen []string `json:"unseen,omitempty"`
	// NoPods reports that the pods could not be read.
	NoPods bool `json:"noPods,omitempty"`
	// Groups are the nodes grouped by their answer. Groups are ordered by outcome: InTurn,
	// Goes, Held, Nothing, NotManaged. Of the same outcome, the largest comes first.
	Groups []Group `json:"groups"`
}

// Group is a set of nodes with the same answer.
type Group struct {
	Answer
	Nodes []Node `json:"nodes"` // by name
}

// Answer is the part of the forecast that many nodes can share.
type Answer struct {
	Outcome Outcome `json:"outcome"`
	// Held is why the node would be held or, for a node in a turn, is held. Why explains
	// it in the coordinator's words.
	Held v1alpha1.Reason `json:"held,omitempty"`
	Why  string          `json:"why,omitempty"`
	// State is set for a node in a turn.
	State v1alpha1.State `json:"state,omitempty"`
	// Policy is the one that decides the node's rollout; "" if none selects it.
	Policy string `json:"policy,omitempty"`

	// Changes are the changes in the question and those pending, each with its rule.
	Changes []Change       `json:"changes,omitempty"`
	Wants   v1alpha1.Wants `json:"wants"`           // what the node wants then
	Drains  bool           `json:"drains"`          // the plan includes a drain
	Steps   []Step         `json:"steps,omitempty"` // the plan
	// HeldBack are the changes to OS versions that a policy holds back.
	HeldBack []v1alpha1.Change `json:"heldBack,omitempty"`

	// Stages are the stages of the node's next turn, in order. It is empty if no turn is
	// expected.
	Stages []Stage `json:"stages,omitempty"`
	// Rollout is set if a valid policy decides about the node and a turn is expected.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Notes are further remarks, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// Change is one change and the rule that says what it costs.
type Change struct {
	v1alpha1.Change
	// Pending: the host publishes the change already.
	Pending bool `json:"pending,omitempty"`
	// Request is the request that the pending change is; null for other changes.
	Request *v1alpha1.Request `json:"request,omitempty"`
	// Rule is nil if no rule names the change. Then the change costs a drain and a
	// reboot, or nothing if Unwatched.
	Rule *Rule `json:"rule,omitempty"`
	// Unwatched: no rule names this file or unit, so the host does not watch it.
	Unwatched bool `json:"unwatched,omitempty"`
	// Wider are rules with shorter paths that also name the change. Replaced are rules
	// with the same key in policies that do not win.
	Wider    []Rule `json:"wider,omitempty"`
	Replaced []Rule `json:"replaced,omitempty"`
}

// Rule is a rule of a policy.
type Rule struct {
	Key    string   `json:"key"`    // the changes that it names
	Policy string   `json:"policy"` // the policy that has it
	Costs  []string `json:"costs"`  // what they cost
}

// Step is one action of the plan, and the changes that need it.
type Step struct {
	Action  string   `json:"action"`  // what the host does
	Because []string `json:"because"` // a sentence for each change that needs it
}

// Stage is a state of the turn and what it waits for.
type Stage struct {
	State v1alpha1.State `json:"state"`
	// Limit is how long the stage may take, and OnTimeout what happens after that. A hook
	// stage has neither, because each hook has its own.
	Limit     metav1.Duration    `json:"limit,omitzero"`
	OnTimeout v1alpha1.OnTimeout `json:"onTimeout,omitempty"`
	Hooks     []v1alpha1.Hook    `json:"hooks,omitempty"` // that it waits for
	// HostHooks is how long the host's own hook units may take; 0: the host has none.
	HostHooks metav1.Duration `json:"hostHooks,omitzero"`
	// Volumes: the stage waits until no volume is attached.
	Volumes bool `json:"volumes,omitempty"`
}

// Rollout is what the node's policy allows.
type Rollout struct {
	// Allowed is how many of the policy's nodes may be unavailable. Unavailable is how
	// many are.
	Allowed     int `json:"allowed"`
	Unavailable int `json:"unavailable"`
	// Opens is when the next window opens that a turn fits in. Closes is when the window
	// that is open now closes. Both are nil if the policy has no windows.
	Opens  *time.Time `json:"opens,omitempty"`
	Closes *time.Time `json:"closes,omitempty"`
	// NeverOpens: no window that a turn fits in opens within eight days.
	NeverOpens bool `json:"neverOpens,omitempty"`
	// OnClose is set only if it is Cancel.
	OnClose v1alpha1.OnClose `json:"onClose,omitempty"`
	// Gates are the names of the policy's gates. Only the coordinator checks them.
	// GateClosed: the coordinator holds nodes of the policy because a gate is closed.
	Gates      []string `json:"gates,omitempty"`
	GateClosed bool     `json:"gateClosed,omitempty"`
}

// Node is the part of the forecast that differs from node to node.
type Node struct {
	Name string `json:"name"` // of the Node
	// Ahead is how many nodes come before this one in its policy's queue. It includes
	// nodes that get the change at the same time. It is nil if the node is not queued.
	Ahead *int `json:"ahead,omitempty"`
	// BeginsIn is the expected time until the node's turn begins; nil if unknown.
	BeginsIn *metav1.Duration `json:"beginsIn,omitempty"`

	// Evict, Wait, Block and Leave are the node's pods, if its plan drains. The drain
	// evicts the pods in Evict, waits for those in Wait, which are already ending, waits
	// for those in Block but never evicts them, and ignores those in Leave.
	Evict []Pod `json:"evict,omitempty"`
	Wait  []Pod `json:"wait,omitempty"`
	Block []Pod `json:"block,omitempty"`
	Leave []Pod `json:"leave,omitempty"`
	// Blocking would refuse all evictions now. Slowing would allow only some of them at
	// once.
	Blocking []Obstacle `json:"blocking,omitempty"`
	Slowing  []Obstacle `json:"slowing,omitempty"`
}

// Pod is a pod, and why the drain treats it as it does.
type Pod struct {
	Name   string `json:"name"`   // namespace/name
	Reason string `json:"reason"` // why the drain treats it so
}

// Obstacle is a PodDisruptionBudget that delays evictions, or several that select the
// same pods.
type Obstacle struct {
	Budgets []string `json:"budgets"` // namespace/name
	Why     string   `json:"why"`     // why they delay evictions
	Pods    []string `json:"pods"`    // namespace/name
}
