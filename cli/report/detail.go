package report

import (
	"fmt"
	"io"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Find returns the node of that name, or nil.
func (r *Report) Find(name string) *Node {
	for i := range r.Nodes {
		if r.Nodes[i].Name == name {
			return &r.Nodes[i]
		}
	}
	return nil
}

// Only is the report with that node alone among its nodes, for JSON.
func (r *Report) Only(n *Node) *Report {
	one := *r
	one.Nodes = []Node{*n}
	return &one
}

// WriteNode writes everything there is to say of one node. The width is that of
// [TextOptions].
func (r *Report) WriteNode(w io.Writer, n *Node, width int) error {
	p := newPage(width)
	head := n.Name + ": " + n.stateWord()
	if n.Wants != "" {
		head += ", wants " + string(n.Wants)
	}
	if n.Held != "" {
		head += ", held: " + string(n.Held)
	}
	p.line(head)
	line, write := p.lines()
	line("why", "%s", n.Why)
	r.turnLines(n, line)
	r.updateLines(n, line)
	r.hostLines(n, line)
	if len(r.Policies) > 1 && !n.State.InTurn() {
		line("policy", "%s", dash(n.Policy))
	}
	line("node", "%s", n.nodeWords())
	line("budget", "%s", n.slotWords(r.Time))
	if n.Paused != nil {
		line("paused", "yes%s; kubectl annotate node %s %s-", reasonOf(n.Paused), n.Name, v1alpha1.AnnotationPaused)
	}
	if n.Detached != nil {
		line("detached", "yes%s; kubectl annotate node %s %s-", reasonOf(n.Detached), n.Name, v1alpha1.AnnotationDetached)
	}
	r.lastLines(n, line)
	for _, problem := range n.Problems {
		line("unreadable", "%s", problem)
	}
	if d := n.Held.Doc(); d.Reason != "" {
		line("means", "%s", d.Means)
		line("to do", "%s", strings.ReplaceAll(d.Do, "NODE", n.Name))
	}
	write()
	for _, note := range r.notes() {
		p.line(note)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

type lineFunc func(label, format string, args ...any)

func (r *Report) turnLines(n *Node, line lineFunc) {
	if !n.State.InTurn() {
		return
	}
	g := n.Grant
	if g == nil {
		line("turn", "%s; its grant cannot be read", dash(n.Turn))
		return
	}
	line("turn", "%s, for %s, under %s's term, policy %s", n.Turn, since(r.Time, n.TurnSince), g.Epoch, g.Policy)
	stage := "for " + since(r.Time, n.StageSince)
	if most := g.Terms.Limit(n.State); most > 0 {
		stage += ", may take " + span(most)
	}
	if g.PausedSince != nil {
		stage += ", frozen " + ago(r.Time, *g.PausedSince)
	}
	line("stage", "%s %s", n.State, stage)
	for _, h := range n.Hooks {
		word := "not confirmed yet"
		if h.Confirmed {
			word = "confirmed"
		}
		line("hook", "%s: %s", h.Name, word)
	}
	plan := []string{"wants " + string(g.Wants)}
	if g.Drains {
		plan = append(plan, "drains")
	}
	if g.Force {
		plan = append(plan, "deletes what it could not evict")
	}
	if g.OnlyNode {
		plan = append(plan, "no drain, because it is the only node")
	}
	line("plan", "%s: %s", strings.Join(plan, ", "), changes(g.Changes))
	if g.Result != "" {
		line("ends", "%s (%s)", g.Result, g.Reason)
	}
	ack := "nothing yet"
	if a, err := v1alpha1.ParseAck(n.Ack); err == nil && a.Turn == n.Turn {
		ack = string(a.Report)
		if a.Reason != "" {
			ack += " (" + string(a.Reason) + ")"
		}
		ack += " in " + a.State.String()
		if a.BootID != n.BootID {
			ack += ", in another boot than the kubelet's"
		}
	}
	line("host says", "%s", ack)
}

func (r *Report) hostLines(n *Node, line lineFunc) {
	h := n.Host
	if h == nil {
		if n.State != v1alpha1.StateAbsent || n.Held != v1alpha1.ReasonDetached && n.Held != v1alpha1.ReasonUnmanaged {
			line("host", "never heard of")
		}
		return // a released node has no record of its host
	}
	if !n.State.InTurn() {
		line("changes", "%s", changes(h.Changes))
	}
	text := fmt.Sprintf("lockkeeper %s, protocol %d, booted %s", h.Version, h.Protocol, ago(r.Time, h.BootTime))
	if h.OSVersion != "" {
		text += ", OS " + h.OSVersion
	}
	if h.BootID != n.BootID {
		text += ", not of the present boot"
	}
	line("host", "%s", text)
	if h.Veto != "" {
		line("veto", "%s: %s", h.Veto, h.Veto.Doc().Means)
	}
}

func (n *Node) nodeWords() string {
	parts := []string{"Ready"}
	if !n.Ready {
		parts[0] = "not Ready"
	}
	switch {
	case n.Unschedulable && n.Marked:
		parts = append(parts, "cordoned by lockkeeper")
	case n.Unschedulable:
		parts = append(parts, "cordoned by another owner")
	case n.Marked:
		parts = append(parts, "uncordoned, with lockkeeper's mark")
	}
	if n.ControlPlane {
		parts = append(parts, "control plane")
	}
	if n.Zone != "" {
		parts = append(parts, "zone "+n.Zone)
	}
	return strings.Join(parts, ", ")
}

func (r *Report) lastLines(n *Node, line lineFunc) {
	l := n.Last
	if l == nil {
		return
	}
	text := string(l.Result)
	if l.Reason != "" {
		text += " (" + string(l.Reason) + ")"
	}
	text += " " + ago(r.Time, l.End) + ", turn " + l.Turn + ": " + changes(l.Changes)
	if n.Retry == l.Turn {
		text += "; cleared"
	}
	line("last turn", "%s", text)
	if n.failedBefore() && n.Host != nil {
		line("failed", "%s", n.Host.ApplyFailed)
	}
	if l.NotBefore != nil && l.NotBefore.After(r.Time) {
		line("not before", "%s", ago(r.Time, *l.NotBefore))
	}
}

// changes are at most ten changes in one line.
func changes(list []v1alpha1.Change) string {
	if len(list) == 0 {
		return "no changes"
	}
	var parts []string
	for i, c := range list {
		if i == 10 {
			parts = append(parts, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		parts = append(parts, cell(c.String()))
	}
	return strings.Join(parts, ", ")
}
