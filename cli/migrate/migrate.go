// Package migrate turns what another reboot manager left in a cluster or on a host into
// lockkeeper's policies and a host's file. It also decides what `lockkeeper migrate --apply`
// changes on Nodes, and why it refuses. What it knows of the other tools was read in their
// sources; the comments name the files.
//
// The package is pure: data in, text and objects out. It must not know how objects are read
// or written.
package migrate

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Tool is a reboot manager that users come from.
type Tool string

// The tools.
const (
	FLUO      Tool = "fluo"
	Kured     Tool = "kured"
	Locksmith Tool = "locksmith"
)

// Tools returns all tools.
func Tools() []Tool { return []Tool{FLUO, Kured, Locksmith} }

// Input is what was read. Locksmith uses only Files, HostZone and Zones; the others use the rest.
type Input struct {
	Now   time.Time
	Zones policy.Zones
	// By is the user who migrates, for the record of a pause; "" if it is not known.
	By string

	// Nodes are all Nodes of the cluster.
	Nodes []corev1.Node
	// Workloads are the DaemonSets and Deployments of the cluster; those of other programs
	// are ignored.
	Workloads []Workload
	// Pods are the tool's pods that have not ended.
	Pods []corev1.Pod
	// Leases are the Leases with the name of the tool's lock, and FLUO's ConfigMaps with
	// that name.
	Leases     []coordinationv1.Lease
	ConfigMaps []corev1.ConfigMap

	// Files are the host's files by path. A file that does not exist is not in the map.
	Files map[string]string
	// HostZone is the host's time zone; "" if it is not known.
	HostZone string
}

// Workload is a DaemonSet or a Deployment.
type Workload struct {
	Kind, Namespace, Name string
	Annotations           map[string]string
	Template              corev1.PodTemplateSpec
	// Wanted is the number of pods that its controller wants to run.
	Wanted int32
}

// String returns the kind, the namespace and the name.
func (w *Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Result is what comes closest to a tool's settings.
type Result struct {
	Tool Tool
	// Policies carry on the tool's settings in the cluster; none if its workloads are gone.
	Policies []Policy
	// HostFile carries on the tool's settings on each host, in TOML; "" if none is needed.
	HostFile string
	// Notes say what became of each setting that was found.
	Notes []Note

	// Active are the signs that the tool is active. While there is one, nothing is applied.
	Active []Todo
	// Changes are what `--apply` does.
	Changes []Change
	// Left are things of the tool that are left to the user, with how to remove them.
	Left []Todo
}

// Todo is something that the user does; Command is how, "" for nothing to type.
type Todo struct{ Text, Command string }

// Policy is one generated policy.
type Policy struct {
	Object v1alpha1.DisruptionPolicy
	// Source names the workload whose settings the policy carries on.
	Source string
	// PausedBecause are the restrictions that the policy could not carry on. A policy with
	// one is paused, so that a restriction is never lost.
	PausedBecause []string
}

// Outcome is what became of a setting.
type Outcome string

// The outcomes.
const (
	// Carried: the policy or the host's file carries it on.
	Carried Outcome = "carried over"
	// NotCarried: nothing carries it on.
	NotCarried Outcome = "not carried over"
	// Decide: it restricts the tool and could not be carried on. Until the user decides,
	// the policy or the host is paused.
	Decide Outcome = "not carried over; paused until you decide"
)

// Note says what became of one setting.
type Note struct {
	// Setting is the setting with its value, quoted and clipped. A secret's value is not in it.
	Setting string
	Outcome Outcome
	Text    string
}

// From returns what comes closest to the tool's settings, and what `--apply` does.
func From(tool Tool, in *Input) (*Result, error) {
	r := &Result{Tool: tool}
	switch tool {
	case FLUO:
		fromFLUO(r, in)
	case Kured:
		fromKured(r, in)
	case Locksmith:
		fromLocksmith(r, in)
	default:
		return nil, fmt.Errorf("%q is not a tool, expected fluo, kured or locksmith", clip(string(tool)))
	}
	return r, nil
}

// Bounds of what is read. Other users write it, and it is printed on the caller's terminal.
const (
	maxArguments = 512
	maxArgument  = 8 << 10 // bytes
	maxShown     = 80      // bytes of a value
	maxText      = 400     // bytes of an error
)

// clip shortens a value that is shown.
func clip(s string) string { return cut(s, maxShown) }

// cut shortens text to at most limit bytes.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// quote returns a value on one line, without control characters. It does not show an address
// that may contain a password.
func quote(s string) string {
	if strings.Contains(s, "://") && strings.Contains(s, "@") {
		return "(not shown)"
	}
	return strconv.Quote(clip(s))
}
