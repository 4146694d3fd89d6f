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
		"One word for one reason, the same in the label `lockkeeper.dev/held`, in acks, logs, Events, metrics and\n" +
		"`lockkeeper status`. In what to do, NODE stands for the node's name.\n\n" +
		"| reason | means | what to do | where |\n| --- | --- | --- | --- |\n")
	for _, d := range v1alpha1.ReasonDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Reason, cell(d.Means), cell(d.Do), places(d.Reason))
	}
	b.WriteString("\nWhere a reason appears, besides the journal and `lockkeeper status`:\n\n" +
		"- held: the label `lockkeeper.dev/held`, and the metric `lockkeeper_coordinator_held_nodes`.\n" +
		"- waits: `waits` and the conditions of the [HostUpdate](hostupdate.md), the host's status line, and the metric `lockkeeper_host_waits`.\n" +
		"- end: the annotations `ack` and `last`, the `history` of the HostUpdate, and the Event about the turn's end.\n" +
		"- Event: an [Event](events.md) of its own.\n")
	b.WriteString("\n## Blockers\n\n" +
		"What keeps a host from going on is in `blockers` of its [HostUpdate](hostupdate.md), in `lockkeeper status`, and in the metrics\n" +
		"`lockkeeper_host_blockers` and `lockkeeper_host_blocked_since_timestamp_seconds`, with the same kind, name and message.\n\n" +
		"| kind | its name is | means | what to do |\n| --- | --- | --- | --- |\n")
	for _, d := range v1alpha1.BlockerDocs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Kind, cell(d.Name), cell(d.Means), cell(d.Do))
	}
	return b.String()
}

// places says where a reason appears.
func places(r v1alpha1.Reason) string {
	var all []string
	if r.Holds() {
		all = append(all, "held")
	}
	switch r {
	case v1alpha1.ReasonOverBudget, v1alpha1.ReasonReplaced, v1alpha1.ReasonForgiven: // no host knows of them
	default:
		all = append(all, "waits")
	}
	if r.Ends() {
		all = append(all, "end")
	}
	if _, ok := v1alpha1.EventOf(string(r)); ok {
		all = append(all, "Event")
	}
	return strings.Join(all, ", ")
}

// cell keeps text within one cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
