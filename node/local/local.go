// Package local keeps what a host knows about itself without the API server: one record, which
// the running process writes to a file, and a lock that shows whether that process still runs.
// `lockkeeper status` on the host reads both if it has no kubeconfig, or if no API server
// answers.
//
// No step of a turn depends on the record: a host resumes from the Node, never from this file.
// The package uses only its own files. Package effect keeps what a turn has applied in the same
// directory. The package must not know how the host decides, and it sends no request.
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
	// maxStatus bounds the status, in bytes. A pause or a stop has a reason of up to 256 KiB. The status has it twice, and JSON may take six
	// bytes for one.
	maxStatus = 4 << 20
)

// Status is everything that the running process reports about itself. `systemctl status`, the
// host's metrics and `lockkeeper status` on the host show parts of it. Its JSON form is part of
// `lockkeeper status -o json`.
type Status struct {
	// Time is when the process wrote the report, by the host's clock. The process writes it only
	// when something in it changes, so an old time does not mean that the process has died.
	Time time.Time `json:"time"`
	// PID is the ID of the process.
	PID int `json:"pid"`
	// Version is the version of lockkeeper.
	Version string `json:"version"`
	// Line is the text that `systemctl status` shows.
	Line string `json:"line"`

	Host

	// Coordinator is this host's part in the election.
	Coordinator Coordinator `json:"coordinator"`
	// Metrics says why metrics and health are not served. It is missing if they are served or
	// switched off.
	Metrics string `json:"metrics,omitempty"`
	// FleetLock says why no client is answered by FleetLock. It is missing if one is, or if that is
	// switched off.
	FleetLock string `json:"fleetLock,omitempty"`
}

// Host is the part of a [Status] that the host's loop knows. Withdrawn and Left are what
// Observation.Released and Observation.Left in node/step describe. Blockers has at most
// [v1alpha1.MaxUpdateBlockers] entries.
type Host struct {
	// Node is the name of the Node. It is empty until the host knows it.
	Node string `json:"node"`
	// BootID is the ID of the present boot.
	BootID string `json:"bootID"`

	// State is the node's state, as the host last saw it on its Node.
	State v1alpha1.State `json:"state"`
	// Turn is the ID of the present turn, as the host last saw it on its Node.
	Turn string `json:"turn,omitempty"`
	// TurnSince is when the turn began, by the coordinator's clock. It is missing outside of a turn.
	TurnSince time.Time `json:"turnSince,omitzero"`
	// StageSince is when the present stage of the turn began, by the coordinator's clock. It is
	// missing outside of a turn.
	StageSince time.Time `json:"stageSince,omitzero"`
	// Wants is what the host wants: nothing, apply, drain or reboot. It is empty until the host has
	// read every source of changes in this boot.
	Wants v1alpha1.Wants `json:"wants"`
	// Changes lists the pending changes.
	Changes []v1alpha1.Change `json:"changes,omitempty"`
	// Plan has one line for each step that the changes require.
	Plan []string `json:"plan,omitempty"`
	// Drains is true if the plan includes a drain.
	Drains bool `json:"drains,omitempty"`

	// UID is the Node's UID. It is missing until the host has seen its Node.
	UID string `json:"uid,omitempty"`
	// Cordoned is true if the Node is unschedulable, no matter who cordoned it.
	Cordoned bool `json:"cordoned,omitempty"`
	// Withdrawn is true if lockkeeper released the node or has never managed it. The host then
	// publishes nothing about it.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Left is true if the host gives its node up and none of the host's keys is left on the Node.
	// The service can then be stopped for good.
	Left bool `json:"left,omitempty"`
	// Course describes the present turn. It is missing outside of a turn.
	Course *Course `json:"course,omitempty"`
	// Last is the record of the node's last turn. It is missing if the Node does not have it.
	Last *v1alpha1.Last `json:"last,omitempty"`
	// Cleared reports whether an admin's retry names the turn of Last.
	Cleared bool `json:"-"`

	// Waits is the reason why the host waits. It is missing if the host does not wait.
	Waits v1alpha1.Reason `json:"waits,omitempty"`
	// Detail says what the host waits for or does, or why it cannot continue.
	Detail string `json:"detail,omitempty"`
	// Activity says what `detail` describes: Queued if the host waits for its turn, Working if it
	// carries something out, Failing if it cannot continue. If it is missing, `detail` says what the
	// host waits for.
	Activity Activity `json:"activity,omitempty"`
	// Since is when `state`, `turn` or `waits` last changed, by the host's clock.
	Since time.Time `json:"since,omitzero"`
	// Blockers lists what keeps the host from continuing, the oldest first. It has at most 16
	// entries.
	Blockers []v1alpha1.Blocker `json:"blockers,omitempty"`
	// Drain is the progress of the drain. It is missing while no drain runs.
	Drain *v1alpha1.DrainStatus `json:"drain,omitempty"`

	// OS is the operating system that runs.
	OS v1alpha1.OSStatus `json:"os,omitzero"`
	// Engine is the status of the update engine. It is missing if the engine does not answer or the
	// host has none.
	Engine *v1alpha1.EngineStatus `json:"engine,omitempty"`
	// EngineError says why the update engine does not answer.
	EngineError string `json:"engineError,omitempty"`
	// SourcesError says which source of changes the host cannot read, and why.
	SourcesError string `json:"sourcesError,omitempty"`

	// API says why the host cannot use the API server, or soon will not be able to. It is missing if
	// neither is the case.
	API *Failure `json:"api,omitempty"`
}

