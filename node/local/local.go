// Package local keeps what a host knows about itself without the API server: one record, which
// the running process writes to a file, and a lock that shows whether that process still runs.
// `lockkeeper status` on the host reads both if it has no kubeconfig, or if no API server
// answers.
//
// No step of a turn depends on the record: a host resumes from the Node, never from this file.
// The package uses only its own files. Package effect keeps what a turn has applied in the same
// directory.
package local

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Dir is the directory of the running process's status and lock; in the test bed it is below
// --root.
const Dir = "/run/lockkeeper"

const (
	statusFile = "status.json"
	lockFile   = "lock"
	maxStatus  = 256 << 10 // bytes; the host's changes have a much lower bound
)

// Status is everything that the running process reports about itself. `systemctl status`, the
// host's metrics and `lockkeeper status` on the host show parts of it. Its JSON form is part of
// `lockkeeper status -o json`.
type Status struct {
	// Time is when the process wrote the status, by the host's clock. The process
	// writes it only when something in it changes, so an old Time does not mean that
	// the process has died.
	Time    time.Time `json:"time"`
	PID     int       `json:"pid"`
	Version string    `json:"version"` // of lockkeeper
	// Line is the text that systemctl status shows.
	Line string `json:"line"`

	Host

	// Coordinator is this host's part in the election.
	Coordinator Coordinator `json:"coordinator"`
	// Metrics is why metrics and health are not served; "" if they are served or
	// switched off.
	Metrics string `json:"metrics,omitempty"`
}

