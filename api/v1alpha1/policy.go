package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// DisruptionPolicy says what changes cost on the nodes that it selects, and how
// fast those nodes may roll.
//
// A node's rules are the union over all policies that select it, the rule of a
// higher priority replacing one with an equal key. Everything else (rollout,
// hooks, drain, timeouts, mode, paused) comes from the one of the highest
// priority; of two with the same priority, from the one whose name comes first.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dp
type DisruptionPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec DisruptionPolicySpec `json:"spec"`
	// Status is the coordinator's word.
	Status DisruptionPolicyStatus `json:"status,omitzero"`
}

// DisruptionPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type DisruptionPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []DisruptionPolicy `json:"items"`
}

// DefaultPolicyName is the policy in the manifests, of the lowest priority.
const DefaultPolicyName = "lockkeeper-default"

// MinPriority and MaxPriority bound a policy's priority.
const (
	MinPriority = -1000
	MaxPriority = 1000
)

// DisruptionPolicySpec is what an admin says.
type DisruptionPolicySpec struct {
	// NodeSelector selects nodes by their labels; the empty one selects all.
	NodeSelector metav1.LabelSelector `json:"nodeSelector,omitzero"`
	// Priority of this policy over others that select the same node: -1000 to
	// 1000, the higher wins.
	Priority int32 `json:"priority"`
	// Mode Observe publishes verdicts and grants nothing.
	Mode PolicyMode `json:"mode"`
	// Paused: nothing is granted. Turns under way go on.
	Paused bool `json:"paused,omitempty"`

	// Rules say what changes cost. A change that no rule names costs a reboot of
	// a drained node.
	Rules    []Rule         `json:"rules,omitempty"`
	Rollout  RolloutSpec    `json:"rollout"`
	Hooks    HooksSpec      `json:"hooks,omitzero"`
	Drain    DrainSpec      `json:"drain"`
	Timeouts PolicyTimeouts `json:"timeouts"`
}

// PolicyMode is whether a policy acts.
type PolicyMode string

// The modes.
const (
	PolicyModeAct     PolicyMode = "Act"
	PolicyModeObserve PolicyMode = "Observe"
)

// Rule says what a change costs. Its key is its source together with path or
// unit; one policy has at most one rule for a key.
type Rule struct {
	// Source of the changes.
	Source Source `json:"source"`
	// Path of a File rule: a file, or a directory for all that is below it. Of a
	// Sentinel rule: the sentinel; without it the rule is for all sentinels.
	// Absolute and clean. The rule of the longest path wins.
	Path string `json:"path,omitempty"`
	// Unit of a Unit rule: the name of the systemd unit whose files, drop-ins
	// included, are watched.
	Unit string `json:"unit,omitempty"`
	// HoldBack, of an OSUpdate rule, is a pattern (as of a shell: * and ?) of OS
	// versions that no node is to be rebooted into.
	HoldBack string `json:"holdBack,omitempty"`
	// Actions are what the change costs; None stands alone.
	Actions []Action `json:"actions"`
	// Drain Never: a Reboot of this rule needs no drain.
	Drain DrainMode `json:"drain,omitempty"`
}

// DrainMode is whether a rule's reboot drains.
type DrainMode string

// DrainNever: the rule needs no drain.
const DrainNever DrainMode = "Never"

// ActionType is a kind of disruption.
type ActionType string

// The actions, in the order in which they are carried out.
const (
	ActionNone         ActionType = "None"
	ActionDrain        ActionType = "Drain"
	ActionDaemonReload ActionType = "DaemonReload"
	ActionReload       ActionType = "Reload"
	ActionRestart      ActionType = "Restart"
	ActionReboot       ActionType = "Reboot"
)

// Action is one disruption.
type Action struct {
	Type ActionType `json:"type"`
	// Unit is the systemd unit of Reload and Restart.
	Unit string `json:"unit,omitempty"`
}

