// Package intents holds what each intent of an admin does in each state, as a person wrote it
// down. docs/intents.md is rendered from it, and tests compare it with what the code does: in the
// model cluster of coordinator/rollout, and on a real API server in testbed/turns. Only tests import
// this package; it must not know how anything is decided.
package intents

import (
	"fmt"
	"strings"
)

// A Cell is what happens if an admin sets an intent on a node in one place, and what
// happens if the intent is removed later. The update that the node waits for is a reboot with a
// drain or, in applying, a restart with a drain. Each stage has a hook, which confirms.
//
// The outcomes are written by hand, not computed.
type Cell struct {
	// Place is the state that the node is in and, after a comma, how far its host is in it.
	Place string
	// Coordinator and Host are what the two do next after the intent is set. Both decide from the
	// same Node.
	Coordinator, Host string
	// Rest is where the node stays while the intent is set: the state, whether the Node is
	// cordoned, and the label held.
	Rest string
	// Dead is where the node stays instead if its machine goes down for good in the place.
	Dead string
	// CoordinatorCleared and HostCleared are what the two do next after the intent is removed
	// from the node at Rest. End is where the node arrives then, and by which turn.
	CoordinatorCleared, HostCleared, End string
}

// The intents of the matrix.
const (
	Unmanaged = "managed=false"
	Paused    = "paused"
	Detached  = "detached"
	Forced    = "detached with force"
)

