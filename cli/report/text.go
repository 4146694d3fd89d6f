package report

import (
	"fmt"
	"io"
	"slices"
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

// TextOptions say how much text.
type TextOptions struct {
	All   bool // every node, not only those that need a look
	Width int  // columns of the terminal; 0 for none: nothing is cut or broken
}

// WriteText writes the report: a summary, then the nodes that are not idle and
// content, then what the reasons among them mean. Two reports of the same facts
// at the same time are the same text.
func (r *Report) WriteText(w io.Writer, o TextOptions) error {
	p := page.New(o.Width)
	p.Line(r.Summary)
	for _, line := range r.notes() {
		p.Line(line)
	}
	if progress := r.progress(); len(progress) > 0 {
		p.Table("", nil, progress)
	}
	if line := r.Versions.line(); line != "" {
		p.Line(line)
	}
	rows, more := r.rows(o.All)
	if len(rows) > 0 {
		p.WriteByte('\n')
		r.table(p, rows)
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

// rows are the nodes to show, and how many are left out that would need a look.
func (r *Report) rows(all bool) (rows []*Node, more int) {
	for i := range r.Nodes {
		n := &r.Nodes[i]
		switch {
		case all:
			rows = append(rows, n)
		case n.rank >= rankContent:
		case len(rows) == maxRows:
			more++
		default:
			rows = append(rows, n)
		}
	}
	return rows, more
}

// table writes the nodes. A narrow terminal shows no turn, and of SINCE only how
// long; `lockkeeper status NODE` has both.
func (r *Report) table(p *page.Page, nodes []*Node) {
	short := p.Width > 0 && p.Width < wideTable
	header := []string{"NODE", "STATE", "WANTS", "HELD", "SINCE", "TURN", "WHY"}
	if short {
		header = slices.Delete(header, 5, 6)
	}
	rows := make([][]string, 0, len(nodes))
	for _, n := range nodes {
		row := []string{n.Name, n.stateWord(), page.Dash(string(n.Wants)), page.Dash(string(n.Held)),
			page.Since(r.Time, n.StageSince), page.Dash(n.Turn), page.Clip(page.Visible(n.whyAll(r.Time)), maxWhy)}
		if short {
			row[4], _, _ = strings.Cut(row[4], " ")
			row = slices.Delete(row, 5, 6)
		}
		rows = append(rows, row)
	}
	p.Table("", header, rows)
}

func (n *Node) stateWord() string {
	if n.State == v1alpha1.StateAbsent && !n.Managed {
		return "not managed"
	}
	return n.State.String()
}

// whyAll is Why with what else there is to know of the node in one line.
func (n *Node) whyAll(now time.Time) string {
	var parts []string
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(n.blockedWords())
	add(n.Why)
	add(n.slotWords(now))
	if n.Paused != nil && n.State != v1alpha1.StateAbsent && n.Held != v1alpha1.ReasonPaused {
		add("paused" + reasonOf(n.Paused))
	}
	if n.Detached != nil && n.Held != v1alpha1.ReasonDetached {
		add("detached" + reasonOf(n.Detached))
	}
	if n.failedBefore() && n.Held != v1alpha1.ReasonFailed {
		add(fmt.Sprintf("its last turn failed (%s) %s", n.Last.Reason, page.Ago(now, n.Last.End)))
	}
	if n.failedBefore() && n.Host != nil {
		add(n.Host.ApplyFailed)
	}
	if len(n.Problems) > 0 {
		add("cannot be read: " + n.Problems[0])
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
	if f.Managed == 0 {
		return fmt.Sprintf("%s: no node is managed; there are %d.", words[r.Status], f.Total)
	}
	parts := []string{fmt.Sprintf("%d of %d managed nodes up to date", f.UpToDate, f.Managed)}
	count := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	count(f.InTurn, "in its turn", "in their turn")
	count(f.WantReboot, "wants a reboot", "want a reboot")
	count(f.WantDrain, "wants a drain", "want a drain")
	count(f.WantApply, "wants an apply", "want an apply")
	count(f.Unknown, "not heard of in its present boot", "not heard of in their present boot")
	s := words[r.Status] + ": " + strings.Join(parts, ", ") + "."
	if rest := f.Total - f.Managed; rest > 0 {
		s += fmt.Sprintf(" %d not managed.", rest)
	}
	return s
}

// notes are the lines below it: who coordinates, the budget, and what stops
// everything.
func (r *Report) notes() []string {
	f, c := &r.Figures, &r.Coordinator
	who := "Nobody coordinates"
	switch {
	case c.Error != "":
		who = "Who coordinates is not known: " + page.Cell(c.Error)
	case c.Live:
		who = c.Node + " coordinates, for " + page.Since(r.Time, c.Since)
	case c.Node != "" && c.Renewed != nil:
		who += "; " + c.Node + " did, and was last heard of " + page.Ago(r.Time, *c.Renewed)
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
		budget += "; settles until " + page.Clock(r.Time, *f.SettlingUntil)
	}
	lines := []string{who + ". " + budget + "."}
	if taken := r.taken(); taken != "" {
		lines = append(lines, taken)
	}
	switch {
	case r.Stop == nil:
	case r.Stop.NoLease:
		lines = append(lines, "STOPPED: there is no Lease "+c.Lease+", which is a stop. Apply the manifests to go on.")
	default:
		text := ""
		if r.Stop.Text != "" {
			text = ": " + page.Cell(r.Stop.Text)
		}
		lines = append(lines, "EMERGENCY STOP"+text+". Nothing is promoted and no host commits; `lockkeeper go` ends it.")
	}
	if f.Halted {
		what := "nothing is granted"
		if r.PoliciesError != "" {
			what = "nothing is granted by one policy or more"
		}
		if len(r.Policies) > 1 {
			names := r.halted()
			what = "nothing is granted by policy "
			if len(names) > 1 {
				what = "nothing is granted by policies "
			}
			what += page.Joined(names)
		}
		lines = append(lines, "HALTED: "+what+" until `lockkeeper retry NODE` clears "+page.Joined(r.failed())+".")
	}
	return append(lines, r.policyLines()...)
}

// failed names nodes that failed, at most five.
func (r *Report) failed() []string {
	var names []string
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.failedBefore() || n.State.InTurn() && (n.Held == v1alpha1.ReasonFailed || n.Held == v1alpha1.ReasonOverdue ||
			n.Grant != nil && n.Grant.Result == v1alpha1.ResultFailed) {
			if len(names) == 5 {
				return append(names, "others")
			}
			names = append(names, n.Name)
		}
	}
	if names == nil {
		names = []string{"those that failed"}
	}
	return names
}

// reasons explains each of the reasons once, in the order of the documentation.
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