// RolloutSpec is how fast the nodes of a policy may roll.
type RolloutSpec struct {
	// MaxUnavailable is how many of the policy's nodes may be unavailable at
	// once, whoever made them so: a number of 1 to 10000, or a percentage of 1%
	// to 100%, rounded down to no less than one node.
	MaxUnavailable intstr.IntOrString `json:"maxUnavailable"`
	// MaxUnavailableTotal is the same over all nodes of all policies; the
	// smallest of any policy holds.
	MaxUnavailableTotal *intstr.IntOrString `json:"maxUnavailableTotal,omitempty"`
	// MaxFailed is how many failed nodes, not forgiven by retry, are put up
	// with: one more stops the line. 0 to 10000.
	MaxFailed int32 `json:"maxFailed"`
	// Order is what decides whose turn is next, the first first. The
	// coordinator's own host comes last all the same.
	Order []OrderKey `json:"order"`
	// Settle is the least time from the end of a turn, or the creation of a
	// Node, to the next grant. 0s to 24h.
	Settle metav1.Duration `json:"settle"`
	// Backoff is how long a node that was turned back waits; it doubles each
	// time, up to BackoffMax. 1s to 24h.
	Backoff    metav1.Duration `json:"backoff"`
	BackoffMax metav1.Duration `json:"backoffMax"`

	// ExpectedDuration is how long a turn takes: one begins only if that fits
	// into the window. 1m to 24h.
	ExpectedDuration metav1.Duration `json:"expectedDuration"`
	// Windows are when turns may begin; none is always.
	Windows []Window `json:"windows,omitempty"`
	// OnClose is what becomes of a turn when the last open window closes on it.
	OnClose OnClose `json:"onClose"`
	// Gates must all be open for a turn to begin.
	Gates []Gate `json:"gates,omitempty"`
}

// OrderKey is what nodes are put in order by.
type OrderKey string

// The keys.
const (
	OrderZone       OrderKey = "Zone"
	OrderOldestBoot OrderKey = "OldestBoot"
	OrderName       OrderKey = "Name"
)

// OnClose is what becomes of turns under way when a window closes.
type OnClose string

// What can become of them.
const (
	// OnCloseFinish: they go on.
	OnCloseFinish OnClose = "Finish"
	// OnCloseCancel: those that have not committed to a reboot or apply are
	// turned round.
	OnCloseCancel OnClose = "Cancel"
)

// Day is a day of the week.
type Day string

// The days.
const (
	Monday    Day = "Mon"
	Tuesday   Day = "Tue"
	Wednesday Day = "Wed"
	Thursday  Day = "Thu"
	Friday    Day = "Fri"
	Saturday  Day = "Sat"
	Sunday    Day = "Sun"
)

// Window is a time in each week.
type Window struct {
	// Days on which the window opens; none is every day. A window that crosses
	// midnight belongs to the day on which it opens.
	Days []Day `json:"days,omitempty"`
	// Start is the wall clock's time in TimeZone, 00:00 to 23:59.
	Start string `json:"start"`
	// Duration from then on, in real time: 10m to 24h.
	Duration metav1.Duration `json:"duration"`
	// TimeZone is a name of the IANA time zone database.
	TimeZone string `json:"timeZone"`
}

// Gate is a query that must return nothing.
type Gate struct {
	// Name of the gate, for people: a DNS label.
	Name string `json:"name"`
	// Query is one of Prometheus, at the server that the coordinators' files
	// name. The gate is open while the answer is an empty vector. A query that
	// fails closes it.
	Query string `json:"query"`
}

// HooksSpec is other people's work that a turn waits for. A name stands in one
// stage only.
type HooksSpec struct {
	BeforeDrain    []HookSpec         `json:"beforeDrain,omitempty"`
	BeforeReboot   []HookSpec         `json:"beforeReboot,omitempty"`
	BeforeUncordon []UncordonHookSpec `json:"beforeUncordon,omitempty"`
	// WaitForVolumeDetach: no reboot before the Node's status.volumesAttached
	// is empty.
	WaitForVolumeDetach bool `json:"waitForVolumeDetach,omitempty"`
}

// HookSpec is a hook of before-drain or before-reboot.
type HookSpec struct {
	// Name of the hook; the annotation hook.lockkeeper.dev/<name> confirms.
	Name string `json:"name"`
	// Timeout is 1s to 168h.
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what follows: Wait, Continue or Abort.
	OnTimeout OnTimeout `json:"onTimeout"`
}

