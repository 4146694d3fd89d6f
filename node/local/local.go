// Package local is what a host knows about itself without the API server: one record, which the
// running process keeps in a file, and a lock that shows whether that process still runs.
// `lockkeeper status` on the host reads both if it has no kubeconfig, or if no API server
// answers.
//
// Nothing here decides a step of a turn: a host resumes from the facts, never from this file.
// The package uses only its own files; package effect keeps what a turn has applied in the same
// directory.
package local

import (
	"fmt"
	"path/filepath"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Dir is the directory of the running process's status and lock; in the test bed it is below
// --root.
const Dir = "/run/lockkeeper"

const (
	statusFile = "status.json"
	lockFile   = "lock"
	maxStatus  = 256 << 10 // bytes; host's changes are bounded far below
)

// Status is everything that the running process reports about itself. The line that
// `systemctl status` shows, the metrics of the host and `lockkeeper status` on the
// host are rendered from it. Its JSON form is part of `lockkeeper status -o json`.
type Status struct {
	// Time is when it was written, by the host's clock. It is written when
	// something in it changes, so an old one is not by itself a sign of death.
	Time    time.Time `json:"time"`
	PID     int       `json:"pid"`
	Version string    `json:"version"` // lockkeeper's
	// Line is the text that systemctl status shows.
	Line string `json:"line"`

	Host

	// Coordinator is this host's part in the election.
	Coordinator Coordinator `json:"coordinator"`
	// Metrics is why metrics and health are not served; "" when they are, or
	// are not meant to be.
	Metrics string `json:"metrics,omitempty"`
}

// Host is the part of a [Status] that the host's loop knows.
type Host struct {
	Node   string `json:"node"` // "" until it is known
	BootID string `json:"bootID"`

	// State, Turn and Wants are as the host's Node had them when the host
	// last saw it. Wants is "" while not every source was read in this boot.
	State v1alpha1.State `json:"state"`
	Turn  string         `json:"turn,omitempty"`
	// TurnSince and StageSince are when the turn and its state began, by the
	// coordinator's clock; zero outside of a turn.
	TurnSince  time.Time         `json:"turnSince,omitzero"`
	StageSince time.Time         `json:"stageSince,omitzero"`
	Wants      v1alpha1.Wants    `json:"wants"`
	Changes    []v1alpha1.Change `json:"changes,omitempty"`
	// Plan is what the changes cost, a line for each step; Drains is whether it
	// drains.
	Plan   []string `json:"plan,omitempty"`
	Drains bool     `json:"drains,omitempty"`

	// UID is the Node's, "" until the host has seen its Node. Cordoned is whether
	// the Node is unschedulable, whoever cordoned it.
	UID      string `json:"uid,omitempty"`
	Cordoned bool   `json:"cordoned,omitempty"`
	// Withdrawn: the node was released, or never managed, as Released in node/turn
	// has it. Nothing is written about it.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Course is the course of the present turn, nil outside of one. Last is how the
	// node's last turn ended, nil if the Node does not say.
	Course *Course        `json:"course,omitempty"`
	Last   *v1alpha1.Last `json:"last,omitempty"`

	// Waits is the reason for which the host waits; "" if it waits for none.
	// Detail says for what, or what it is at work on; see Activity.
	Waits    v1alpha1.Reason `json:"waits,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Activity Activity        `json:"activity,omitempty"`
	// Since is since when all this has been so, by the host's clock.
	Since time.Time `json:"since,omitzero"`
	// Blockers are what keeps the host from going on, the longest first; at most
	// [v1alpha1.MaxUpdateBlockers]. Drain is how far the eviction is, nil while
	// none runs.
	Blockers []v1alpha1.Blocker    `json:"blockers,omitempty"`
	Drain    *v1alpha1.DrainStatus `json:"drain,omitempty"`

	// OS is what runs. Engine is what the update engine does, nil where it does not
	// answer or there is none; EngineError is why it does not answer.
	OS          v1alpha1.OSStatus      `json:"os,omitzero"`
	Engine      *v1alpha1.EngineStatus `json:"engine,omitempty"`
	EngineError string                 `json:"engineError,omitempty"`
	// SourcesError is which source of changes cannot be read, and why; "" while all
	// can.
	SourcesError string `json:"sourcesError,omitempty"`

	// API is why the API server cannot be used at present, or perhaps not for
	// long; nil while it can.
	API *Failure `json:"api,omitempty"`
}

// Course is the course of a turn, as its grant has it.
type Course struct {
	Wants  v1alpha1.Wants `json:"wants"`
	Drains bool           `json:"drains,omitempty"`
	// Rebooted is whether the host runs another boot than the one in the grant.
	Rebooted bool `json:"rebooted,omitempty"`
	// Result and Reason are set once the turn is backed out or has failed.
	Result v1alpha1.Result `json:"result,omitempty"`
	Reason v1alpha1.Reason `json:"reason,omitempty"`
}

// Activity is what the Detail of a [Host] is about.
type Activity string

// The activities. The zero value is a host that waits for Detail.
const (
	ActivityQueued  Activity = "Queued"  // it waits for its turn
	ActivityWorking Activity = "Working" // it is at work on Detail
	ActivityFailing Activity = "Failing" // it cannot go on, because of Detail
)

// Coordinator is a host's part in the election, and why it has no other.
type Coordinator struct {
	Role v1alpha1.Role `json:"role"`
	Why  string        `json:"why,omitempty"`
	// Problem is what an admin has to fix before it can coordinate, or soon; "" for
	// nothing.
	Problem string `json:"problem,omitempty"`
	// Credential is what it would campaign with; nil where there is none.
	Credential *Credential `json:"credential,omitempty"`
}

// Credential is how the coordinator's credential stands.
type Credential struct {
	File string `json:"file"`
	// Expires is when it ends, Renews when lockkeeper renews it next; nil
	// where nobody knows, and where it does not.
	Expires *time.Time `json:"expires,omitempty"`
	Renews  *time.Time `json:"renews,omitempty"`
	// Why is why it cannot be read, is not renewed, or could not be.
	Why string `json:"why,omitempty"`
	// Refused is since when the API server has not taken it; nil while it does.
	Refused *time.Time `json:"refused,omitempty"`
	// Exposed is how users other than root can read or change it, and what to do:
	// one sentence for each file or directory.
	Exposed []string `json:"exposed,omitempty"`
}

// Failure is an error and since when there has been one.
type Failure struct {
	Error string    `json:"error"`
	Since time.Time `json:"since"`
	// Reason is Forbidden if the API server refuses the host's credential, or what
	// it asks for.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// RefusedBy is the admission webhook or policy that refuses a write, "" if none
	// does.
	RefusedBy string `json:"refusedBy,omitempty"`
	// Own: this host's kubeconfig is at fault, or the credential plugin that it
	// names, and not the API server.
	Own bool `json:"own,omitempty"`
	// GoesOn: no request has failed yet.
	GoesOn bool `json:"goesOn,omitempty"`
}

// Failing reports whether the host's requests fail, so that there is no point in others.
// A webhook refuses single requests only, and a kubeconfig that cannot be read does no
// harm while the credential before it serves. A nil Failure is none.
func (f *Failure) Failing() bool { return f != nil && f.RefusedBy == "" && !f.GoesOn }

// Write replaces the status in dir. Only the holder of the lock writes. Every user of the
// host may read it.
func Write(dir string, s Status) error {
	if err := WriteJSON(filepath.Join(dir, statusFile), 0o644, s); err != nil {
		return fmt.Errorf("writing the local status: %w", err)
	}
	return nil
}

// Read returns the status in dir. The error is fs.ErrNotExist if there is none.
func Read(dir string) (s Status, err error) {
	if err := ReadJSON(filepath.Join(dir, statusFile), maxStatus, &s); err != nil {
		return Status{}, fmt.Errorf("reading the local status: %w", err)
	}
	return s, nil
}
