package forecast

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Outcome is what would become of a node.
type Outcome string

// The outcomes.
const (
	// Nothing: there is nothing to do.
	Nothing Outcome = "Nothing"
	// Goes: it would be granted its turn now.
	Goes Outcome = "Goes"
	// Held: it would not, for the reason in Held.
	Held Outcome = "Held"
	// InTurn: it is in a turn already.
	InTurn Outcome = "InTurn"
	// NotManaged: lockkeeper does not look after it.
	NotManaged Outcome = "NotManaged"
)

// Forecast is what would become of the nodes asked about. Its JSON form is that of
// `lockkeeper plan -o json`: fields are added, never renamed.
type Forecast struct {
	Time time.Time `json:"time"` // of what was read, by the API server's clock
	// Asked are the changes that were asked about; none: what the hosts publish.
	Asked []v1alpha1.Change `json:"asked,omitempty"`
	// Held reports whether at least one of the nodes would be held.
	Held bool `json:"held"`
	// Unseen are what could not be read, and is missing here.
	Unseen []string `json:"unseen,omitempty"`
	// NoPods: among these are the pods, so that nothing is known of them.
	NoPods bool `json:"noPods,omitempty"`
	// Groups are the nodes by their answer; those with something to do come first,
	// then the largest.
	Groups []Group `json:"groups"`
}

// Group are nodes that have the same answer.
type Group struct {
	Answer
	Nodes []Node `json:"nodes"` // by name
}

// Answer is what there is to say of a node that may be the same for many.
type Answer struct {
	Outcome Outcome `json:"outcome"`
	// Held is why the node would be held, or is where it is in a turn, and Why says
	// more, as the coordinator would.
	Held v1alpha1.Reason `json:"held,omitempty"`
	Why  string          `json:"why,omitempty"`
	// State is there for a node in a turn.
	State v1alpha1.State `json:"state,omitempty"`
	// Policy is the one that decides the node's rollout; "" if none selects it.
	Policy string `json:"policy,omitempty"`

	// Changes are those asked about and those pending, each with its rule.
	Changes []Change       `json:"changes,omitempty"`
	Wants   v1alpha1.Wants `json:"wants"`
	Drains  bool           `json:"drains"`
	Steps   []Step         `json:"steps,omitempty"`
	// HeldBack are the changes to OS versions that no node is to boot.
	HeldBack []v1alpha1.Change `json:"heldBack,omitempty"`

	// Stages are those of the turn, in order; none where there is none to come.
	Stages []Stage `json:"stages,omitempty"`
	// Rollout is there where a valid policy decides, and there is a turn to come.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Notes are what else is to be known.
	Notes []string `json:"notes,omitempty"`
}

// Change is one change and what says what it costs.
type Change struct {
	v1alpha1.Change
	// Pending: the host publishes it already.
	Pending bool `json:"pending,omitempty"`
	// Rule is nil if none names the change: it costs a reboot of a drained node, or
	// nothing if Unwatched.
	Rule *Rule `json:"rule,omitempty"`
	// Unwatched: hosts look only at files and units that rules name.
	Unwatched bool `json:"unwatched,omitempty"`
	// Wider are rules of shorter paths that name the change too; Replaced are those
	// with the same key in policies that do not win.
	Wider    []Rule `json:"wider,omitempty"`
	Replaced []Rule `json:"replaced,omitempty"`
}

// Rule is a rule of a policy.
type Rule struct {
	Key    string   `json:"key"`
	Policy string   `json:"policy"`
	Costs  []string `json:"costs"`
}

// Step is one action of the plan, and the changes that it is for.
type Step struct {
	Action  string   `json:"action"`
	Because []string `json:"because"`
}

// Stage is a state of the turn and what it waits for.
type Stage struct {
	State v1alpha1.State `json:"state"`
	// Limit is when it is overdue, and OnTimeout what follows then; not in a hook
	// stage, where each hook has its own.
	Limit     metav1.Duration    `json:"limit,omitzero"`
	OnTimeout v1alpha1.OnTimeout `json:"onTimeout,omitempty"`
	Hooks     []v1alpha1.Hook    `json:"hooks,omitempty"`
	// HostHooks is how long the host's own hook units may take; 0: it has none.
	HostHooks metav1.Duration `json:"hostHooks,omitzero"`
	// Volumes: it waits until no volume is attached.
	Volumes bool `json:"volumes,omitempty"`
}

// Rollout is how the node's policy lets nodes go.
type Rollout struct {
	// Allowed is how many of the policy's nodes may be unavailable, Unavailable how
	// many are.
	Allowed     int `json:"allowed"`
	Unavailable int `json:"unavailable"`
	// Opens is when a window opens that a turn fits in, Closes when the one closes
	// that is open now; both are missing where there are no windows.
	Opens  *time.Time `json:"opens,omitempty"`
	Closes *time.Time `json:"closes,omitempty"`
	// NeverOpens: no window that a turn fits in opens within eight days.
	NeverOpens bool `json:"neverOpens,omitempty"`
	// OnClose is there where it is Cancel.
	OnClose v1alpha1.OnClose `json:"onClose,omitempty"`
	// Gates are the names of its gates, which only the coordinator asks. GateClosed:
	// it holds a node of the policy for one of them.
	Gates      []string `json:"gates,omitempty"`
	GateClosed bool     `json:"gateClosed,omitempty"`
}

// Node is what there is to say of one node alone.
type Node struct {
	Name string `json:"name"`
	// Ahead is how many come before the node in its policy's queue, those that the
	// change comes to at the same time included; nil: it is not in it.
	Ahead *int `json:"ahead,omitempty"`
	// BeginsIn is in how long its turn is expected to begin; nil where that is not
	// known.
	BeginsIn *metav1.Duration `json:"beginsIn,omitempty"`

	// Evict, Wait, Block and Leave are the node's pods, if its plan drains: those
	// evicted, those on their way out, those waited for and never evicted, and those
	// left.
	Evict []Pod `json:"evict,omitempty"`
	Wait  []Pod `json:"wait,omitempty"`
	Block []Pod `json:"block,omitempty"`
	Leave []Pod `json:"leave,omitempty"`
	// Blocking are what would refuse evictions at this moment, Slowing what would let
	// only some of them through at once.
	Blocking []Obstacle `json:"blocking,omitempty"`
	Slowing  []Obstacle `json:"slowing,omitempty"`
}

// Pod is a pod, and why a drain does with it what it does.
type Pod struct {
	Name   string `json:"name"` // namespace/name
	Reason string `json:"reason"`
}

// Obstacle is a PodDisruptionBudget that stands in the way of evictions, or
// several that select the same pod.
type Obstacle struct {
	Budgets []string `json:"budgets"` // namespace/name
	Why     string   `json:"why"`
	Pods    []string `json:"pods"` // namespace/name
}
