package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HostUpdate is what one host reports about its updates: what it wants and why, how far
// its turn is, what blocks it, and how its last turns went. There is one for each
// Node. It has the Node's name, and the Node owns it, so it is deleted with the
// Node.
//
// The host is the only writer of the status. What the coordinator decides about
// the node is on the Node. Nothing is decided by a HostUpdate: it is for people
// and for monitoring, and lockkeeper works without it.
//
// There is no spec, and so the status is no subresource: one request creates the
// object with its status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=hu
// +kubebuilder:metadata:labels={"app.kubernetes.io/name=lockkeeper","app.kubernetes.io/part-of=lockkeeper","app.kubernetes.io/component=api"}
// +kubebuilder:printcolumn:name="Wants",type=string,JSONPath=".status.wants"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=".status.state"
// +kubebuilder:printcolumn:name="Waits",type=string,JSONPath=".status.waits"
// +kubebuilder:printcolumn:name="Blocked by",type=string,JSONPath=".status.blockers[0].name"
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=".status.since"
// +kubebuilder:printcolumn:name="OS",type=string,JSONPath=".status.os.version",priority=1
// +kubebuilder:printcolumn:name="Engine",type=string,JSONPath=".status.engine.operation",priority=1
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=".status.role",priority=1
// +kubebuilder:printcolumn:name="Last",type=string,JSONPath=".status.history[0].result",priority=1
// +kubebuilder:printcolumn:name="Says",type=string,JSONPath=".status.message",priority=1
type HostUpdate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Status is what the host says.
	//
	// +optional
	Status HostUpdateStatus `json:"status,omitzero"`
}

// HostUpdateList is a list of HostUpdates.
//
// +kubebuilder:object:root=true
type HostUpdateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []HostUpdate `json:"items"`
}

// Bounds of a [HostUpdateStatus]. The schema refuses what is beyond them.
const (
	MaxUpdateText     = 400 // bytes of a text that people read
	MaxUpdateName     = 253 // bytes of a name
	MaxUpdateChanges  = 32  // pending changes
	MaxUpdateBlockers = 16
	MaxUpdateHistory  = 10 // turns
	MaxUpdateStages   = 16 // states of one turn
	MaxUpdateOffline  = 20 // lines of what happened while the API server was away
)

// UpdateText is a text of one line for people.
//
// +kubebuilder:validation:MaxLength=400
// +kubebuilder:validation:Pattern=`^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$`
type UpdateText string

// UpdateName names a thing: a pod as namespace/name, a unit, a version.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$`
type UpdateName string

// HostUpdateStatus is what a host reports about its updates. All times are by the host's
// clock, except those of turns and stages, which are the coordinator's.
//
// +kubebuilder:object:generate=true
type HostUpdateStatus struct {
	// Wants is the strongest requirement of the pending changes. It is missing
	// until the host has read every source of changes in this boot.
	//
	// +optional
	// +kubebuilder:validation:Enum=nothing;apply;drain;reboot
	Wants Wants `json:"wants,omitempty"`
	// State is the Node's state as the host last saw it.
	//
	// +optional
	State UpdateName `json:"state,omitempty"`
	// Waits is the reason for which the host waits; docs/reasons.md explains each.
	//
	// +optional
	Waits UpdateName `json:"waits,omitempty"`
	// Since is when the host began to do, or to wait for, what it does or waits
	// for now.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Message is the line that `systemctl status lockkeeper` shows on the host.
	//
	// +optional
	Message UpdateText `json:"message,omitempty"`

	// Changes are the pending changes.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Changes []PendingChange `json:"changes,omitempty"`
	// Plan is what the changes cost and which rule of which policy says so, a line
	// for each step.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Plan []UpdateText `json:"plan,omitempty"`

	// Engine is what the host's update engine does. It is missing where the engine
	// does not answer; the condition EngineReachable says why.
	//
	// +optional
	Engine *EngineStatus `json:"engine,omitempty"`
	// OS is the operating system that runs.
	//
	// +optional
	OS OSStatus `json:"os,omitzero"`
	// BootID is the host's present boot.
	//
	// +optional
	BootID UpdateName `json:"bootID,omitempty"`
	// Version is lockkeeper's.
	//
	// +optional
	Version UpdateName `json:"version,omitempty"`
	// Role is the host's part in the election of the coordinator.
	//
	// +optional
	// +kubebuilder:validation:Enum=Leader;Standby;Host
	Role Role `json:"role,omitempty"`

	// Conditions are those of the turn, in the order of a turn: Planned, Cordoned,
	// Drained, Applied, Rebooted, Uncordoned, Complete; then Blocked and Failed;
	// then the host's health: EngineReachable, SourcesReadable, CredentialValid,
	// ClusterReachable and, on hosts that may coordinate, CoordinatorHealthy. What
	// is under way is False with a reason. Between turns they are those of the last
	// turn.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.message.size() <= 400 && !c.message.matches('[\\\\p{Cc}\\\\p{Cf}\\\\p{Zl}\\\\p{Zp}]'))",message="expected messages of one line of at most 400 characters"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Blockers are what keeps the host from going on, the longest first.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Blockers []Blocker `json:"blockers,omitempty"`
	// Drain is how far the eviction of the node's pods is; missing where none runs.
	//
	// +optional
	Drain *DrainStatus `json:"drain,omitempty"`

	// Turn is the turn that the node is in.
	//
	// +optional
	Turn *TurnStatus `json:"turn,omitempty"`
	// History are the last turns, the latest first.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	History []FinishedTurn `json:"history,omitempty"`
	// Offline is what last happened while the host could not reach the API server.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Offline []OfflineEvent `json:"offline,omitempty"`
}

