package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// states returns the tables of the states, the edges and the stays, and a diagram of the edges,
// as Markdown with Mermaid.
func states() map[string]string {
	return map[string]string{"states": overview(), "edges": edges(), "stays": stays(), "diagram": diagram()}
}

// overview has one row for each state, with columns for what can go wrong.
func overview() string {
	var b strings.Builder
	b.WriteString("| state | the host | needs | next state | want vanished | refused, failed | overdue | taken back |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range turn.Table() {
		needs := "-"
		if r.Needs != v1alpha1.WantsNothing {
			needs = "wants=" + string(r.Needs)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.State, r.Host, needs,
			ways(r, turn.Adopted, turn.Marked, turn.Granted, turn.Paused, turn.Resumed, turn.Released, turn.Progressed, turn.Cleared),
			ways(r, turn.Vanished), ways(r, turn.Refused, turn.Failed, turn.FailedHealthy), ways(r, turn.Aborted, turn.Overran), ways(r, turn.TakenBack))
	}
	return b.String()
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

func edges() string {
	var b strings.Builder
	b.WriteString("| from | on | if | to |\n| --- | --- | --- | --- |\n")
	for _, r := range turn.Table() {
		for _, e := range r.Edges {
			cond := string(e.If)
			if e.If == turn.Always {
				cond = "-"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.State, e.On, cond, e.To)
		}
	}
	return b.String()
}

func stays() string {
	var b strings.Builder
	b.WriteString("| state | on | why it stays |\n| --- | --- | --- |\n")
	for _, r := range turn.Table() {
		for _, on := range turn.Events() {
			if why, ok := r.Stays[on]; ok {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", r.State, on, why)
			}
		}
	}
	return b.String()
}

// diagram leaves out the edges to absent that every state of a turn has, because they would hide
// the others.
func diagram() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, r := range turn.Table() {
		fmt.Fprintf(&b, "    state \"%s\" as %s\n", r.State, diagramID(r.State))
	}
	fmt.Fprintf(&b, "    [*] --> %s\n", diagramID(v1alpha1.StateAbsent))
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
			fmt.Fprintf(&b, "    %s --> %s : %s\n", diagramID(r.State), diagramID(to), strings.Join(labels[to], " / "))
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// diagramID is the state as Mermaid takes it: without the hyphen.
func diagramID(s v1alpha1.State) string { return strings.ReplaceAll(s.String(), "-", "_") }
