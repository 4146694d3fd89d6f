package report

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
)

const (
	// maxRows bounds the nodes in text unless all were asked for.
	maxRows = 100
	// wideTable is from how many columns on a terminal shows every column of the
	// nodes' table.
	wideTable = 140
	maxWhy    = 400 // columns of a node's WHY
)

// writeText writes the report: a summary, then the nodes that are not idle or that need
// something, then what the reasons among them mean. The same facts at the same time give the
// same text.
func (r *Report) writeText(w io.Writer, o Form) error {
	p := o.page()
	if r.Status == Stopped || r.Status == Halted {
		p.Alert(r.Summary)
	} else {
		p.Line(r.Summary)
	}
	r.writeNotes(p)
	if progress := r.progress(); len(progress) > 0 {
		p.Table("", nil, progress)
	}
	if line := r.Versions.line(); line != "" {
		p.Line(line)
	}
	rows, more := r.rows(false, o.All)
	if len(rows) > 0 {
		p.WriteByte('\n')
		r.table(p, rows, o)
	}
	if more > 0 {
		p.Line(fmt.Sprintf("… and %d more; -A shows all", more))
	}
	held := map[v1alpha1.Reason]bool{}
	for _, n := range rows {
		held[n.Held] = true
	}
	reasons(p, held)
	_, err := io.WriteString(w, p.String())
	return err
}

