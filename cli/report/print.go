package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"lockkeeper.dev/lockkeeper/cli/page"
)

// Form says how Reports are printed.
type Form struct {
	JSON bool
	All  bool   // text: every node
	Node string // one node in detail; "" is the cluster
	// Width is the terminal's, in columns; 0 is no terminal. Text is fitted to it.
	Width int
}

// Print prints one Report and returns its exit status for --exit-code. The error is about the
// node asked for, or w.
func (f Form) Print(w io.Writer, r *Report) (exit int, err error) {
	status := r.Status
	if f.Node != "" {
		n := r.Find(f.Node)
		if n == nil {
			return ExitError, NotFound(f.Node)
		}
		status = n.Status
		if f.JSON {
			return status.ExitStatus(), writeJSON(w, r.Only(n), "  ")
		}
		return status.ExitStatus(), r.WriteNode(w, n, f.Width)
	}
	if f.JSON {
		return status.ExitStatus(), writeJSON(w, r, "  ")
	}
	return status.ExitStatus(), r.writeText(w, f)
}

// writeJSON writes v as JSON. Characters that are not printable are escaped: JSON
// may be read on a terminal too.
func writeJSON(w io.Writer, v any, indent string) error {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range text.String() {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

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
	away    bool
	json    string
}

// line has what is printed again when it changes.
type line struct{ state, wants, held, turn, why string }

func lineOf(n *Node) line {
	return line{n.stateText(), page.Dash(string(n.Wants)), page.Dash(string(n.Held)), page.Dash(n.Turn), page.Cell(strings.TrimPrefix(n.blockedText()+"; "+n.Why, "; "))}
}

// Exit is the exit status of the Report last printed.
func (p *Printer) Exit() int { return p.exit }

// Show prints what there is to print of r; it fits [Source.Follow].
func (p *Printer) Show(r Report, away error) error {
	switch {
	case p.JSON:
		return p.showJSON(&r)
	case p.Size != nil:
		return p.draw(&r, away)
	}
	return p.showChanges(&r, away)
}

// showJSON prints a Report a line whenever it differs in more than its time.
func (p *Printer) showJSON(r *Report) error {
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
	if string(key) == p.json {
		return nil
	}
	p.json = string(key)
	return writeJSON(p.W, out, "")
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
	stamp := r.Time.UTC().Format("15:04:05Z") + "  "
	say := func(format string, args ...any) {
		if p.printed {
			b.WriteString(stamp + page.Visible(fmt.Sprintf(format, args...)) + "\n")
		}
	}
	if p.away != (away != nil) {
		p.away = away != nil
		if away != nil {
			say("API server cannot be reached: %s", page.Cell(away.Error()))
		} else {
			say("API server reachable again")
		}
	}
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
		state := l.state
		if had && old.state != l.state {
			state = old.state + " -> " + l.state
		}
		say("%s  %s  wants=%s held=%s turn=%s  %s", n.Name, state, l.wants, l.held, l.turn, l.why)
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		if _, still := now[name]; !still {
			say("%s  deleted", name)
		}
	}
	p.nodes = now
	p.wholeChanges(r, say)
	p.printed = true
	_, err := io.WriteString(p.W, b.String())
	return err
}

// wholeChanges prints what has changed about the cluster as a whole.
func (p *Printer) wholeChanges(r *Report, say func(string, ...any)) {
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
		say("%s", text)
	}
	p.notes = parts
}

// NotFound is the error about a node that does not exist.
func NotFound(node string) error { return fmt.Errorf("node %q not found", node) }
