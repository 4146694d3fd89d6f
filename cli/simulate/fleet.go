package simulate

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/policy"
)

// These are the limits of a fleet.
const (
	maxNodes   = 20_000
	maxChanges = 20
	// longest is the longest duration in a fleet's file.
	longest = 366 * 24 * time.Hour
)

// Fleet is the content of a fleet's file; see [Read].
type Fleet struct {
	// Start is the start of virtual time. It is required, because windows and their time zones depend on it.
	Start time.Time `json:"start"`
	// Limit is the duration after Start at which the run is aborted; 0 means 30 days.
	Limit metav1.Duration `json:"limit,omitzero"`
	// Seed selects one of the possible runs.
	Seed uint64 `json:"seed,omitempty"`
	// Resolution is the unit of time: every duration is rounded to a multiple of it, at random so that the mean stays
	// correct. 0 means one second for up to 1,000 nodes, fifteen for up to 3,000, and a minute for more. A finer
	// resolution needs more decisions.
	Resolution metav1.Duration `json:"resolution,omitzero"`
	// RetryAfter is the time until an admin notices a failed node, repairs it and runs `lockkeeper retry`; 0 means
	// that no admin does.
	RetryAfter metav1.Duration `json:"retryAfter,omitzero"`
	Nodes      []Group         `json:"nodes"`
	// Gates lists when the gates of policies are closed. The rest of the time they are open.
	Gates []Gate `json:"gates,omitempty"`

	// Policies are the DisruptionPolicies that come with the fleet, in order of precedence.
	Policies policy.Set `json:"-"`
}

// Group is a set of nodes that are alike.
type Group struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	// Labels are set on the Nodes, in addition to those of the hostname, the zone and the control plane.
	Labels map[string]string `json:"labels,omitempty"`
	// Zones are assigned to the nodes in rotation.
	Zones        []string `json:"zones,omitempty"`
	ControlPlane bool     `json:"controlPlane,omitempty"`
	// BootAge is the time since the hosts' boots. Hosts roll in the order of their boots.
	BootAge Spread   `json:"bootAge,omitzero"`
	Takes   Takes    `json:"takes"`
	Fails   Fails    `json:"fails,omitzero"`
	Changes []Change `json:"changes,omitempty"`
}

// Takes contains the durations of operations on a host.
type Takes struct {
	Drain  Spread `json:"drain"`
	Reboot Spread `json:"reboot"` // until the kubelet is Ready again
	// Apply is the time for all reloads and restarts of a plan together.
	Apply Spread `json:"apply,omitzero"`
	// Detach is the time from the end of the drain until no volume is attached. Without it no volume is ever attached.
	Detach Spread `json:"detach,omitzero"`
	// Hooks contains the time until each hook of the policies confirms, by the hook's name.
	Hooks map[string]Spread `json:"hooks,omitempty"`
}

// Fails contains how often operations fail. Each attempt is independent.
type Fails struct {
	// Update is the share of turns after which the change is still there, because the OS was rolled back or the
	// restart had no effect. The host is healthy.
	Update Share `json:"update,omitzero"`
	// Unhealthy is the share of boots after which the host does not become healthy.
	Unhealthy Share `json:"unhealthy,omitzero"`
	// Apply is the share of applies in which a unit cannot be reloaded or restarted.
	Apply Share `json:"apply,omitzero"`
}

// Change is a change that is staged on each node of a group. One of OS, File, Unit, Sentinel, Request and FleetLock defines
// its kind.
type Change struct {
	// At is the time when the change is staged on the first node. Within is the time until it is staged on all nodes.
	At     Moment          `json:"at,omitzero"`
	Within metav1.Duration `json:"within,omitzero"`

	OS        string `json:"os,omitempty"`        // the version that a boot brings
	File      string `json:"file,omitempty"`      // its path
	Unit      string `json:"unit,omitempty"`      // its name
	Sentinel  string `json:"sentinel,omitempty"`  // its path
	Request   bool   `json:"request,omitempty"`   // a request by an admin's annotation
	FleetLock bool   `json:"fleetLock,omitempty"` // a request by the host's FleetLock client, which reboots the host as soon as it may
}

// Gate defines when a gate is closed.
type Gate struct {
	Policy string   `json:"policy"`
	Gate   string   `json:"gate"`
	Closed []Closed `json:"closed"`
}

// Closed is one interval in which a gate is closed. Without To the gate stays closed.
type Closed struct {
	From    Moment `json:"from"`
	To      Moment `json:"to,omitzero"`
	Because string `json:"because,omitempty"`
}

// holds reports whether the gate is closed at now, in a run with that start.
func (c *Closed) holds(now, start time.Time) bool {
	return !now.Before(c.From.in(start)) && (!c.To.said() || now.Before(c.To.in(start)))
}
