package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/cli/page"
)

// Printer prints one Report after another.
type Printer struct {
	Form
	W io.Writer
	// Size returns how many columns and rows the terminal has that W is; the text
	// is then redrawn in its place. nil: W is no terminal, and only what changed is
	// printed, a line each with its time.
	Size func() (columns, rows int)

	exit    int
	printed bool
	columns int // of the terminal when it was drawn last; 0 before
	rows    int
	nodes   map[string]line   // by name
	notes   map[string]string // what was last printed about the cluster, by kind
	reach   reach
	data    string
}

// line has what is printed again when it changes.
type line struct{ state, wants, held, turn, why string }

func lineOf(n *Node) line {
	return line{n.stateText(), page.Dash(string(n.Wants)), page.Dash(string(n.Held)), page.Dash(n.Turn), page.Cell(strings.TrimPrefix(n.blockedText()+"; "+n.Why, "; "))}
}

// text is the line of a node.
func (l *line) text(name string) string {
	return strings.TrimSpace(fmt.Sprintf("%s  %s  wants=%s held=%s turn=%s  %s", name, l.state, l.wants, l.held, l.turn, l.why))
}

// stamp begins a line about a change.
func (r *Report) stamp() string { return r.Time.UTC().Format("15:04:05Z") + "  " }

// reach records whether the API server can be reached.
type reach struct{ away bool }

// changed returns a line if that has changed, and otherwise "". away is why it cannot be reached.
func (r *reach) changed(away error) string {
	switch {
	case r.away == (away != nil):
		return ""
	case r.away:
		r.away = false
		return "API server reachable again"
	}
	r.away = true
	return "API server cannot be reached: " + page.Cell(away.Error())
}

// Exit is the exit status of the Report last printed.
func (p *Printer) Exit() int { return p.exit }

// Show prints what there is to print of r; it fits [Source.Follow].
func (p *Printer) Show(r Report, away error) error {
	switch {
	case p.isData():
		return p.showData(&r)
	case p.Size != nil:
		return p.draw(&r, away)
	}
	return p.showChanges(&r, away)
}

// showData prints a Report whenever it differs in more than its time.
func (p *Printer) showData(r *Report) error {
	out := r
	if p.Node != "" {
		n := r.Find(p.Node)
		if n == nil {
			return NotFound(p.Node)
		}
		out, p.exit = r.Only(n), n.Status.ExitStatus()
	} else {
		p.exit = r.Status.ExitStatus()
	}
	same := *out
	same.Time, same.Coordinator.Renewed, same.End = time.Time{}, nil, same.End.untimed()
	same.Policies = slices.Clone(same.Policies)
	for i := range same.Policies {
		same.Policies[i].End = same.Policies[i].End.untimed()
	}
	key, err := json.Marshal(&same)
	if err != nil {
		return err
	}
	if string(key) == p.data {
		return nil
	}
	p.data = string(key)
	return p.writeData(p.W, out, "")
}

// draw draws the text over the one before it: each line is written over what was
// there and only the rest of the line is cleared, so that nothing flickers. A text
// that is longer than the terminal is cut, and says so: to scroll would leave parts
// of older texts above it.
func (p *Printer) draw(r *Report, away error) error {
	wide, rows := p.Size()
	p.Width = wide
	var text strings.Builder
	exit, err := p.Form.Print(&text, r)
	if err != nil {
		return err
	}
	p.exit = exit
	if away != nil {
		out := page.New(wide)
		out.Line("The API server cannot be reached; showing the last state: " + page.Cell(away.Error()))
		text.WriteString("\n" + out.String())
	}
	var b strings.Builder
	b.WriteString(cursorHome)
	if wide != p.columns || rows != p.rows {
		b.WriteString(clearBelow) // what is there was laid out for another size
		p.columns, p.rows = wide, rows
	}
	for _, line := range fitRows(strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), rows-1) {
		b.WriteString(line)
		if page.Columns(line) < wide {
			b.WriteString(clearLine) // in a full line it would take the last character
		}
		b.WriteString("\n")
	}
	b.WriteString(clearBelow)
	_, err = io.WriteString(p.W, b.String())
	return err
}

// Control sequences of ECMA-48 that every terminal knows.
const (
	cursorHome = "\x1b[H"
	clearLine  = "\x1b[K" // from the cursor on
	clearBelow = "\x1b[J" // from the cursor on
)

// fitRows returns at most n of the lines. If it leaves lines out, the last line
// says how many.
func fitRows(lines []string, n int) []string {
	if n < 1 || len(lines) <= n {
		return lines
	}
	return append(lines[:n-1:n-1], fmt.Sprintf("… %d more lines", len(lines)-n+1))
}

// showChanges prints all of the first Report and then a line for each change.
func (p *Printer) showChanges(r *Report, away error) error {
	var b strings.Builder
	if !p.printed {
		if _, err := p.Form.Print(&b, r); err != nil {
			return err
		}
	}
	p.exit = r.Status.ExitStatus()
	say := func(text string) {
		if p.printed && text != "" {
			b.WriteString(r.stamp() + page.Visible(text) + "\n")
		}
	}
	say(p.reach.changed(away))
	now := make(map[string]line, len(r.Nodes))
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if p.Node != "" && n.Name != p.Node {
			continue
		}
		l := lineOf(n)
		now[n.Name] = l
		if p.Node != "" {
			p.exit = n.Status.ExitStatus()
		}
		old, had := p.nodes[n.Name]
		if had && old == l {
			continue
		}
		if had && old.state != l.state {
			l.state = old.state + " -> " + l.state
		}
		say(l.text(n.Name))
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		if _, still := now[name]; !still {
			say(name + "  deleted")
		}
	}
	p.nodes = now
	p.wholeChanges(r, say)
	p.printed = true
	_, err := io.WriteString(p.W, b.String())
	return err
}

// wholeChanges prints what has changed about the cluster as a whole.
func (p *Printer) wholeChanges(r *Report, say func(string)) {
	c := &r.Coordinator
	stop := "stop ended"
	if r.Stop != nil {
		stop = "stopped: " + page.Cell(r.Stop.Text)
		if r.Stop.NoLease {
			stop = "stopped: Lease " + c.Lease + " does not exist"
		}
	}
	parts := map[string]string{"leads": c.text(), "stop": stop}
	if p.Node == "" {
		parts["summary"] = r.Summary
	}
	for _, kind := range []string{"leads", "stop", "summary"} {
		text, ok := parts[kind]
		if !ok || p.notes[kind] == text {
			continue
		}
		if kind == "summary" {
			text += r.End.sentence(r.Time)
		}
		say(text)
	}
	p.notes = parts
}