// Course is the course of a turn, according to its grant.
type Course struct {
	// Wants is what the turn was granted for: apply, drain or reboot.
	Wants v1alpha1.Wants `json:"wants"`
	// Drains is true if the turn includes a drain.
	Drains bool `json:"drains,omitempty"`
	// Rebooted is true if the host has rebooted since the grant.
	Rebooted bool `json:"rebooted,omitempty"`
	// Result is the result of the turn. It is set once the turn is backed out or has failed.
	Result v1alpha1.Result `json:"result,omitempty"`
	// Reason is why the turn was backed out or failed.
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
	// Role is Leader if the host coordinates, Standby if it campaigns and another host leads, and
	// Host if it does not campaign.
	Role v1alpha1.Role `json:"role"`
	// Why is the reason for the role.
	Why string `json:"why,omitempty"`
	// Problem is what an admin has to fix so that the host can coordinate, or can continue to. It is
	// missing if there is nothing to fix.
	Problem string `json:"problem,omitempty"`
	// Credential is the credential that the host campaigns with. It is missing if the host has none.
	Credential *Credential `json:"credential,omitempty"`
}

// Credential is the status of the coordinator's credential.
type Credential struct {
	// File is the path of the kubeconfig.
	File string `json:"file"`
	// Expires is when the credential expires. It is missing if that is unknown.
	Expires *time.Time `json:"expires,omitempty"`
	// Renews is when lockkeeper renews the credential next. It is missing if lockkeeper does not
	// renew it.
	Renews *time.Time `json:"renews,omitempty"`
	// Why says why the credential cannot be read, is not renewed, or could not be renewed.
	Why string `json:"why,omitempty"`
	// Refused is since when the API server has refused the credential. It is missing if the API
	// server accepts it.
	Refused *time.Time `json:"refused,omitempty"`
	// Exposed says how users other than root can read or change the credential, and what to do about
	// it. It has one sentence for each file or directory.
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
	// Error is the error message.
	Error string `json:"error"`
	// Since is when requests began to fail.
	Since time.Time `json:"since"`
	// Reason is Forbidden if the API server refuses the host's credential, or does not permit its
	// request.
	Reason v1alpha1.Reason `json:"reason,omitempty"`
	// RefusedBy is the admission webhook or policy that refuses a write. It is missing if there is
	// none.
	RefusedBy string `json:"refusedBy,omitempty"`
	// Local is true if the cause is not the API server, but this host's kubeconfig or the credential
	// plugin that it names.
	Local bool `json:"local,omitempty"`
	// Usable is true if the client still works: no request has failed yet.
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