// PendingChange is a change and since when it has been pending.
//
// +kubebuilder:object:generate=true
type PendingChange struct {
	// Source is where the change comes from: OSUpdate, Sentinel, File, Unit,
	// Request or FleetLock.
	Source UpdateName `json:"source"`
	// Name is the path or unit that changed.
	//
	// +optional
	Name UpdateName `json:"name,omitempty"`
	// Version is what the change leads to: an OS version, or a digest.
	//
	// +optional
	Version UpdateName `json:"version,omitempty"`
	// Since is when the host first saw it.
	Since metav1.Time `json:"since"`
}

// EngineStatus is what an update engine does.
//
// +kubebuilder:object:generate=true
type EngineStatus struct {
	// Operation is what the engine does, by its own name, such as DOWNLOADING.
	Operation UpdateName `json:"operation"`
	// Version is the version that the operation is about.
	//
	// +optional
	Version UpdateName `json:"version,omitempty"`
	// Progress is the progress of a download in percent, in steps of ten.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Progress int32 `json:"progress,omitempty"`
	// LastChecked is when the engine last asked for updates. It is written only
	// along with another change.
	//
	// +optional
	LastChecked *metav1.Time `json:"lastChecked,omitempty"`
}

// OSStatus is the operating system that runs, as /etc/os-release and update.conf
// have it.
//
// +kubebuilder:object:generate=true
type OSStatus struct {
	// ID is the value of ID in os-release.
	//
	// +optional
	ID UpdateName `json:"id,omitempty"`
	// Version is the value of OSTREE_VERSION in os-release or, without one, of VERSION_ID.
	//
	// +optional
	Version UpdateName `json:"version,omitempty"`
	// Group is the value of GROUP in update.conf.
	//
	// +optional
	Group UpdateName `json:"group,omitempty"`
}

// Role is a host's part in the election of the coordinator.
type Role string

// The roles.
const (
	RoleLeader  Role = "Leader"  // coordinates
	RoleStandby Role = "Standby" // campaigns, and another leads
	RoleHost    Role = "Host"    // does not campaign
)

// BlockerKind is what sort of thing blocks a host.
type BlockerKind string

// The kinds.
const (
	// BlockerBudget: a PodDisruptionBudget allows no eviction of the pod now.
	BlockerBudget BlockerKind = "PodDisruptionBudget"
	// BlockerPod: a pod does not leave, for another reason.
	BlockerPod BlockerKind = "Pod"
	// BlockerFinalizer: a terminating pod whose grace is over has finalizers.
	BlockerFinalizer BlockerKind = "Finalizer"
	// BlockerWebhook: an admission webhook or policy refuses a request.
	BlockerWebhook BlockerKind = "Webhook"
	// BlockerAPIServer: the API server does not answer a request, or with an error.
	BlockerAPIServer BlockerKind = "APIServer"
	// BlockerInhibitor: a process holds a block inhibitor against a shutdown.
	BlockerInhibitor BlockerKind = "Inhibitor"
	// BlockerSession: a user is logged in and has been warned.
	BlockerSession BlockerKind = "Session"
	// BlockerHook: a hook has not confirmed.
	BlockerHook BlockerKind = "Hook"
	// BlockerVolume: a volume is attached to the node, and the turn waits until none
	// is.
	BlockerVolume BlockerKind = "Volume"
	// BlockerUnit: a unit of the host failed or is not active.
	BlockerUnit BlockerKind = "Unit"
	// BlockerSource: a source of changes cannot be read.
	BlockerSource BlockerKind = "Source"
)

