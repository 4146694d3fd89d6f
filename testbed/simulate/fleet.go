package simulate

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/policy"
)

// The bounds of a fleet.
const (
	maxNodes   = 20_000
	maxChanges = 20
	// longest is the longest time that a file may give anything.
	longest = 366 * 24 * time.Hour
)

// Fleet is what a fleet's file says; see [Read].
type Fleet struct {
	// Start is when virtual time begins. The zero time is refused: windows and
	// their time zones depend on it.
	Start time.Time `json:"start"`
	// Limit is how long after Start the run is given up; 0 is 30 days.
	Limit metav1.Duration `json:"limit,omitzero"`
	// Seed chooses among the runs that are possible.
	Seed uint64 `json:"seed,omitempty"`
	// Resolution is the grain of time: what takes time takes a multiple of it,
	// the mean over many staying what it is. 0: one second for up to 1,000
	// nodes, fifteen for up to 3,000, a minute for more. The finer it is, the
	// more decisions have to be made.
	Resolution metav1.Duration `json:"resolution,omitzero"`
	// RetryAfter is how long it takes someone to see a failed node, to mend it
	// and to say retry; 0 is indefinitely.
	RetryAfter metav1.Duration `json:"retryAfter,omitzero"`
	Nodes      []Group         `json:"nodes"`
	// Gates are when the policies' gates are closed; the rest of the time they
	// are open.
	Gates []Gate `json:"gates,omitempty"`

	// Policies are the DisruptionPolicies in addition to the fleet, in the order in
	// which they win.
	Policies policy.Set `json:"-"`
}

// Group are nodes that are alike.
type Group struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	// Labels of the Nodes, in addition to those of the hostname, the zone and the
	// control plane.
	Labels map[string]string `json:"labels,omitempty"`
	// Zones are given to the nodes in turn.
	Zones        []string `json:"zones,omitempty"`
	ControlPlane bool     `json:"controlPlane,omitempty"`
	// BootAge is how long ago the hosts booted; they go in order of it.
	BootAge Spread   `json:"bootAge,omitzero"`
	Takes   Takes    `json:"takes"`
	Fails   Fails    `json:"fails,omitzero"`
	Changes []Change `json:"changes,omitempty"`
}

// Takes is how long things take on a host.
type Takes struct {
	Drain  Spread `json:"drain"`
	Reboot Spread `json:"reboot"` // until the kubelet is Ready again
	// Apply is all reloads and restarts of a plan together.
	Apply Spread `json:"apply,omitzero"`
	// Detach is from the end of the drain until no volume is attached; without
	// it none ever is.
	Detach Spread `json:"detach,omitzero"`
	// Hooks are how long each hook of the policies takes to confirm, by its name.
	Hooks map[string]Spread `json:"hooks,omitempty"`
}

// Fails is how often things fail, each time again.
type Fails struct {
	// Update: after the turn the change is still there, because the OS was
	// rolled back, or the restart changed nothing. The host is healthy.
	Update Share `json:"update,omitzero"`
	// Unhealthy: the host boots and does not become healthy.
	Unhealthy Share `json:"unhealthy,omitzero"`
	// Apply: a unit cannot be reloaded or restarted.
	Apply Share `json:"apply,omitzero"`
}

// Change is what is staged on each node of a group. One of OS, File, Unit,
// Sentinel and Request says what.
type Change struct {
	// At is when it is staged on the first node, Within how long it takes until
	// it is on all of them.
	At     Moment          `json:"at,omitzero"`
	Within metav1.Duration `json:"within,omitzero"`

	OS       string `json:"os,omitempty"`       // the version that a boot brings
	File     string `json:"file,omitempty"`     // its path
	Unit     string `json:"unit,omitempty"`     // its name
	Sentinel string `json:"sentinel,omitempty"` // its path
	Request  bool   `json:"request,omitempty"`  // an admin's, by annotation
}

// Gate is when a gate is closed.
type Gate struct {
	Policy string   `json:"policy"`
	Gate   string   `json:"gate"`
	Closed []Closed `json:"closed"`
}

// Closed is one time in which a gate is closed; without To it stays closed.
type Closed struct {
	From    Moment `json:"from"`
	To      Moment `json:"to,omitzero"`
	Because string `json:"because,omitempty"`
}