// writeTable writes only the table of the nodes.
func (r *Report) writeTable(w io.Writer, f Form) error {
	p := f.page()
	rows, _ := r.rows(true, f.All)
	if len(rows) > 0 {
		r.table(p, rows, f)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// rows returns the nodes to show, and how many others need attention. Without unlimited they are
// at most maxRows, unless all are to be shown.
func (r *Report) rows(unlimited, all bool) (rows []*Node, more int) {
	for i := range r.Nodes {
		n := &r.Nodes[i]
		switch {
		case all:
			rows = append(rows, n)
		case n.rank >= rankIdle:
		case !unlimited && len(rows) == maxRows:
			more++
		default:
			rows = append(rows, n)
		}
	}
	return rows, more
}

// table writes the nodes. On a narrow terminal it leaves out the turn and the time of day,
// which `lockkeeper status NODE` shows. A wide table has more columns.
func (r *Report) table(p *page.Page, nodes []*Node, f Form) {
	wide, short := f.Output == Wide, p.Width > 0 && p.Width < wideTable && f.Output != Wide
	columns := func(since, turn string, more []string, why string, first ...string) []string {
		row := append(first, since)
		if !short {
			row = append(row, turn)
		}
		if wide {
			row = append(row, more...)
		}
		return append(row, why)
	}
	header := f.header(columns("SINCE", "TURN", []string{"POLICY", "OS", "LOCKKEEPER"}, "WHY", "NODE", "STATE", "WANTS", "HELD")...)
	rows := make([][]string, 0, len(nodes))
	p.Attention = map[string]bool{}
	for _, n := range nodes {
		if n.needsAttention() {
			p.Attention[string(n.Held)] = true
		}
		since, system, version := page.Since(r.Time, n.StageSince), "", ""
		if short {
			since, _, _ = strings.Cut(since, " ")
		}
		if n.Host != nil {
			system, version = n.Host.OSVersion, n.Host.Version
		}
		rows = append(rows, columns(since, page.Dash(n.Turn), []string{page.Dash(n.Policy), page.Cell(page.Dash(system)), page.Cell(page.Dash(version))},
			page.Clip(page.Visible(n.whyAll(r.Time)), maxWhy),
			n.Name, n.stateText(), page.Dash(string(n.Wants)), page.Dash(string(n.Held))))
	}
	p.Table("", header, rows)
}

func (n *Node) stateText() string {
	if n.State == v1alpha1.StateAbsent && !n.Managed {
		return "not managed"
	}
	return n.State.String()
}

// whyAll returns all that is known about the node in one line, Why included.
func (n *Node) whyAll(now time.Time) string {
	var parts []string
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(n.blockedText())
	add(n.Why)
	add(n.slotText(now))
	if n.Paused != nil && n.State != v1alpha1.StateAbsent && n.Held != v1alpha1.ReasonPaused {
		add("paused" + reasonOf(n.Paused))
	}
	if n.Detached != nil && n.Held != v1alpha1.ReasonDetached {
		add("detached" + reasonOf(n.Detached))
	}
	if n.failedBefore() && n.Held != v1alpha1.ReasonFailed {
		add(fmt.Sprintf("last turn failed (%s) %s", n.Last.Reason, page.Ago(now, n.Last.End)))
	}
	if n.failedBefore() && n.Host != nil {
		add(n.Host.ApplyFailed)
	}
	if len(n.Problems) > 0 {
		add("unreadable: " + n.Problems[0])
	}
	return strings.Join(parts, "; ")
}

func reasonOf(i *v1alpha1.Intent) string {
	s := ""
	if i.Reason != "" {
		s += ": " + i.Reason
	}
	if i.By != "" {
		s += " (" + i.By + ")"
	}
	if i.Until != nil {
		s += " until " + i.Until.UTC().Format("2006-01-02 15:04:05Z")
	}
	return s
}

// summary is the first line.
func (r *Report) summary() string {
	f := &r.Figures
	words := map[Status]string{UpToDate: "Up to date", Rolling: "Rolling", Held: "Held", Halted: "Halted", Stopped: "Stopped"}
	which := ""
	if r.Selector != "" {
		which = " that match " + page.Cell(r.Selector)
	}
	if f.Managed == 0 {
		return fmt.Sprintf("%s: none of %d nodes%s is managed.", words[r.Status], f.Total, which)
	}
	parts := []string{fmt.Sprintf("%d of %d managed nodes%s up to date", f.UpToDate, f.Managed, which)}
	count := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	count(f.InTurn, "in a turn", "in a turn")
	count(f.WantReboot, "wants a reboot", "want a reboot")
	count(f.WantDrain, "wants a drain", "want a drain")
	count(f.WantApply, "wants an apply", "want an apply")
	count(f.Unknown, "has not reported since it booted", "have not reported since they booted")
	s := words[r.Status] + ": " + strings.Join(parts, ", ") + "."
	if rest := f.Total - f.Managed; rest > 0 {
		s += fmt.Sprintf(" %d not managed.", rest)
	}
	return s
}

// text says which node is the coordinator.
func (c *Coordinator) text() string {
	switch {
	case c.Error != "":
		return "Coordinator unknown: " + page.Cell(c.Error)
	case c.Live:
		return "Coordinator: " + c.Node
	}
	return "No coordinator"
}

// notes are the lines below it: the coordinator, the budget, and what stops the rollout.
func (r *Report) notes() []string {
	f, c := &r.Figures, &r.Coordinator
	who := c.text()
	switch {
	case c.Live:
		who += ", for " + page.Since(r.Time, c.Since)
	case c.Node != "" && c.Renewed != nil:
		who += "; " + c.Node + " last renewed the Lease " + page.Ago(r.Time, *c.Renewed)
	}
	budget := fmt.Sprintf("%d unavailable, %d allowed", f.Unavailable, f.Budget)
	if f.Failed > 0 {
		budget += fmt.Sprintf("; %d failed, %d allowed", f.Failed, f.MaxFailed)
	}
	if r.PoliciesError != "" {
		if budget = fmt.Sprintf("%d unavailable", f.Unavailable); f.Failed > 0 {
			budget += fmt.Sprintf("; %d failed", f.Failed)
		}
	}
	if f.SettlingUntil != nil {
		budget += "; settling until " + page.Clock(r.Time, *f.SettlingUntil)
	}
	lines := []string{who + ". " + budget + "."}
	if c.Problem != "" {
		lines = append(lines, "The coordinator has a PROBLEM: "+page.Cell(c.Problem))
	}
	if r.taken != "" {
		lines = append(lines, r.taken)
	}
	switch {
	case r.Stop == nil:
	case r.Stop.NoLease:
		lines = append(lines, "STOPPED: Lease "+c.Lease+" does not exist. No turn begins or advances. `lockkeeper init` creates it and ends the stop.")
	default:
		text := ""
		if r.Stop.Text != "" {
			text = ": " + page.Cell(r.Stop.Text)
		}
		lines = append(lines, "EMERGENCY STOP"+text+". No turn begins or advances. `lockkeeper resume --cluster` ends the stop.")
	}
	if f.Halted {
		what := "nothing is granted"
		switch halted := r.halted(); {
		case r.PoliciesError != "":
			what = "at least one policy grants nothing"
		case len(r.Policies) > 1 && len(halted) == 1:
			what = "policy " + halted[0] + " grants nothing"
		case len(r.Policies) > 1:
			what = "policies " + page.Joined(halted) + " grant nothing"
		}
		lines = append(lines, "HALTED: "+what+" until `lockkeeper retry NODE` clears "+page.Joined(r.failed())+".")
	}
	return append(lines, r.policyLines()...)
}

// alerts begin the notes that need attention.
var alerts = regexp.MustCompile(`^(The coordinator has a PROBLEM|STOPPED|EMERGENCY STOP|HALTED|Policy \S+ is INVALID)\b`)

func (r *Report) writeNotes(p *page.Page) {
	for _, line := range r.notes() {
		if alerts.MatchString(line) {
			p.Alert(line)
		} else {
			p.Line(line)
		}
	}
}

// failed names nodes that failed, at most five.
func (r *Report) failed() []string {
	var names []string
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.failedBefore() || n.Slot != nil && n.Slot.Use == v1alpha1.SlotFailed {
			if len(names) == 5 {
				return append(names, "others")
			}
			names = append(names, n.Name)
		}
	}
	if names == nil {
		names = []string{"the failed nodes"}
	}
	return names
}

// reasons explains each of the reasons, in the order of the documentation.
func reasons(p *page.Page, shown map[v1alpha1.Reason]bool) {
	first := true
	for _, d := range v1alpha1.ReasonDocs() {
		if !shown[d.Reason] {
			continue
		}
		if first {
			p.WriteByte('\n')
			first = false
		}
		p.Line(fmt.Sprintf("%s: %s. To do: %s.", d.Reason, d.Means, strings.TrimSuffix(d.Do, ".")))
	}
}