// BlockerDoc is a kind with what it means and what a person can do.
type BlockerDoc struct {
	Kind  BlockerKind
	Name  string // what the blocker's name is
	Means string
	Do    string
}

var blockerDocs = []BlockerDoc{
	{BlockerBudget, "namespace/name of the budget, or of the pod if several budgets select it", "a PodDisruptionBudget allows no eviction of the pod now, or several budgets select the pod", "see the message: bring the budget's other pods back, change a budget that never allows an eviction, set `unhealthyPodEvictionPolicy: AlwaysAllow` in the budget of a pod that is not Ready, or leave one budget for the pod; see `kubectl describe pdb`"},
	{BlockerPod, "namespace/name of the pod", "a pod does not leave, or keeps the node from its turn: the policy does not let it be evicted, its kubelet does not end it, or its controller keeps creating pods on this node", "see the message; if the kubelet does not end the pod, see `systemctl status kubelet` and the container runtime on the host; otherwise delete the pod, or change the policy's drain settings"},
	{BlockerFinalizer, "namespace/name of the pod", "a pod is deleted and its grace period is over, but it has finalizers, which the message names", "have the owner of the finalizer remove it, or remove it by hand if the owner is gone"},
	{BlockerWebhook, "the webhook's or admission policy's", "an admission webhook or policy refuses a request that the turn needs", "change the webhook or policy, or bring the webhook's server back"},
	{BlockerAPIServer, "what was asked for", "the API server does not answer a request, or answers with an error", "see the message, and the API server's log"},
	{BlockerInhibitor, "what holds the lock", "a process on the host holds a block inhibitor against a shutdown", "wait for it, or end it: `systemd-inhibit --list` on the host"},
	{BlockerSession, "the user", "a user is logged in on the host and has been warned of the reboot", "log out, or wait for session_delay"},
	{BlockerHook, "the hook", "a hook of the policy has not confirmed", "see the hook's own log; `lockkeeper confirm NODE HOOK` confirms in its place"},
	{BlockerVolume, "the volume", "the policy waits for volumes to be detached, and this one is attached", "see the VolumeAttachment, and the pod that uses the volume"},
	{BlockerUnit, "the unit", "a hook unit or a unit of the plan failed, or the host is not healthy after its boot", "on the host: `systemctl status UNIT`"},
	{BlockerSource, "the file, unit or source", "a source of changes cannot be read, so nothing is committed", "see the message and the host's journal"},
}

// BlockerDocs are all kinds, in the order of the documentation. docs/reasons.md is
// rendered from it.
func BlockerDocs() []BlockerDoc { return blockerDocs }

// BlockerKinds are all kinds, in the order of the documentation.
func BlockerKinds() []BlockerKind {
	all := make([]BlockerKind, 0, len(blockerDocs))
	for _, d := range blockerDocs {
		all = append(all, d.Kind)
	}
	return all
}

// blockerKinds names all kinds, for a document.
func blockerKinds() string {
	var all []string
	for _, k := range BlockerKinds() {
		all = append(all, string(k))
	}
	return strings.Join(all, ", ")
}

// Blocker is one thing that keeps a host from going on.
//
// +kubebuilder:object:generate=true
type Blocker struct {
	// Kind is the kind of thing that blocks the host.
	//
	// +kubebuilder:validation:Enum=PodDisruptionBudget;Pod;Finalizer;Webhook;APIServer;Inhibitor;Session;Hook;Volume;Unit;Source
	Kind BlockerKind `json:"kind"`
	// Name is the name of that thing, such as namespace/name of a budget or pod, a
	// path, or the name of a hook, a unit, a user or a process.
	Name UpdateName `json:"name"`
	// Pod is the pod that does not leave, as namespace/name.
	//
	// +optional
	Pod UpdateName `json:"pod,omitempty"`
	// Message says what is wrong and who has to act. It includes the message of the
	// API server or systemd, if there is one.
	//
	// +optional
	Message UpdateText `json:"message,omitempty"`
	// Since is when it began to block the host.
	Since metav1.Time `json:"since"`
}

// DrainStatus is how far a drain is.
//
// +kubebuilder:object:generate=true
type DrainStatus struct {
	// Total is how many pods this drain had to remove.
	//
	// +kubebuilder:validation:Minimum=0
	Total int32 `json:"total"`
	// Evicted is how many of these pods were evicted and are gone.
	//
	// +kubebuilder:validation:Minimum=0
	Evicted int32 `json:"evicted"`
	// Remaining is how many are left, including those that are terminating.
	//
	// +kubebuilder:validation:Minimum=0
	Remaining int32 `json:"remaining"`
	// ExpectedEnd is when the last pod's grace period ends if every pod uses all of
	// its own. It is missing while a pod is blocked.
	//
	// +optional
	ExpectedEnd *metav1.Time `json:"expectedEnd,omitempty"`
}

