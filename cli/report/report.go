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

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Status is how the fleet, or one node, stands.
type Status string

// The answers. [Status.ExitStatus] gives each its exit status.
const (
	// UpToDate: nobody wants anything, and nobody is in a turn.
	UpToDate Status = "UpToDate"
	// Rolling: something moves, or will by itself in a moment.
	Rolling Status = "Rolling"
	// Held: somebody wants something or is in a turn, and nothing moves; or no
	// node is managed although nobody said so.
	Held Status = "Held"
	// Halted: more nodes failed than the policy allows.
	Halted Status = "Halted"
	// Stopped: the emergency stop, or no Lease, which is a stop.
	Stopped Status = "Stopped"
)

// Report is what there is to say about the cluster at one moment. Its JSON form
// is that of `lockkeeper status -o json`: fields are added, never renamed.
type Report struct {
	View    string    `json:"view"` // "cluster"; a host's own view says "host"
	Time    time.Time `json:"time"` // when it was read, by the API server's clock
	Status  Status    `json:"status"`
	Summary string    `json:"summary"` // one line

	Coordinator Coordinator `json:"coordinator"`
	// Stop is set while nothing is promoted at all.
	Stop    *Stop   `json:"stop,omitempty"`
	Figures Figures `json:"figures"`
	// End is when all nodes are expected to be up to date; null if no node wants
	// anything or is in a turn.
	End      *End     `json:"end,omitempty"`
	Versions Versions `json:"versions"`
	// Policies are all DisruptionPolicies, in the order in which they win.
	Policies []Policy `json:"policies"`
	// PoliciesError is why they could not be read. What they allow is not known
	// then, and what holds a node is what the coordinator last said of it.
	PoliciesError string `json:"policiesError,omitempty"`
	// Slots are the nodes that count as unavailable, by name.
	Slots []Slot `json:"slots"`
	// Nodes are all of the cluster, those first that need a look.
	Nodes []Node `json:"nodes"`
}

// Coordinator is who coordinates, as the Lease tells.
type Coordinator struct {
	Lease string `json:"lease"` // namespace/name
	// Live reports whether somebody coordinates: the Lease is held and was
	// renewed in time.
	Live  bool   `json:"live"`
	Node  string `json:"node,omitempty"` // whose process it is, or was last
	Epoch string `json:"epoch,omitempty"`
	// Since is when its term began, Renewed when it last renewed the Lease.
	Since   *time.Time `json:"since,omitempty"`
	Renewed *time.Time `json:"renewed,omitempty"`
	// Error is why the Lease could not be read; then nothing else is known.
	Error string `json:"error,omitempty"`
}

// Stop is the emergency stop.
type Stop struct {
	NoLease bool   `json:"noLease,omitempty"`
	Text    string `json:"text,omitempty"` // the reason, as somebody gave it
}

// Figures are counts of nodes.
type Figures struct {
	Total    int `json:"total"`
	Managed  int `json:"managed"`
	UpToDate int `json:"upToDate"`
	InTurn   int `json:"inTurn"`
	// The next three are nodes in no turn, by what they want.
	WantReboot int `json:"wantReboot"`
	WantDrain  int `json:"wantDrain"`
	WantApply  int `json:"wantApply"`
	// Unknown are managed nodes whose host has not spoken in its present boot.
	Unknown int `json:"unknown"`

	Unavailable int  `json:"unavailable"` // as the budget counts them
	Budget      int  `json:"budget"`
	Failed      int  `json:"failed"`    // and not cleared
	MaxFailed   int  `json:"maxFailed"` // the least of the policies that have nodes
	Halted      bool `json:"halted"`    // at least one policy's line is stopped
	// SettlingUntil is until when something is not granted after the last turn.
	SettlingUntil *time.Time `json:"settlingUntil,omitempty"`
}

// Node is one node.
type Node struct {
	Name    string `json:"name"`
	Status  Status `json:"status"`
	Managed bool   `json:"managed"`
	// Policy is the one that decides the node's rollout; "" if none selects it.
	Policy string `json:"policy,omitempty"`

	State v1alpha1.State  `json:"state"` // "" is absent
	Wants v1alpha1.Wants  `json:"wants,omitempty"`
	Held  v1alpha1.Reason `json:"held,omitempty"`
	// Why says it in words: what it waits for, or what comes next.
	Why string `json:"why,omitempty"`

	Turn string `json:"turn,omitempty"`
	// TurnSince and StageSince are when the turn and its present stage began.
	TurnSince  *time.Time `json:"turnSince,omitempty"`
	StageSince *time.Time `json:"stageSince,omitempty"`
	// Hooks are those that the present stage waits for.
	Hooks []Hook `json:"hooks,omitempty"`

	// Slot is there if the node counts as unavailable.
	Slot *Slot `json:"slot,omitempty"`

	Ready         bool   `json:"ready"`
	Unschedulable bool   `json:"unschedulable,omitempty"`
	Marked        bool   `json:"marked,omitempty"` // the cordon is lockkeeper's
	ControlPlane  bool   `json:"controlPlane,omitempty"`
	Zone          string `json:"zone,omitempty"`
	BootID        string `json:"bootID,omitempty"`

	// Host, Grant and Last are as they stand on the Node; null when absent or
	// unreadable. Ack is the host's last word, as it stands.
	Host     *v1alpha1.Host   `json:"host,omitempty"`
	Grant    *v1alpha1.Grant  `json:"grant,omitempty"`
	Last     *v1alpha1.Last   `json:"last,omitempty"`
	Ack      string           `json:"ack,omitempty"`
	Paused   *v1alpha1.Intent `json:"paused,omitempty"`
	Detached *v1alpha1.Intent `json:"detached,omitempty"`
	Retry    string           `json:"retry,omitempty"`
	// Update is what the node's HostUpdate says; null if it was not read or is of
	// another boot. It is read for nodes in a turn.
	Update *v1alpha1.HostUpdateStatus `json:"update,omitempty"`
	// UpdateError is why the HostUpdate cannot be decoded; "" if it can.
	UpdateError string `json:"updateError,omitempty"`
	// Problems are keys whose value could not be read.
	Problems []string `json:"problems,omitempty"`

	rank     int  // how much it needs a look; 0 is most
	optedOut bool // somebody said that lockkeeper is not to manage it
}

// Hook is one hook that a stage waits for.
type Hook struct {
	Name      string `json:"name"`
	Confirmed bool   `json:"confirmed"`
}

// Lease is what was read of the Lease.
type Lease struct {
	Namespace, Name   string
	Exists            bool
	Holder            string
	Acquired, Renewed time.Time
	Duration          time.Duration
	Stopped           bool
	StopText          string
	// Err is why it could not be read; the other fields are nothing then.
	Err error
}

// Read takes over what the Lease says.
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

// Input is what a Report is made of. Stopped and StopText of the snapshot are
// set by [Build] from the Lease; Now is by the API server's clock.
type Input struct {
	rollout.Snapshot
	Lease Lease
	// PoliciesErr is why the policies could not be read; the snapshot has none
	// then.
	PoliciesErr error
	// Progressing is, by policy, the condition as the coordinator last wrote it.
	Progressing map[string]metav1.Condition
}
