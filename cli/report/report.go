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
	View    string    `json:"view"` // "cluster"; on a host that cannot read it, "host"
	Time    time.Time `json:"time"` // when it was read, by the API server's clock
	Status  Status    `json:"status"`
	Summary string    `json:"summary"` // the first line of the text
	// Selector is the label selector of -l. With it, Status, Summary, Nodes and the counts of nodes
	// are about the nodes that it matches. Everything else is about all nodes; End is missing.
	Selector string `json:"selector,omitempty"`

	Coordinator Coordinator `json:"coordinator"`
	// Stop is set while nothing is promoted.
	Stop    *Stop   `json:"stop,omitempty"`
	Figures Figures `json:"figures"`
	// End is when all nodes are expected to be up to date; null if no node wants
	// anything or is in a turn.
	End      *End     `json:"end,omitempty"`
	Versions Versions `json:"versions"`
	// Policies are all DisruptionPolicies, in the order in which they win.
	Policies []Policy `json:"policies"`
	// PoliciesError is why they could not be read. Budgets are unknown then, and the reason that
	// holds a node is the one that the coordinator last wrote on it.
	PoliciesError string `json:"policiesError,omitempty"`
	// Slots are the nodes that count as unavailable, by name.
	Slots []rollout.Slot `json:"slots"`
	// Nodes are all nodes of the cluster; those that need attention come first.
	Nodes []Node `json:"nodes"`

	taken string // which nodes take slots and why, in one line
}

// Coordinator is the coordinator, according to the Lease.
type Coordinator struct {
	Lease string `json:"lease"` // namespace/name
	// Live reports whether the Lease is held and was renewed in time.
	Live  bool   `json:"live"`
	Node  string `json:"node,omitempty"`  // where the coordinator runs, or ran last
	Epoch string `json:"epoch,omitempty"` // the Lease's holder, which names one term
	// Since is when its term began, Renewed when it last renewed the Lease.
	Since   *time.Time `json:"since,omitempty"`
	Renewed *time.Time `json:"renewed,omitempty"`
	// Error is why the Lease could not be read; the other fields are empty then.
	Error string `json:"error,omitempty"`
}

// Stop is the emergency stop.
type Stop struct {
	NoLease bool   `json:"noLease,omitempty"` // the Lease does not exist, which stops everything too
	Text    string `json:"text,omitempty"`    // the reason, as its author wrote it
}

// Figures are counts of nodes.
type Figures struct {
	Total    int `json:"total"`    // of the cluster
	Managed  int `json:"managed"`  // by lockkeeper
	UpToDate int `json:"upToDate"` // managed, want nothing and are in no turn
	InTurn   int `json:"inTurn"`   // in a turn
	// WantReboot, WantDrain and WantApply are nodes in no turn, by what they want.
	WantReboot int `json:"wantReboot"`
	WantDrain  int `json:"wantDrain"`
	WantApply  int `json:"wantApply"`
	// Unknown are managed nodes whose host has not reported in its present boot.
	Unknown int `json:"unknown"`

	Unavailable int  `json:"unavailable"` // as the budget counts them
	Budget      int  `json:"budget"`      // how many nodes may be unavailable
	Failed      int  `json:"failed"`      // and not cleared
	MaxFailed   int  `json:"maxFailed"`   // the lowest of the policies that have nodes
	Halted      bool `json:"halted"`      // at least one policy is halted
	// SettlingUntil is the end of the settle time after the last turn.
	SettlingUntil *time.Time `json:"settlingUntil,omitempty"`
}

// Node is one node.
type Node struct {
	Name    string `json:"name"`    // of the Node
	Status  Status `json:"status"`  // UpToDate, Rolling or Held
	Managed bool   `json:"managed"` // by lockkeeper
	// Policy is the one that decides the node's rollout; "" if none selects it.
	Policy string `json:"policy,omitempty"`

	State v1alpha1.State  `json:"state"`           // "" is absent
	Wants v1alpha1.Wants  `json:"wants,omitempty"` // what it wants
	Held  v1alpha1.Reason `json:"held,omitempty"`  // the reason that holds it
	// Why says what the node waits for, or what comes next.
	Why string `json:"why,omitempty"`

	Turn string `json:"turn,omitempty"` // the ID of its turn
	// TurnSince and StageSince are when the turn and its present stage began.
	TurnSince  *time.Time `json:"turnSince,omitempty"`
	StageSince *time.Time `json:"stageSince,omitempty"`
	// Hooks are those that the present stage waits for.
	Hooks []Hook `json:"hooks,omitempty"`

	// Slot is set if the node counts as unavailable.
	Slot *rollout.Slot `json:"slot,omitempty"`

	Ready         bool   `json:"ready"`                   // its Ready condition is True
	Unschedulable bool   `json:"unschedulable,omitempty"` // it is cordoned
	Marked        bool   `json:"marked,omitempty"`        // the cordon is lockkeeper's
	ControlPlane  bool   `json:"controlPlane,omitempty"`  // it is a node of the control plane
	Zone          string `json:"zone,omitempty"`          // its label topology.kubernetes.io/zone
	BootID        string `json:"bootID,omitempty"`        // of its present boot, as the kubelet reports it

	// Host, Grant and Last are the records on the Node; null if absent or unreadable. Ack is the
	// host's last ack, unparsed.
	Host     *v1alpha1.Host   `json:"host,omitempty"`
	Grant    *v1alpha1.Grant  `json:"grant,omitempty"`
	Last     *v1alpha1.Last   `json:"last,omitempty"`
	Ack      string           `json:"ack,omitempty"`
	Paused   *v1alpha1.Intent `json:"paused,omitempty"`   // missing if it is not paused
	Detached *v1alpha1.Intent `json:"detached,omitempty"` // missing if it is not detached
	// Request is the reboot that an admin requests; null if none is, or if it does not parse.
	Request *v1alpha1.Request `json:"request,omitempty"`
	Retry   string            `json:"retry,omitempty"` // the ID of the failed turn that a user has cleared
	// Update is the status of the node's HostUpdate, which is read for nodes in a turn; null if it
	// was not read or is from another boot.
	Update *v1alpha1.HostUpdateStatus `json:"update,omitempty"`
	// UpdateError is why the HostUpdate cannot be decoded; "" if it can.
	UpdateError string `json:"updateError,omitempty"`
	// Problems are keys whose value could not be read.
	Problems []string `json:"problems,omitempty"`

	rank     int  // how much attention it needs; 0 is most
	optedOut bool // an admin or the host opted out of lockkeeper
}

// Hook is one hook that a stage waits for.
type Hook struct {
	Name      string `json:"name"`      // as in the policy
	Confirmed bool   `json:"confirmed"` // for this turn
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
