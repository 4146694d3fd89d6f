package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Events returns docs/events.md.
func Events() string {
	var b strings.Builder
	b.WriteString(`# Events

` + generated + `The coordinator writes an Event (events.k8s.io/v1) when one of these happens, once for each time; the Node's own host writes
` + "`DrainBlocked` and `DrainUnblocked`" + `. Each is an Event of its own, also
if it repeats an earlier one. ` + "`kubectl describe node NODE`" + ` shows the Events about a Node, and ` + "`kubectl get events -n default " +
		`--field-selector reportingComponent=lockkeeper.dev/coordinator` + "`" + ` lists those about all Nodes and policies. Events about the Lease are
in lockkeeper's namespace; the emergency stop is an Event about the Lease as well. Events are for people: nothing waits for one, at most 100 come at once and one a second after that,
and some are lost when a coordinator ends. A new coordinator does not repeat
what was so before it, except an emergency stop that holds no node; what changes while no coordinator leads may have no Event. Reasons are the words of [reasons](reasons.md) where those have one. NODE stands
for the node's name.

| reason | about | type | action | means | what to do |
| --- | --- | --- | --- | --- | --- |
`)
	for _, d := range v1alpha1.EventDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", d.Reason, d.About, d.Type(), d.Action, d.Means, d.Do)
	}
	return b.String()
}
