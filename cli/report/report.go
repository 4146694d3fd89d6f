// Package report makes and prints what `lockkeeper status`, plan, wait and history show.
//
// [Build] is a pure function that makes a [Report] of what was read. The text and the JSON,
// whose form is stable, are rendered from a Report alone.
//
// The package decides nothing about the fleet: reasons and figures come from the same
// rollout.Decide that the coordinator runs. It uses no client; package cli/cluster reads
// what is reported.
package report

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Status is the state of the fleet or of one node.
type Status string

// The states. [Status.ExitStatus] gives each its exit status.
const (
	// UpToDate: no node wants anything, and none is in a turn.
	UpToDate Status = "UpToDate"
	// Rolling: a node moves, or will move soon without action.
	Rolling Status = "Rolling"
	// Held: a node wants something or is in a turn, and nothing moves; or no node is managed
	// although no one opted out.
	Held Status = "Held"
	// Halted: more nodes failed than the policy allows.
	Halted Status = "Halted"
	// Stopped: the emergency stop is set, or the Lease does not exist.
	Stopped Status = "Stopped"
)

// Report is the state of the cluster at one moment. Its JSON form is that of `lockkeeper status -o json`: fields are added, never renamed.
type Report struct {
	// View is "cluster" if the report is about the cluster. On a host that cannot read the cluster,
	// it is "host", and the fields are those of the next section.
	View string `json:"view"`
	// Time is when the cluster was read, by the API server's clock.
	Time time.Time `json:"time"`
	// Status is the status of the fleet: UpToDate, Rolling, Held, Halted or Stopped.
	Status Status `json:"status"`
	// Summary is the first line of the text output.
	Summary string `json:"summary"`
	// Selector is the label selector of -l. With it, `status`, `summary`, `nodes` and the counts of
	// nodes are about the nodes that match, and `end` is missing. Everything else is about all
	// nodes.
	Selector string `json:"selector,omitempty"`

	// Coordinator says who coordinates, according to the Lease.
	Coordinator Coordinator `json:"coordinator"`
	// Stop is set if the emergency stop is set or the Lease does not exist. No turn begins or
	// advances then.
	Stop *Stop `json:"stop,omitempty"`
	// Figures has counts of nodes.
	Figures Figures `json:"figures"`
	// End says when all nodes are expected to be up to date. It is missing if no node wants anything
	// or is in a turn.
	End *End `json:"end,omitempty"`
	// Versions lists the versions that the hosts last reported. The versions that most hosts run
	// come first.
	Versions Versions `json:"versions"`
	// Policies lists all DisruptionPolicies, the one that takes precedence first.
	Policies []Policy `json:"policies"`
	// PoliciesError says why the policies could not be read. The budgets are unknown then, and the
	// reason that holds a node is the one that the coordinator last wrote on it.
	PoliciesError string `json:"policiesError,omitempty"`
	// Slots lists the nodes that count as unavailable, by name.
	Slots []rollout.Slot `json:"slots"`
	// Nodes lists all nodes of the cluster. Those that need attention come first.
	Nodes []Node `json:"nodes"`

	taken string // which nodes take slots and why, in one line
}

// Coordinator is the coordinator, according to the Lease.
type Coordinator struct {
	// Lease is the Lease, as namespace/name.
	Lease string `json:"lease"`
	// Live is true if the Lease is held and its holder has renewed it in time.
	Live bool `json:"live"`
	// Node is the node on which the coordinator runs or, if there is none, last ran.
	Node string `json:"node,omitempty"`
	// Epoch is the Lease's holder. It identifies one term of one coordinator.
	Epoch string `json:"epoch,omitempty"`
	// Since is when the coordinator's term began.
	Since *time.Time `json:"since,omitempty"`
	// Renewed is when the coordinator last renewed the Lease.
	Renewed *time.Time `json:"renewed,omitempty"`
	// Problem is what its host publishes as the coordinator's problem, for example that it may not read Nodes, or that
	// other users can read its credential.
	Problem string `json:"problem,omitempty"`
	// Error says why the Lease could not be read. The other fields are empty then.
	Error string `json:"error,omitempty"`
}

// Stop is the emergency stop.
type Stop struct {
	// NoLease is true if the Lease does not exist. That stops everything too.
	NoLease bool `json:"noLease,omitempty"`
	// Text is the reason, as its author wrote it.
	Text string `json:"text,omitempty"`
}

// Figures are counts of nodes.
type Figures struct {
	// Total is the number of nodes in the cluster.
	Total int `json:"total"`
	// Managed is the number of nodes that lockkeeper manages.
	Managed int `json:"managed"`
	// UpToDate is the number of managed nodes that want nothing and are in no turn.
	UpToDate int `json:"upToDate"`
	// InTurn is the number of nodes in a turn.
	InTurn int `json:"inTurn"`
	// WantReboot is the number of nodes in no turn that want a reboot.
	WantReboot int `json:"wantReboot"`
	// WantDrain is the number of nodes in no turn that want a drain.
	WantDrain int `json:"wantDrain"`
	// WantApply is the number of nodes in no turn that want an apply.
	WantApply int `json:"wantApply"`
	// Unknown is the number of managed nodes whose host has not reported in its present boot.
	Unknown int `json:"unknown"`

	// Unavailable is the number of nodes that the budget counts as unavailable.
	Unavailable int `json:"unavailable"`
	// Budget is how many nodes may be unavailable.
	Budget int `json:"budget"`
	// Failed is the number of nodes whose turn failed and was not cleared.
	Failed int `json:"failed"`
	// MaxFailed is the lowest `maxFailed` of the policies that have nodes.
	MaxFailed int `json:"maxFailed"`
	// Halted is true if at least one policy is halted.
	Halted bool `json:"halted"`
	// SettlingUntil is when the settle time after the last turn ends.
	SettlingUntil *time.Time `json:"settlingUntil,omitempty"`
}

