package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/cli/page"
)

// Format is how a Report is printed, as in kubectl's -o.
type Format string

// The formats. "" is Text.
const (
	Text  Format = "text"  // for people: a summary, tables, explanations
	Table Format = "table" // only a table, one line for each node or turn
	Wide  Format = "wide"  // the table with more columns
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name" // node/NAME, a line each
)

// Form says how Reports are printed.
type Form struct {
	Output    Format
	NoHeaders bool   // Table, Wide: without the header
	All       bool   // every node; otherwise those that are not idle or need something
	Node      string // only this node, in detail; "" is the cluster
	// Width is the terminal's, in columns; 0 is no terminal. Text and tables are fitted to it.
	Width int
	Color bool // what needs attention is red
}

// page returns an empty page of this form.
func (f Form) page() *page.Page {
	p := page.New(f.Width)
	p.Color = f.Color
	return p
}

// isData reports whether the whole Report is printed, for a program.
func (f Form) isData() bool { return f.Output == JSON || f.Output == YAML }

// header returns a table's header, or nil if the user wants none.
func (f Form) header(columns ...string) []string {
	if f.NoHeaders {
		return nil
	}
	return columns
}

// Print prints one Report and returns its exit status for --exit-code. The error is about the
// node asked for, or w.
func (f Form) Print(w io.Writer, r *Report) (exit int, err error) {
	status, whole := r.Status, r
	if f.Node != "" {
		n := r.Find(f.Node)
		if n == nil {
			return ExitError, NotFound(f.Node)
		}
		status, r, f.All = n.Status, r.Only(n), true
	}
	switch {
	case f.isData():
		err = f.writeData(w, r, "  ")
	case f.Output == Name:
		rows, _ := r.rows(true, f.All)
		for _, n := range rows {
			if _, err = fmt.Fprintf(w, "node/%s\n", page.Visible(n.Name)); err != nil {
				break
			}
		}
	case f.Output == Table, f.Output == Wide:
		err = r.writeTable(w, f)
	case f.Node != "":
		err = whole.writeNode(w, &r.Nodes[0], f)
	default:
		err = r.writeText(w, f)
	}
	return status.ExitStatus(), err
}

// writeData writes v as JSON or YAML. Characters that are not printable are escaped, because data
// may be read on a terminal too. In YAML, which has no such escape in all of its forms of a string,
// the text then has a backslash, as in "\u202e". indent is that of JSON; "" means one line for each v.
func (f Form) writeData(w io.Writer, v any, indent string) error {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	escape := `\u%04x`
	if f.Output == YAML {
		escape = `\\u%04x`
	}
	var b strings.Builder
	for _, r := range text.String() {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, escape, unit)
		}
	}
	out := []byte(b.String())
	if f.Output == YAML {
		var err error
		if out, err = yaml.JSONToYAML(out); err != nil {
			return err
		}
		if indent == "" {
			out = append([]byte("---\n"), out...)
		}
	}
	_, err := w.Write(out)
	return err
}

// NotFound is the error about a node that does not exist.
func NotFound(node string) error { return fmt.Errorf("node %q not found", node) }

// Exit statuses of every lockkeeper command. [ExitStatuses] says what each means;
// the documents are rendered from it.
const (
	ExitOK      = 0
	ExitError   = 1
	ExitRolling = 2
	ExitHeld    = 3
	ExitTimeout = 4
	ExitUsage   = 64 // EX_USAGE of sysexits.h
	ExitConfig  = 78 // EX_CONFIG
)

// ExitStatus is one exit status and what it means, as a sentence.
type ExitStatus struct {
	Status int
	Means  string
}

// ExitStatuses returns all exit statuses of lockkeeper, in ascending order.
func ExitStatuses() []ExitStatus {
	return []ExitStatus{
		{ExitOK, "Success. `status` and `plan` made their report, whatever it says. `wait` reached its goal."},
		{ExitError, "An error. With `status --exit-code` also: the API server cannot be reached, so the report is about this host alone; or lockkeeper does not run on this host, and the report is its last one."},
		{ExitRolling, "`status --exit-code`: the rollout is under way."},
		{ExitHeld, "`status --exit-code`: the rollout is held, halted or stopped. `plan --exit-code`: a node would be held. `simulate --exit-code`: the rollout would stop."},
		{ExitTimeout, "`wait`, `leave` and `init`: the timeout expired first."},
		{ExitUsage, "The command line is wrong. Nothing was done."},
		{ExitConfig, "This host's configuration is invalid. Nothing was started. systemd does not start the service again."},
	}
}

// ExitStatus returns the exit status of `lockkeeper status --exit-code` for s.
func (s Status) ExitStatus() int {
	switch s {
	case UpToDate:
		return ExitOK
	case Rolling:
		return ExitRolling
	}
	return ExitHeld
}