// Host is the part of a [Status] that the host's loop knows.
type Host struct {
	Node   string `json:"node"` // "" until it is known
	BootID string `json:"bootID"`

	// State and Turn are from the last version of the Node that the host has seen.
	// Wants is "" until every source has been read in this boot.
	State v1alpha1.State `json:"state"`
	Turn  string         `json:"turn,omitempty"`
	// TurnSince and StageSince are when the turn and its state began, by the
	// coordinator's clock; zero outside of a turn.
	TurnSince  time.Time         `json:"turnSince,omitzero"`
	StageSince time.Time         `json:"stageSince,omitzero"`
	Wants      v1alpha1.Wants    `json:"wants"`
	Changes    []v1alpha1.Change `json:"changes,omitempty"`
	// Plan has one line for each step that the changes require. Drains is whether the
	// plan includes a drain.
	Plan   []string `json:"plan,omitempty"`
	Drains bool     `json:"drains,omitempty"`

	// UID is the Node's UID, "" until the host has seen its Node. Cordoned is whether
	// the Node is unschedulable, no matter who cordoned it.
	UID      string `json:"uid,omitempty"`
	Cordoned bool   `json:"cordoned,omitempty"`
	// Withdrawn is whether the node was released or has never been managed; see
	// Observation.Released in node/step. The host then publishes nothing about it.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Left is whether the host leaves and its Node has none of the host's keys any more; see
	// Observation.Left in node/step. The service can be stopped for good.
	Left bool `json:"left,omitempty"`
	// Course is the course of the current turn, nil outside of a turn. Last is how the
	// node's last turn ended, nil if the Node does not record it.
	Course *Course        `json:"course,omitempty"`
	Last   *v1alpha1.Last `json:"last,omitempty"`

	// Waits is the reason why the host waits; "" if there is none. Activity says what
	// Detail describes.
	Waits    v1alpha1.Reason `json:"waits,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Activity Activity        `json:"activity,omitempty"`
	// Since is when State, Turn or Waits last changed, by the host's clock.
	Since time.Time `json:"since,omitzero"`
	// Blockers are what prevents the host from continuing, the oldest first; at most
	// [v1alpha1.MaxUpdateBlockers]. Drain is the progress of the drain, nil while no
	// drain runs.
	Blockers []v1alpha1.Blocker    `json:"blockers,omitempty"`
	Drain    *v1alpha1.DrainStatus `json:"drain,omitempty"`

	// OS is the running OS. Engine is the update engine's status, nil if the engine does
	// not answer or the host has none. EngineError is why the engine does not answer.
	OS          v1alpha1.OSStatus      `json:"os,omitzero"`
	Engine      *v1alpha1.EngineStatus `json:"engine,omitempty"`
	EngineError string                 `json:"engineError,omitempty"`
	// SourcesError is which source of changes the host cannot read, and why; "" if it
	// can read all of them.
	SourcesError string `json:"sourcesError,omitempty"`

	// API is why the host cannot use the API server now, or soon will not be able to; nil
	// if neither is the case.
	API *Failure `json:"api,omitempty"`
}

// Course is the course of a turn, according to its grant.
type Course struct {
	Wants  v1alpha1.Wants `json:"wants"`
	Drains bool           `json:"drains,omitempty"`
	// Rebooted is whether the host has rebooted since the grant.
	Rebooted bool `json:"rebooted,omitempty"`
	// Result and Reason are set once the turn is backed out or has failed.
	Result v1alpha1.Result `json:"result,omitempty"`
	Reason v1alpha1.Reason `json:"reason,omitempty"`
}

// Activity is what the Detail of a [Host] describes.
type Activity string

// The activities. The zero value means that the host waits for Detail.
const (
	ActivityQueued  Activity = "Queued"  // it waits for its turn
	ActivityWorking Activity = "Working" // it carries out Detail
	ActivityFailing Activity = "Failing" // it cannot continue, because of Detail
)

// Coordinator is a host's part in the election. Why is the reason for its Role.
type Coordinator struct {
	Role v1alpha1.Role `json:"role"`
	Why  string        `json:"why,omitempty"`
	// Problem is what an admin has to fix so that the host can coordinate, or can continue
	// to; "" if there is nothing to fix.
	Problem string `json:"problem,omitempty"`
	// Credential is the credential that the host campaigns with; nil if it has none.
	Credential *Credential `json:"credential,omitempty"`
}

// Credential is the status of the coordinator's credential.
type Credential struct {
	File string `json:"file"`
	// Expires is when the credential expires, nil if that is unknown. Renews is when
	// lockkeeper renews it next, nil if lockkeeper does not renew it.
	Expires *time.Time `json:"expires,omitempty"`
	Renews  *time.Time `json:"renews,omitempty"`
	// Why is why the credential cannot be read, is not renewed, or could not be renewed.
	Why string `json:"why,omitempty"`
	// Refused is since when the API server has refused the credential; nil if it accepts
	// it.
	Refused *time.Time `json:"refused,omitempty"`
	// Exposed is how users other than root can read or change the credential, and what to
	// do about it: one sentence for each file or directory.
	Exposed []string `json:"exposed,omitempty"`
}

// Text describes the credential in one line; "" if c is nil.
func (c *Credential) Text(now time.Time) string {
	if c == nil {
		return ""
	}
	parts := []string{c.File}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	at := func(t *time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
	if c.Refused != nil {
		add("REFUSED by the API server since %s", at(c.Refused))
	}
	switch {
	case c.Expires == nil:
	case c.Expires.After(now):
		add("valid until %s (%d days)", at(c.Expires), c.Expires.Sub(now)/(24*time.Hour))
	default:
		add("EXPIRED at %s: `lockkeeper kubeconfig` creates a new one", at(c.Expires))
	}
	if c.Renews != nil && c.Renews.After(now) {
		add("renews itself at %s", at(c.Renews))
	}
	if c.Why != "" {
		add("%s", c.Why)
	}
	for _, finding := range c.Exposed {
		add("EXPOSED: %s", finding)
	}
	return strings.Join(parts, "; ")
}

// Failure is an error, and since when requests have failed.
type Failure struct {
	Error string    `json:"error"`
	Since time.Time `json:"since"`
	// Reason is Forbidden if the API server refuses the host's credential, or does not
	// permit its request.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// RefusedBy is the admission webhook or policy that refuses a write; "" if there is
	// none.
	RefusedBy string `json:"refusedBy,omitempty"`
	// Local is whether the cause is this host's kubeconfig, or the credential plugin that it
	// names, and not the API server.
	Local bool `json:"local,omitempty"`
	// Usable is whether the client still works: no request has failed yet.
	Usable bool `json:"usable,omitempty"`
}

// Failing reports whether all of the host's requests fail, so that another request is pointless.
// It is false if a webhook refuses single requests, and if the kubeconfig cannot be read but the
// previous credential still works. It is false for a nil Failure.
func (f *Failure) Failing() bool { return f != nil && f.RefusedBy == "" && !f.Usable }

// Write replaces the status in dir. Only the process that holds the lock may call it. Every user
// of the host may read the status.
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