// StageTime is how long a turn was in one state.
//
// +kubebuilder:object:generate=true
type StageTime struct {
	// State is a state of the turn.
	State UpdateName `json:"state"`
	// Seconds is how long the turn was in that state. All states of a turn add up to
	// its duration.
	//
	// +kubebuilder:validation:Minimum=0
	Seconds int64 `json:"seconds"`
}

// TurnStatus is the turn that a node is in.
//
// +kubebuilder:object:generate=true
type TurnStatus struct {
	// ID is the turn's.
	ID UpdateName `json:"id"`
	// Started and StageStarted are when the turn and its present state began.
	Started      metav1.Time `json:"started"`
	StageStarted metav1.Time `json:"stageStarted"`
	// Stages are the states that are over.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Stages []StageTime `json:"stages,omitempty"`
}

// FinishedTurn is one turn that is over.
//
// +kubebuilder:object:generate=true
type FinishedTurn struct {
	// Turn is the turn's ID.
	Turn UpdateName `json:"turn"`
	// Result is how the turn ended: Done, Cancelled, BackedOut or Failed.
	Result UpdateName `json:"result"`
	// Reason is why the result is not Done.
	//
	// +optional
	Reason UpdateName `json:"reason,omitempty"`
	// Changes lists the changes that the turn was for.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Changes []UpdateText `json:"changes,omitempty"`
	// Started is when the turn began.
	Started metav1.Time `json:"started"`
	// Ended is when the turn ended.
	Ended metav1.Time `json:"ended"`
	// Stages lists the states of the turn, in order, and how long each took.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Stages []StageTime `json:"stages,omitempty"`
}

// OfflineEvent is what happened while the host could not reach the API server.
//
// +kubebuilder:object:generate=true
type OfflineEvent struct {
	// Time is when, by the host's clock.
	Time metav1.Time `json:"time"`
	// Message is what the host did or waited for from then on.
	Message UpdateText `json:"message"`
}

// The conditions of a [HostUpdateStatus], in their order.
const (
	ConditionPlanned    = "Planned"    // the host wants something, and knows what it costs
	ConditionCordoned   = "Cordoned"   // the node is cordoned for the turn
	ConditionDrained    = "Drained"    // a moment came in which nothing evictable was left
	ConditionApplied    = "Applied"    // units were reloaded and restarted
	ConditionRebooted   = "Rebooted"   // the host runs another boot than the one that the turn began in
	ConditionUncordoned = "Uncordoned" // lockkeeper's cordon is gone
	ConditionComplete   = "Complete"   // the turn is over, and its changes are in effect
	ConditionBlocked    = "Blocked"    // something is in blockers
	ConditionFailed     = "Failed"     // the turn failed

	ConditionEngineReachable    = "EngineReachable"
	ConditionSourcesReadable    = "SourcesReadable"
	ConditionCredentialValid    = "CredentialValid"
	ConditionClusterReachable   = "ClusterReachable"
	ConditionCoordinatorHealthy = "CoordinatorHealthy"
)

// UpdateConditions are the types of all conditions, in their order.
func UpdateConditions() []string {
	return []string{ConditionPlanned, ConditionCordoned, ConditionDrained, ConditionApplied, ConditionRebooted,
		ConditionUncordoned, ConditionComplete, ConditionBlocked, ConditionFailed, ConditionEngineReachable,
		ConditionSourcesReadable, ConditionCredentialValid, ConditionClusterReachable, ConditionCoordinatorHealthy}
}

// Reasons of conditions, in addition to a [Reason], a [Result] and a [BlockerKind].
const (
	ConditionReasonUnknown    = "UnknownReason" // the reason is not one
	ConditionReasonPending    = "Pending"       // its turn, or its stage, has not come
	ConditionReasonRunning    = "Running"       // it is under way
	ConditionReasonDone       = "Done"          // it was done
	ConditionReasonNotNeeded  = "NotNeeded"     // this turn does not need it
	ConditionReasonNothing    = "NothingPending"
	ConditionReasonBackedOut  = "BackedOut" // the turn was ended before it
	ConditionReasonNotBlocked = "NotBlocked"
	ConditionReasonNotFailed  = "NotFailed"
	ConditionReasonHealthy    = "Healthy"
	ConditionReasonUnhealthy  = "Unhealthy"
)
