package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
)

// Find returns the node with that name, or nil.
func (r *Report) Find(name string) *Node {
	for i := range r.Nodes {
		if r.Nodes[i].Name == name {
			return &r.Nodes[i]
		}
	}
	return nil
}

// Only returns the report with that node as its only one, for JSON.
func (r *Report) Only(n *Node) *Report {
	one := *r
	one.Nodes = []Node{*n}
	return &one
}

// writeNode writes all that is known about one node.
func (r *Report) writeNode(w io.Writer, n *Node, f Form) error {
	p := f.page()
	head := n.Name + ": " + n.stateText()
	if n.Wants != "" {
		head += ", wants " + string(n.Wants)
	}
	if n.Held != "" {
		head += ", held: " + string(n.Held)
	}
	if n.needsAttention() {
		p.Alert(head)
	} else {
		p.Line(head)
	}
	line, write := p.Labels()
	line("why", "%s", n.Why)
	r.turnLines(n, line)
	r.updateLines(n, line)
	r.hostLines(n, line)
	if len(r.Policies) > 1 && !n.State.InTurn() {
		line("policy", "%s", page.Dash(n.Policy))
	}
	line("node", "%s", n.nodeText())
	line("budget", "%s", n.slotText(r.Time))
	if n.Paused != nil {
		line("paused", "yes%s; to end it: lockkeeper resume %s", reasonOf(n.Paused), n.Name)
	}
	if n.Detached != nil {
		line("detached", "yes%s; to take it back: lockkeeper attach %s", reasonOf(n.Detached), n.Name)
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
	r.writeNotes(p)
	_, err := io.WriteString(w, p.String())
	return err
}

func (r *Report) turnLines(n *Node, line page.Label) {
	if !n.State.InTurn() {
		return
	}
	g := n.Grant
	if g == nil {
		line("turn", "%s; its grant is unreadable", page.Dash(n.Turn))
		return
	}
	line("turn", "%s, for %s, granted by %s, policy %s", n.Turn, page.Since(r.Time, n.TurnSince), g.Epoch, g.Policy)
	stage := "for " + page.Since(r.Time, n.StageSince)
	if most := g.Terms.Limit(n.State); most > 0 {
		stage += ", limit " + page.Span(most)
	}
	if g.PausedSince != nil {
		stage += ", paused " + page.Ago(r.Time, *g.PausedSince)
	}
	line("stage", "%s %s", n.State, stage)
	for _, h := range n.Hooks {
		state := "not confirmed yet"
		if h.Confirmed {
			state = "confirmed"
		}
		line("hook", "%s: %s", h.Name, state)
	}
	plan := []string{"wants " + string(g.Wants)}
	if g.Drains {
		plan = append(plan, "drains")
	}
	if g.Force {
		plan = append(plan, "deletes pods that it cannot evict")
	}
	if g.OnlyNode {
		plan = append(plan, "no drain because it is the only node")
	}
	line("plan", "%s: %s", strings.Join(plan, ", "), changes(g.Changes, g.Request))
	if g.Result != "" {
		line("result", "%s (%s)", g.Result, g.Reason)
	}
	ack := "none yet"
	if a, err := v1alpha1.ParseAck(n.Ack); err == nil && a.Turn == n.Turn {
		ack = string(a.Report)
		if a.Reason != "" {
			ack += " (" + string(a.Reason) + ")"
		}
		ack += " in " + a.State.String()
		if a.BootID != n.BootID {
			ack += ", from another boot"
		}
	}
	line("report", "%s", ack)
}

func (r *Report) hostLines(n *Node, line page.Label) {
	h := n.Host
	if h == nil {
		if n.State != v1alpha1.StateAbsent || n.Held != v1alpha1.ReasonDetached && n.Held != v1alpha1.ReasonUnmanaged {
			line("host", "has not reported")
		}
		return // a released node has no record of its host
	}
	if !n.State.InTurn() {
		line("changes", "%s", changes(h.Changes, n.Request))
	}
	text := fmt.Sprintf("lockkeeper %s, protocol %d, booted %s", h.Version, h.Protocol, page.Ago(r.Time, h.BootTime))
	if h.OSVersion != "" {
		text += ", OS " + h.OSVersion
	}
	if h.BootID != n.BootID {
		text += ", from an earlier boot"
	}
	line("host", "%s", text)
	if h.Veto != "" {
		line("veto", "%s: %s", h.Veto, h.Veto.Doc().Means)
	}
	since := "no pod blocks now"
	if !h.BlockedSince.IsZero() {
		since = "blocked for " + page.Since(r.Time, &h.BlockedSince)
	}
	switch {
	case h.BlockOff && n.State.InTurn():
		line("block", "off in this turn if its grant says so too: %s", since)
	case h.BlockOff:
		line("block", "off for its next turn, because drain.blockTimeout is over: %s", since)
	case !h.BlockedSince.IsZero():
		line("block", "%s", since)
	}
}

func (n *Node) nodeText() string {
	parts := []string{"Ready"}
	if !n.Ready {
		parts[0] = "not Ready"
	}
	switch {
	case n.Unschedulable && n.OwnCordon:
		parts = append(parts, "cordoned by lockkeeper")
	case n.Unschedulable:
		parts = append(parts, "cordoned by another owner")
	case n.Marked:
		parts = append(parts, "uncordoned by another user")
	}
	if n.ControlPlane {
		parts = append(parts, "control plane")
	}
	if n.Zone != "" {
		parts = append(parts, "zone "+n.Zone)
	}
	return strings.Join(parts, ", ")
}

func (r *Report) lastLines(n *Node, line page.Label) {
	l := n.Last
	if l == nil {
		return
	}
	text := string(l.Result)
	if l.Reason != "" {
		text += " (" + string(l.Reason) + ")"
	}
	text += " " + page.Ago(r.Time, l.End) + ", turn " + l.Turn + ": " + changes(l.Changes, l.Request)
	if n.Retry == l.Turn {
		text += "; cleared"
	}
	line("last turn", "%s", text)
	if n.failedBefore() && n.Host != nil {
		line("failed", "%s", n.Host.ApplyFailed)
	}
	if l.NotBefore != nil && l.NotBefore.After(r.Time) {
		line("not before", "%s", page.Ago(r.Time, *l.NotBefore))
	}
}

// changes returns at most ten changes in one line. request is the request among them, or nil.
func changes(list []v1alpha1.Change, request *v1alpha1.Request) string {
	if len(list) == 0 {
		return "no changes"
	}
	var parts []string
	for i, c := range list {
		if i == 10 {
			parts = append(parts, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		parts = append(parts, page.Cell(c.String()+request.Note(c)))
	}
	return strings.Join(parts, ", ")
}

// AddUpdate adds what the host publishes, unless that is about another turn or boot.
// undecodable is why it cannot be decoded, or "".
func (n *Node) AddUpdate(u *v1alpha1.HostUpdateStatus, undecodable string) {
	n.UpdateError = undecodable
	if u == nil || string(u.BootID) != n.BootID && n.BootID != "" {
		return
	}
	if n.State.InTurn() != (u.Turn != nil) || u.Turn != nil && string(u.Turn.ID) != n.Turn {
		u = u.DeepCopy()
		u.Turn, u.Blockers, u.Drain, u.Conditions = nil, nil, nil, nil // of another turn
	}
	n.Update = u
}

// AddUpdate adds the HostUpdate of the host on which the coordinator runs; nil if it cannot be read.
func (c *Coordinator) AddUpdate(u *v1alpha1.HostUpdateStatus) {
	if u == nil {
		return
	}
	for _, condition := range u.Conditions {
		if condition.Type == v1alpha1.ConditionCoordinatorHealthy && condition.Status == "False" {
			c.Problem = condition.Message
		}
	}
}

// blockedText names what has blocked the node longest, and how many other things
// do; "" for none.
func (n *Node) blockedText() string {
	if n.Update == nil || len(n.Update.Blockers) == 0 {
		return ""
	}
	text := "blocked by " + blockerName(&n.Update.Blockers[0])
	if more := len(n.Update.Blockers) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// blockerName is a blocker without its message.
func blockerName(b *v1alpha1.Blocker) string {
	text := string(b.Kind) + " " + string(b.Name)
	if b.Pod != "" && b.Pod != b.Name {
		text += " (pod " + string(b.Pod) + ")"
	}
	return text
}

// updateLines are the lines of the HostUpdate.
func (r *Report) updateLines(n *Node, line page.Label) {
	u := n.Update
	if n.UpdateError != "" {
		line("note", "%s", n.UpdateError)
	}
	if u == nil {
		return
	}
	for i := range u.Blockers {
		b := &u.Blockers[i]
		line("blocked by", "%s for %s: %s", blockerName(b), page.Since(r.Time, &b.Since.Time), b.Message)
	}
	if d := u.Drain; d != nil {
		text := fmt.Sprintf("%d of %d pods evicted", d.Evicted, d.Total)
		if d.ExpectedEnd != nil {
			text += ", the last one expected " + page.Ago(r.Time, d.ExpectedEnd.Time)
		}
		line("drain", "%s", text)
	}
	line("progress", "%s", u.Message)
	if e := u.Engine; e != nil {
		text := string(e.Operation)
		if e.Version != "" {
			text += " " + string(e.Version)
		}
		if e.Progress > 0 {
			text += fmt.Sprintf(" (%d %%)", e.Progress)
		}
		line("engine", "%s", text)
	}
	for _, c := range u.Conditions {
		switch c.Type {
		case v1alpha1.ConditionEngineReachable, v1alpha1.ConditionSourcesReadable, v1alpha1.ConditionCredentialValid, v1alpha1.ConditionCoordinatorHealthy:
			if c.Status != "True" {
				line("health", "%s is False for %s: %s", c.Type, page.Since(r.Time, &c.LastTransitionTime.Time), c.Message)
			}
		}
	}
	for _, e := range u.Offline {
		line("offline", "%s: %s", page.Clock(r.Time, e.Time.Time), e.Message)
	}
	if len(u.History) > 0 {
		t := &u.History[0]
		line("took", "%s: %s", page.Span(t.Ended.Sub(t.Started.Time)), stagesText(t.Stages))
	}
}

// stagesText is how long a turn was in each state.
func stagesText(all []v1alpha1.StageTime) string {
	var parts []string
	for _, s := range all {
		parts = append(parts, string(s.State)+" "+page.Span(time.Duration(s.Seconds)*time.Second))
	}
	return strings.Join(parts, ", ")
}
