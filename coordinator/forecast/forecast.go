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
	// Time is when the cluster was read, by the API server's clock.
	Time time.Time `json:"time"`
	// Asked lists the changes that --change names. If it is missing, the plan is about the changes
	// that the hosts publish.
	Asked []v1alpha1.Change `json:"asked,omitempty"`
	// Held is true if at least one of the nodes would be held.
	Held bool `json:"held"`
	// Unseen lists what could not be read and is missing in the plan.
	Unseen []string `json:"unseen,omitempty"`
	// NoPods is true if the pods could not be read.
	NoPods bool `json:"noPods,omitempty"`
	// Groups lists the nodes, grouped by their result. The groups are ordered by outcome: InTurn,
	// Goes, Held, Nothing, NotManaged. If several have the same outcome, the largest comes first.
	Groups []Group `json:"groups"`
}

// Group is a set of nodes with the same answer.
type Group struct {
	Answer
	// Nodes lists the nodes of the group, by name.
	Nodes []Node `json:"nodes"`
}

// Answer is the part of the forecast that many nodes can share.
type Answer struct {
	// Outcome is what would happen to the nodes: InTurn (they are in a turn already), Goes (they
	// would be granted a turn now), Held, Nothing (they have nothing to do) or NotManaged.
	Outcome Outcome `json:"outcome"`
	// Held is the reason that would hold the nodes or, for nodes in a turn, holds them.
	Held v1alpha1.Reason `json:"held,omitempty"`
	// Why explains `held`, as the coordinator does.
	Why string `json:"why,omitempty"`
	// State is the state of nodes in a turn.
	State v1alpha1.State `json:"state,omitempty"`
	// Policy is the policy that decides the nodes' rollout. It is missing if no policy selects them.
	Policy string `json:"policy,omitempty"`

	// Changes lists the changes that --change names and those that are pending, each with its rule.
	Changes []Change `json:"changes,omitempty"`
	// Wants is what the host would want then: nothing, apply, drain or reboot.
	Wants v1alpha1.Wants `json:"wants"`
	// Drains is true if the plan includes a drain.
	Drains bool `json:"drains"`
	// Steps lists the steps of the plan, in order.
	Steps []Step `json:"steps,omitempty"`
	// HeldBack lists the changes to OS versions that a policy holds back.
	HeldBack []v1alpha1.Change `json:"heldBack,omitempty"`

	// Stages lists the stages of the next turn, in order. It is missing if no turn is expected.
	Stages []Stage `json:"stages,omitempty"`
	// Rollout is what the policy allows. It is missing if no valid policy decides about the nodes,
	// or no turn is expected.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Notes has further remarks, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// Change is one change and the rule that says what it costs.
type Change struct {
	v1alpha1.Change
	// Pending is true if the host publishes the change already.
	Pending bool `json:"pending,omitempty"`
	// Request is the request for a reboot. It is set only if the change is a pending request.
	Request *v1alpha1.Request `json:"request,omitempty"`
	// Rule is the rule that names the change. If it is missing, the change costs a drain and a
	// reboot, or nothing if `unwatched` is true.
	Rule *Rule `json:"rule,omitempty"`
	// Unwatched is true if no rule names this file or unit, so that the host does not watch it.
	Unwatched bool `json:"unwatched,omitempty"`
	// Wider lists the rules with shorter paths that also name the change.
	Wider []Rule `json:"wider,omitempty"`
	// Replaced lists the rules with the same key, in policies that do not take precedence.
	Replaced []Rule `json:"replaced,omitempty"`
}

// Rule is a rule of a policy.
type Rule struct {
	// Key says which changes the rule names.
	Key string `json:"key"`
	// Policy is the policy that has the rule.
	Policy string `json:"policy"`
	// Costs lists the actions that these changes cost.
	Costs []string `json:"costs"`
}

// Step is one action of the plan, and the changes that need it.
type Step struct {
	// Action is what the host does.
	Action string `json:"action"`
	// Because has a sentence for each change that needs the step.
	Because []string `json:"because"`
}

// Stage is a state of the turn and what it waits for.
type Stage struct {
	// State is the node's state in the stage.
	State v1alpha1.State `json:"state"`
	// Limit is how long the stage may take. A hook stage has none, because each hook has its own.
	Limit metav1.Duration `json:"limit,omitzero"`
	// OnTimeout is what happens when that time is over. A hook stage has none, because each hook has
	// its own.
	OnTimeout v1alpha1.OnTimeout `json:"onTimeout,omitempty"`
	// Hooks lists the hooks that the stage waits for.
	Hooks []v1alpha1.Hook `json:"hooks,omitempty"`
	// HostHooks is how long the host's own hook units may take. It is missing if the host has none.
	HostHooks metav1.Duration `json:"hostHooks,omitzero"`
	// Volumes is true if the stage waits until no volume is attached.
	Volumes bool `json:"volumes,omitempty"`
}

// Rollout is what the node's policy allows.
type Rollout struct {
	// Allowed is how many of the policy's nodes may be unavailable.
	Allowed int `json:"allowed"`
	// Unavailable is how many of the policy's nodes are unavailable.
	Unavailable int `json:"unavailable"`
	// Opens is when the next window opens in which a turn fits. It is missing if such a window is
	// open now, or if the policy has no windows and no blackout holds.
	Opens *time.Time `json:"opens,omitempty"`
	// Closes is when the window closes that is open now. It is missing if no window is open.
	Closes *time.Time `json:"closes,omitempty"`
	// Blackout names the blackout that holds now or, if a window is open, that closes it.
	Blackout string `json:"blackout,omitempty"`
	// BlackoutEnds is when that blackout ends.
	BlackoutEnds *time.Time `json:"blackoutEnds,omitempty"`
	// NeverOpens is true if no window in which a turn fits opens within eight days.
	NeverOpens bool `json:"neverOpens,omitempty"`
	// OnClose is Cancel if turns are backed out when the window closes, or a blackout begins. Otherwise it is missing.
	OnClose v1alpha1.OnClose `json:"onClose,omitempty"`
	// Gates lists the names of the policy's gates. Only the coordinator checks them.
	Gates []string `json:"gates,omitempty"`
	// GateClosed is true if the coordinator holds nodes of the policy because a gate is closed.
	GateClosed bool `json:"gateClosed,omitempty"`
}

// Node is the part of the forecast that differs from node to node.
type Node struct {
	// Name is the Node's name.
	Name string `json:"name"`
	// Ahead is how many nodes come before this one in its policy's queue. It includes nodes that get
	// the change at the same time. It is missing if the node is not queued.
	Ahead *int `json:"ahead,omitempty"`
	// BeginsIn is the expected time until the node's turn begins. It is missing if it is unknown.
	BeginsIn *metav1.Duration `json:"beginsIn,omitempty"`
	// NotBefore is the time before which the node's turn does not begin, because its canaries do not
	// run the version for long enough before that. It is missing if `beginsIn` is known.
	NotBefore *time.Time `json:"notBefore,omitempty"`

	// Evict lists the pods that the drain would evict.
	Evict []Pod `json:"evict,omitempty"`
	// Wait lists the pods that are ending already. The drain waits for them.
	Wait []Pod `json:"wait,omitempty"`
	// Block lists the pods that the drain must not evict. Before the cordon, they keep the node from
	// its turn; after it, the drain waits for them.
	Block []Pod `json:"block,omitempty"`
	// BlockLimit says for how long such pods may keep the node from its turn, and what happens then.
	// It is missing if there is no such pod, or if the node is in a turn.
	BlockLimit *BlockLimit `json:"blockLimit,omitempty"`
	// Leave lists the pods that the drain ignores.
	Leave []Pod `json:"leave,omitempty"`
	// Blocking lists the PodDisruptionBudgets that would refuse all evictions now.
	Blocking []Obstacle `json:"blocking,omitempty"`
	// Slowing lists the PodDisruptionBudgets that would allow only some of the evictions at once.
	Slowing []Obstacle `json:"slowing,omitempty"`
}

// BlockLimit is the policy's time limit for pods that block.
type BlockLimit struct {
	// Since is since when such pods have kept the node from its turn. It is missing if the host has
	// not published that yet.
	Since *time.Time `json:"since,omitempty"`
	// Timeout is the policy's `drain.blockTimeout`. It is missing if there is none.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// Ends is when that time is over. It is missing if there is none, or if it has not begun.
	Ends *time.Time `json:"ends,omitempty"`
	// Then is the policy's `drain.onBlockTimeout`.
	Then v1alpha1.OnBlockTimeout `json:"then,omitempty"`
	// Off is true if the time is over and the host has published that its next turn evicts the pods.
	Off bool `json:"off,omitempty"`
}

// Pod is a pod, and why the drain treats it as it does.
type Pod struct {
	// Name is the pod, as namespace/name.
	Name string `json:"name"`
	// Reason is why the drain treats the pod in this way.
	Reason string `json:"reason"`
}

// Obstacle is a PodDisruptionBudget that delays evictions, or several that select the
// same pods.
type Obstacle struct {
	// Budgets lists the PodDisruptionBudgets, as namespace/name. If there are several, they
	// select the same pods.
	Budgets []string `json:"budgets"`
	// Why says why they delay evictions.
	Why string `json:"why"`
	// Pods lists the pods, as namespace/name.
	Pods []string `json:"pods"`
}