// UncordonHookSpec is a hook of before-uncordon, where turns that are aborted go.
type UncordonHookSpec struct {
	// Name of the hook; the annotation hook.lockkeeper.dev/<name> confirms.
	Name string `json:"name"`
	// Timeout is 1s to 168h.
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what follows: Wait or Continue.
	OnTimeout OnTimeout `json:"onTimeout"`
}

// DrainSpec is how nodes are drained.
type DrainSpec struct {
	// Timeout is 1s to 168h.
	Timeout metav1.Duration `json:"timeout"`
	// OnTimeout is what follows: Wait, Abort, or Force, which deletes the pods
	// that are left, whatever PodDisruptionBudgets say.
	OnTimeout OnTimeout `json:"onTimeout"`
	// Skip are pods that stay on the node, as a DaemonSet's do.
	Skip []PodSelector `json:"skip,omitempty"`
	// Block are pods that are never evicted: the drain waits until they are gone
	// by themselves.
	Block []PodSelector `json:"block,omitempty"`
}

// PodSelector selects pods.
type PodSelector struct {
	// Namespace of the pods; none is all namespaces.
	Namespace string `json:"namespace,omitempty"`
	// Selector by labels; the empty one selects all pods.
	Selector metav1.LabelSelector `json:"selector,omitzero"`
}

// PolicyTimeouts are how long the stages of a turn may take before they are
// overdue: 1s to 168h.
type PolicyTimeouts struct {
	// Seen is how long a host may take to say that it knows of its turn; then
	// the turn is taken back.
	Seen metav1.Duration `json:"seen"`
	// HostHooks is how long hook units of a host may take in a stage; but in
	// before-uncordon the turn is turned round then.
	HostHooks metav1.Duration `json:"hostHooks"`
	// Rebooting, Applying and Uncordoning are waited out; it is reported.
	Rebooting   metav1.Duration `json:"rebooting"`
	Applying    metav1.Duration `json:"applying"`
	Uncordoning metav1.Duration `json:"uncordoning"`
}

// Conditions of a policy.
const (
	// ConditionValid: the policy can be understood. What is wrong with it is in
	// the message, field by field.
	ConditionValid = "Valid"
	// ConditionProgressing: nodes of the policy want something and get turns. If
	// not, the reason is why not.
	ConditionProgressing = "Progressing"
	// ConditionHalted: more nodes have failed than maxFailed allows.
	ConditionHalted = "Halted"
)

// DisruptionPolicyStatus is how far the nodes are that take their rollout from
// the policy. The coordinator writes it; nobody decides by it.
type DisruptionPolicyStatus struct {
	// ObservedGeneration is the metadata.generation that the status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Valid, Progressing and Halted.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Nodes are counts of the nodes whose rollout this policy decides.
	Nodes PolicyNodes `json:"nodes,omitzero"`
	// EffectiveRules are the rules in force on those nodes, of this and of other
	// policies, at most 100.
	EffectiveRules []EffectiveRule `json:"effectiveRules,omitempty"`
}

// PolicyNodes are counts of nodes.
type PolicyNodes struct {
	Selected    int32 `json:"selected"`
	UpToDate    int32 `json:"upToDate"` // want nothing, and are in no turn
	Wanting     int32 `json:"wanting"`
	InTurn      int32 `json:"inTurn"`
	Unavailable int32 `json:"unavailable"`
	Failed      int32 `json:"failed"`
	// Allowed is maxUnavailable as a number.
	Allowed int32 `json:"allowed"`
}

// EffectiveRule is a rule as it holds on nodes.
type EffectiveRule struct {
	// Key is the rule's: its source, and its path or unit.
	Key string `json:"key"`
	// Policy that the rule is from.
	Policy string `json:"policy"`
	// Actions in the form "Restart containerd.service".
	Actions []string `json:"actions"`
	// Nodes is on how many of the nodes it holds.
	Nodes int32 `json:"nodes"`
}