// Matrix holds the cells of each intent, in the order of a turn.
var Matrix = []struct {
	Intent string
	Cells  []Cell
}{
	{Unmanaged, []Cell{
		{"absent", "nothing", "waits: Unmanaged", "absent", "absent", "nothing", "publishes", "idle, a new turn"},
		{"idle", "releases the node", "nothing", "absent, held=Unmanaged", "absent, held=Unmanaged", "nothing", "publishes", "idle, a new turn"},
		{"paused", "releases the node", "waits: Paused", "absent, held=Unmanaged", "absent, held=Unmanaged", "nothing", "publishes", "paused, held=Paused"},
		{"before-drain", "state=before-uncordon", "nothing", "absent, held=Unmanaged", "uncordoning, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"draining, not cordoned yet", "state=before-uncordon", "waits: Unmanaged", "absent, held=Unmanaged", "uncordoning, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"draining", "state=before-uncordon", "waits: Unmanaged", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"before-reboot", "state=before-uncordon", "nothing", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"rebooting", "state=before-uncordon", "waits: Unmanaged", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"rebooting, committed", "nothing", "reboots", "absent, held=Unmanaged", "rebooting, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"rebooting, under way", "nothing", "nothing", "absent, held=Unmanaged", "rebooting, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"rebooting, in the new boot", "nothing", "waits: Unhealthy", "absent, held=Unmanaged", "rebooting, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"applying", "nothing", "refuses: Unmanaged", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, a new turn"},
		{"applying, committed", "nothing", "applies", "absent, held=Unmanaged", "applying, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"applying, under way", "nothing", "applies", "absent, held=Unmanaged", "applying, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"before-uncordon", "nothing", "nothing", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
		{"uncordoning", "nothing", "uncordons", "absent, held=Unmanaged", "uncordoning, cordoned, held=Overdue", "nothing", "publishes", "idle, no turn"},
	}},
	{Paused, []Cell{
		{"absent", "nothing", "publishes", "paused, held=Paused", "absent", "state=idle", "waits: Paused", "idle, a new turn"},
		{"idle", "state=paused", "nothing", "paused, held=Paused", "paused, held=Paused", "state=idle", "waits: Paused", "idle, a new turn"},
		{"paused", "nothing", "waits: Paused", "paused, held=Paused", "paused, held=Paused", "state=idle", "waits: Paused", "idle, a new turn"},
		{"before-drain", "stops the clock", "nothing", "before-drain, held=Paused", "before-drain, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"draining, not cordoned yet", "stops the clock", "waits: Paused", "draining, held=Paused", "draining, held=Paused", "starts the clock", "cordons", "idle, the same turn"},
		{"draining", "stops the clock", "waits: Paused", "draining, cordoned, held=Paused", "draining, cordoned, held=Paused", "starts the clock", "evicts", "idle, the same turn"},
		{"before-reboot", "stops the clock", "nothing", "before-reboot, cordoned, held=Paused", "before-reboot, cordoned, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"rebooting", "stops the clock", "waits: Paused", "rebooting, cordoned, held=Paused", "rebooting, cordoned, held=Paused", "starts the clock", "commits", "idle, the same turn"},
		{"rebooting, committed", "stops the clock", "waits: Paused", "rebooting, cordoned, held=Paused", "rebooting, cordoned, held=Paused", "starts the clock", "reboots", "idle, the same turn"},
		{"rebooting, under way", "stops the clock", "nothing", "rebooting, cordoned, held=Paused", "rebooting, cordoned, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"rebooting, in the new boot", "stops the clock", "waits: Unhealthy", "rebooting, cordoned, held=Paused", "rebooting, cordoned, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"applying", "stops the clock", "waits: Paused", "applying, cordoned, held=Paused", "applying, cordoned, held=Paused", "starts the clock", "commits", "idle, the same turn"},
		{"applying, committed", "stops the clock", "waits: Paused", "applying, cordoned, held=Paused", "applying, cordoned, held=Paused", "starts the clock", "applies", "idle, the same turn"},
		{"applying, under way", "stops the clock", "applies", "applying, cordoned, held=Paused", "applying, cordoned, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"before-uncordon", "stops the clock", "nothing", "before-uncordon, cordoned, held=Paused", "before-uncordon, cordoned, held=Paused", "starts the clock", "nothing", "idle, the same turn"},
		{"uncordoning", "stops the clock", "waits: Paused", "uncordoning, cordoned, held=Paused", "uncordoning, cordoned, held=Paused", "starts the clock", "uncordons", "idle, the same turn"},
	}},
	{Detached, []Cell{
		{"absent", "nothing", "waits: Detached", "absent", "absent", "nothing", "publishes", "idle, a new turn"},
		{"idle", "releases the node", "nothing", "absent, held=Detached", "absent, held=Detached", "removes held", "publishes", "idle, a new turn"},
		{"paused", "nothing", "waits: Paused", "paused, held=Paused", "paused, held=Paused", "nothing", "waits: Paused", "paused, held=Paused"},
		{"before-drain", "state=before-uncordon", "nothing", "absent, held=Detached", "uncordoning, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"draining, not cordoned yet", "state=before-uncordon", "waits: Detached", "absent, held=Detached", "uncordoning, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"draining", "state=before-uncordon", "waits: Detached", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"before-reboot", "state=before-uncordon", "nothing", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"rebooting", "state=before-uncordon", "waits: Detached", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"rebooting, committed", "nothing", "reboots", "absent, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"rebooting, under way", "nothing", "nothing", "absent, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"rebooting, in the new boot", "nothing", "waits: Unhealthy", "absent, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"applying", "nothing", "refuses: Detached", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, a new turn"},
		{"applying, committed", "nothing", "applies", "absent, held=Detached", "applying, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"applying, under way", "nothing", "applies", "absent, held=Detached", "applying, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"before-uncordon", "nothing", "nothing", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
		{"uncordoning", "nothing", "uncordons", "absent, held=Detached", "uncordoning, cordoned, held=Overdue", "removes held", "publishes", "idle, no turn"},
	}},
	{Forced, []Cell{
		{"absent", "nothing", "waits: Detached", "absent", "absent", "nothing", "publishes", "idle, a new turn"},
		{"idle", "releases the node", "nothing", "absent, held=Detached", "absent, held=Detached", "removes held", "publishes", "idle, a new turn"},
		{"paused", "releases the node", "waits: Paused", "absent, held=Detached", "absent, held=Detached", "removes held", "publishes", "paused, held=Paused"},
		{"before-drain", "releases the node", "nothing", "absent, held=Detached", "absent, held=Detached", "removes held", "publishes", "idle, a new turn"},
		{"draining, not cordoned yet", "releases the node", "waits: Detached", "absent, held=Detached", "absent, held=Detached", "removes held", "publishes", "idle, a new turn"},
		{"draining", "releases the node", "waits: Detached", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, a new turn"},
		{"before-reboot", "releases the node", "nothing", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, a new turn"},
		{"rebooting", "releases the node", "waits: Detached", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, a new turn"},
		{"rebooting, committed", "nothing", "reboots", "absent, cordoned, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, cordoned, no turn"},
		{"rebooting, under way", "nothing", "nothing", "absent, cordoned, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, cordoned, no turn"},
		{"rebooting, in the new boot", "nothing", "waits: Unhealthy", "absent, cordoned, held=Detached", "rebooting, cordoned, held=Overdue", "removes held", "publishes", "idle, cordoned, no turn"},
		{"applying", "releases the node", "waits: Detached", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, a new turn"},
		{"applying, committed", "nothing", "applies", "absent, cordoned, held=Detached", "applying, cordoned, held=Overdue", "removes held", "publishes", "idle, cordoned, no turn"},
		{"applying, under way", "nothing", "applies", "absent, cordoned, held=Detached", "applying, cordoned, held=Overdue", "removes held", "publishes", "idle, cordoned, no turn"},
		{"before-uncordon", "releases the node", "nothing", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, no turn"},
		{"uncordoning", "releases the node", "waits: Detached", "absent, cordoned, held=Detached", "absent, cordoned, held=Detached", "removes held", "publishes", "idle, cordoned, no turn"},
	}},
}

// Tables returns a Markdown table for each intent.
func Tables() map[string]string {
	all := map[string]string{}
	for _, intent := range Matrix {
		var b strings.Builder
		b.WriteString("| where the node is | set: the coordinator | set: the host | rests | if the machine is dead | removed: the coordinator | removed: the host | arrives |\n" +
			"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
		for _, c := range intent.Cells {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.Place, c.Coordinator, c.Host, c.Rest, c.Dead, c.CoordinatorCleared, c.HostCleared, c.End)
		}
		all[intent.Intent] = b.String()
	}
	return all
}
