package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// States returns docs/node-states.md: the table of states, every edge
// and every stay, and a diagram, as Markdown with Mermaid.
func States() string {
	var b strings.Builder
	b.WriteString("# The states of a node\n\n" + generated)
	b.WriteString(statesIntro)
	renderOverview(&b)
	renderEdges(&b)
	renderStays(&b)
	renderDiagram(&b)
	return b.String()
}

const statesIntro = `This page lists the states of a node, and when a node goes from one state to the next.

The label ` + "`lockkeeper.dev/state`" + ` says where in its turn a node is. Only the coordinator writes it,
and it moves nodes only along the edges below. *absent* means a Node without the label. The
coordinator moves a node on these events:

| event | what it is |
| --- | --- |
| adopted | the host's record is valid for this Node and boot, and the node is managed and not detached |
| marked | a node in no turn has lockkeeper's own cordon, and is not paused |
| granted | the coordinator gives the node its turn |
| paused, resumed | an admin added or removed the annotation |
| released | managed=false or detached, in no turn |
| let go | an admin detached the node with force; not while a reboot or apply is committed |
| done | what the state waits for has happened |
| want vanished | the want is gone or fell below what the state needs, or an admin takes the node out; never after the commit |
| refused | the host refuses what the state requires, and has not done it |
| failed | the host did it, it did not work, and the host is not healthy |
| failed, healthy | it did not work, but the host is healthy |
| overdue, Abort | longer than the timeout, and onTimeout is Abort |
| overdue, Wait | longer than the timeout, and onTimeout is Wait, or the state only waits |
| taken back | the host reported nothing in the first state of the turn, and has neither cordoned nor committed |
| retry | an admin's annotation names the turn that failed |
| replaced | the Node object was created again since the grant |

A hook stage (before-drain, before-reboot, before-uncordon) with nothing to wait for is not entered:
the node passes through it in the same write, on *done*, or on *taken back* if it is taken back.

`

// renderOverview writes one line for each state, with the failure columns.
func renderOverview(b *strings.Builder) {
	b.WriteString("## The table\n\n" +
		"| state | the host | needs | next state | want vanished | refused, failed | overdue | taken back |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range turn.Table() {
		needs := "-"
		if r.Needs != v1alpha1.WantsNothing {
			needs = "wants=" + string(r.Needs)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.State, r.Host, needs,
			ways(r, turn.Adopted, turn.Marked, turn.Granted, turn.Paused, turn.Resumed, turn.Released, turn.Progressed, turn.Cleared),
			ways(r, turn.Vanished), ways(r, turn.Refused, turn.Failed, turn.FailedHealthy), ways(r, turn.Aborted, turn.Overran), ways(r, turn.TakenBack))
	}
	b.WriteString("\nIn addition, every state of a turn goes to absent when the node is let go or the Node object is replaced.\n\n")
}

// ways says what the row does on the events: each state that it goes on to,
// or that it stays, with the events and conditions where there is more than one.
func ways(r turn.Row, events ...turn.Event) string {
	var order []string
	labels := map[string][]string{}
	add := func(to, label string) {
		if _, ok := labels[to]; !ok {
			order = append(order, to)
		}
		labels[to] = append(labels[to], label)
	}
	for _, on := range events {
		for _, e := range r.Edges {
			if e.On == on {
				add(e.To.String(), label(e))
			}
		}
		if _, ok := r.Stays[on]; ok {
			add("stays", string(on))
		}
	}
	if len(order) == 0 {
		return "-"
	}
	for i, to := range order {
		if len(events) > 1 {
			order[i] += " (" + strings.Join(labels[to], "; ") + ")"
		}
	}
	return strings.Join(order, "<br>")
}

// label is the event and, where there is one, the condition.
func label(e turn.Edge) string {
	if e.If == turn.Always {
		return string(e.On)
	}
	return string(e.On) + " if " + string(e.If)
}

func renderEdges(b *strings.Builder) {
	b.WriteString("## Every edge\n\n| from | on | if | to |\n| --- | --- | --- | --- |\n")
	for _, r := range turn.Table() {
		for _, e := range r.Edges {
			cond := string(e.If)
			if e.If == turn.Always {
				cond = "-"
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s |\n", r.State, e.On, cond, e.To)
		}
	}
	b.WriteByte('\n')
}

func renderStays(b *strings.Builder) {
	b.WriteString("## What changes nothing\n\nThese events can come, and the node stays. " +
		"An event that is neither here nor among the edges does not happen in that state.\n\n" +
		"| state | on | why it stays |\n| --- | --- | --- |\n")
	for _, r := range turn.Table() {
		for _, on := range turn.Events() {
			if why, ok := r.Stays[on]; ok {
				fmt.Fprintf(b, "| %s | %s | %s |\n", r.State, on, why)
			}
		}
	}
	b.WriteByte('\n')
}

// renderDiagram leaves out the edges to absent that every state of a turn
// has: they would hide the others.
func renderDiagram(b *strings.Builder) {
	b.WriteString("## The picture\n\nThe edges to absent out of a turn (let go, replaced) are left out.\n\n" +
		"```mermaid\nstateDiagram-v2\n")
	for _, r := range turn.Table() {
		fmt.Fprintf(b, "    state \"%s\" as %s\n", r.State, diagramID(r.State))
	}
	fmt.Fprintf(b, "    [*] --> %s\n", diagramID(v1alpha1.StateAbsent))
	for _, r := range turn.Table() {
		var order []v1alpha1.State
		labels := map[v1alpha1.State][]string{}
		for _, e := range r.Edges {
			if r.State.InTurn() && e.To == v1alpha1.StateAbsent {
				continue
			}
			if _, ok := labels[e.To]; !ok {
				order = append(order, e.To)
			}
			labels[e.To] = append(labels[e.To], label(e))
		}
		for _, to := range order {
			fmt.Fprintf(b, "    %s --> %s : %s\n", diagramID(r.State), diagramID(to), strings.Join(labels[to], " / "))
		}
	}
	b.WriteString("```\n")
}

// diagramID is the state as Mermaid takes it: without the hyphen.
func diagramID(s v1alpha1.State) string { return strings.ReplaceAll(s.String(), "-", "_") }
