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