// Node is one node.
type Node struct {
	// Name is the Node's name.
	Name string `json:"name"`
	// Status is the node's status: UpToDate, Rolling or Held.
	Status Status `json:"status"`
	// Managed is true if lockkeeper manages the node.
	Managed bool `json:"managed"`
	// Policy is the policy that decides the node's rollout. It is missing if no policy selects the
	// node.
	Policy string `json:"policy,omitempty"`

	// State is the node's state. It is empty if lockkeeper has set no state on the node.
	State v1alpha1.State `json:"state"`
	// Wants is what the host wants: nothing, apply, drain or reboot.
	Wants v1alpha1.Wants `json:"wants,omitempty"`
	// Held is the reason that holds the node.
	Held v1alpha1.Reason `json:"held,omitempty"`
	// Why says what the node waits for, or what comes next.
	Why string `json:"why,omitempty"`

	// Turn is the ID of the node's present turn.
	Turn string `json:"turn,omitempty"`
	// TurnSince is when the turn began.
	TurnSince *time.Time `json:"turnSince,omitempty"`
	// StageSince is when the present stage of the turn began.
	StageSince *time.Time `json:"stageSince,omitempty"`
	// Hooks lists the hooks that the present stage waits for.
	Hooks []Hook `json:"hooks,omitempty"`

	// Slot is set if the node counts as unavailable.
	Slot *rollout.Slot `json:"slot,omitempty"`

	// Ready is true if the Node's condition Ready is True.
	Ready bool `json:"ready"`
	// Unschedulable is true if the node is cordoned, no matter by whom.
	Unschedulable bool `json:"unschedulable,omitempty"`
	// Marked is true if the node has lockkeeper's mark: a turn has set its cordon or an
	// exclusion, and lockkeeper undoes that. OwnCordon is true if the cordon is one of these.
	Marked    bool `json:"marked,omitempty"`
	OwnCordon bool `json:"ownCordon,omitempty"`
	// ControlPlane is true if the node belongs to the control plane.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Zone is the value of the node's label topology.kubernetes.io/zone.
	Zone string `json:"zone,omitempty"`
	// BootID is the ID of the present boot, as the kubelet reports it.
	BootID string `json:"bootID,omitempty"`

	// Host is the host's record. It is missing if the Node has none or it cannot be read.
	Host *v1alpha1.Host `json:"host,omitempty"`
	// Grant is the record of the present turn. It is missing if the Node has none or it cannot be
	// read.
	Grant *v1alpha1.Grant `json:"grant,omitempty"`
	// Last is the record of the last turn. It is missing if the Node has none or it cannot be read.
	Last *v1alpha1.Last `json:"last,omitempty"`
	// Ack is the value of the annotation `lockkeeper.dev/ack`.
	Ack string `json:"ack,omitempty"`
	// Paused is set if the node is paused.
	Paused *v1alpha1.Intent `json:"paused,omitempty"`
	// Detached is set if the node is detached.
	Detached *v1alpha1.Intent `json:"detached,omitempty"`
	// Request is the reboot that an admin requests. It is missing if no reboot is requested or the
	// request cannot be read.
	Request *v1alpha1.Request `json:"request,omitempty"`
	// Retry is the ID of the turn that a user has cleared.
	Retry string `json:"retry,omitempty"`
	// Update is the status of the node's HostUpdate. It is read for the node that the command names,
	// and for the first 20 nodes that are in a turn. It is missing if it is from another boot.
	Update *v1alpha1.HostUpdateStatus `json:"update,omitempty"`
	// UpdateError says why the HostUpdate cannot be decoded.
	UpdateError string `json:"updateError,omitempty"`
	// Problems lists the keys whose value could not be read.
	Problems []string `json:"problems,omitempty"`

	rank     int  // how much attention it needs; 0 is most
	optedOut bool // an admin or the host opted out of lockkeeper
}

// Hook is one hook that a stage waits for.
type Hook struct {
	// Name is the hook's name in the policy.
	Name string `json:"name"`
	// Confirmed is true if the hook has confirmed for this turn.
	Confirmed bool `json:"confirmed"`
}

// Lease has the fields of the Lease that matter.
type Lease struct {
	Namespace, Name   string
	Exists            bool
	Holder            string
	Acquired, Renewed time.Time
	Duration          time.Duration
	Stopped           bool
	StopText          string
	// Err is why it could not be read; the other fields are empty then.
	Err error
}

// Read sets the fields from the Lease.
func (l *Lease) Read(o *coordinationv1.Lease) {
	l.Exists = true
	l.StopText, l.Stopped = o.Annotations[v1alpha1.AnnotationStop]
	if h := o.Spec.HolderIdentity; h != nil {
		l.Holder = *h
	}
	if t := o.Spec.AcquireTime; t != nil {
		l.Acquired = t.UTC()
	}
	if t := o.Spec.RenewTime; t != nil {
		l.Renewed = t.UTC()
	}
	if d := o.Spec.LeaseDurationSeconds; d != nil {
		l.Duration = time.Duration(*d) * time.Second
	}
}

// Input is what a Report is made from. [Build] sets Stopped and StopText of the snapshot from the
// Lease. Now is by the API server's clock.
type Input struct {
	rollout.Snapshot
	Lease Lease
	// PoliciesErr is why the policies could not be read; the snapshot has none
	// then.
	PoliciesErr error
	// Progressing has, by policy, the condition that the coordinator last wrote.
	Progressing map[string]metav1.Condition
	// Selector selects the nodes that the Report is about; nil selects all.
	Selector labels.Selector
}
