package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Reasons returns docs/reasons.md: every reason, what it means and what
// a person can do about it, as Markdown.
func Reasons() string {
	var b strings.Builder
	b.WriteString("# Reasons\n\n" + generated +
		"This page lists every reason why a node or host waits, or why a turn ended, and what to do.\n\n" +
		"A reason has the same name in the label `lockkeeper.dev/held`, in acks, logs, Events, metrics and\n" +
		"`lockkeeper status`. NODE is the name of the node.\n\n" +
		"| reason | means | what to do | where |\n| --- | --- | --- | --- |\n")
	for _, d := range v1alpha1.ReasonDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Reason, cell(d.Means), cell(d.Do), places(d.Reason))
	}
	b.WriteString("\nWhere a reason appears, in addition to the journal:\n\n" +
		"- held: the label `lockkeeper.dev/held`, and the metric `lockkeeper_coordinator_held_nodes`.\n" +
		"- waits: `waits` of the [HostUpdate](hostupdate.md), the host's status line, and the metric\n" +
		"  `lockkeeper_host_waiting`.\n" +
		"- host: the same without the HostUpdate, which is not written while the node is taken out.\n" +
		"- ack: the host reports it in the annotation `ack`.\n" +
		"- end: the annotation `last`, the `history` of the HostUpdate, and the Event about the turn's end. A\n" +
		"  host that was silent has no history of the turn, and one whose node is taken out may have none.\n" +
		"- Event: an [Event](events.md) of its own.\n" +
		"- status: `lockkeeper status NODE`.\n")
	b.WriteString("\n## Blockers\n\n" +
		"What keeps a host from continuing is in `blockers` of its [HostUpdate](hostupdate.md), in\n" +
		"`lockkeeper status`, and in the metrics `lockkeeper_host_blockers` and\n" +
		"`lockkeeper_host_blocked_since_timestamp_seconds`, with the same kind, name and message.\n\n" +
		"| kind | its name is | means | what to do |\n| --- | --- | --- | --- |\n")
	for _, d := range v1alpha1.BlockerDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Kind, cell(d.Name), cell(d.Means), cell(d.Do))
	}
	return b.String()
}

// places says where a reason appears.
func places(r v1alpha1.Reason) string {
	all := r.Places()
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// cell keeps text within one cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

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
