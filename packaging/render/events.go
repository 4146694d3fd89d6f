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

` + generated + `This page lists every Event that lockkeeper writes.

The coordinator writes an Event (events.k8s.io/v1) each time one of these happens. The Node's own
host writes ` + "`DrainBlocked` and `DrainUnblocked`" + `. Each is an Event of
its own, also if it repeats an earlier one. ` + "`kubectl describe node NODE`" + ` shows the Events about a Node, and
` + "`kubectl get events -n default --field-selector reportingComponent=lockkeeper.dev/coordinator`" + ` lists
those about all Nodes and policies. Events about the Lease, such as the emergency stop, are in
lockkeeper's namespace.

Events are for people, and no part of lockkeeper waits for one. At most 100 are sent at once, and
then one each second. Some are lost when a coordinator stops. A new coordinator does not repeat
older Events, except an emergency stop that holds no node. Changes while there is no coordinator
may have no Event. A reason that is also in [reasons](reasons.md) means the same. NODE is the name
of the node.

| reason | about | type | action | means | what to do |
| --- | --- | --- | --- | --- | --- |
`)
	for _, d := range v1alpha1.EventDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", d.Reason, d.About, d.Type(), d.Action, d.Means, d.Do)
	}
	return b.String()
}
