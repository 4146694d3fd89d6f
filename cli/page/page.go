// Package page lays out text for a terminal: it breaks lines, aligns columns, escapes what a
// terminal must not receive, and writes times and durations for people.
//
// It must not know what the text is about.
package page

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

const (
	// maxText bounds a line of text, in bytes as it was read. Texts that others wrote may be as
	// long as a mebibyte.
	maxText = 8 << 10
	// maxMarks is how many combining marks in a row are printed. More of them would write over
	// the lines above and below.
	maxMarks = 4
	// columnGap is between two columns, in terminal columns.
	columnGap = 2
	// minLast is the minimum width of the last column. If less is left, it is printed below its
	// row.
	minLast = 30
	// minWidth is the width that text is laid out for on a narrower terminal.
	minWidth = 20
	maxCell  = 120 // columns of a text that someone else wrote
)

// Visible returns s as one line that is safe to write to a terminal: characters that are not
// printable become escapes such as \x1b or \u202e, and a longer text is cut after 8 KiB.
func Visible(s string) string {
	cut := len(s) > maxText
	if cut {
		s = s[:maxText]
	}
	var b strings.Builder
	marks := 0
	for i, r := range s {
		mark := unicode.In(r, unicode.Mn, unicode.Me)
		if marks++; !mark {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !unicode.IsPrint(r), marks > maxMarks, mark && i == 0:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	if cut {
		b.WriteString("…")
	}
	return b.String()
}

// Cell returns a text that someone else wrote, visible and cut to 120 columns.
func Cell(s string) string { return Clip(Visible(s), maxCell) }

// Columns returns how many columns of a terminal a visible text takes. Colors take none.
func Columns(s string) int {
	n := 0
	for _, r := range colors.Replace(s) {
		n += runeColumns(r)
	}
	return n
}

// Control sequences of ECMA-48: what is between them is red.
const (
	red   = "\x1b[31m"
	reset = "\x1b[0m"
)

// colors removes the colors from a visible text, which has no other control sequences.
var colors = strings.NewReplacer(red, "", reset, "")

func runeColumns(r rune) int {
	switch {
	case r < utf8.RuneSelf:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Clip cuts a visible text to at most n columns; a text that is cut ends in "…".
func Clip(s string, n int) string {
	if Columns(s) <= n {
		return s
	}
	head := ""
	if n > 1 {
		head, _ = split(s, n-1)
	}
	return head + "…"
}

// clipMiddle cuts the middle out of a name: names differ at their beginning and end.
func clipMiddle(s string, n int) string {
	if Columns(s) <= n || n < 5 {
		return Clip(s, n)
	}
	head, rest := split(s, n/2)
	for Columns(rest) > n-1-Columns(head) {
		_, rest = split(rest, 1)
	}
	return head + "…" + rest
}

// split splits a visible text after the runes that fit into n columns, and after
// at least one.
func split(s string, n int) (head, rest string) {
	taken := 0
	for i, r := range s {
		if taken += runeColumns(r); taken > n && i > 0 {
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// wrap breaks a visible text into lines of at most n columns, between words if possible.
func wrap(s string, n int) []string {
	var lines []string
	for Columns(s) > n {
		head, rest := split(s, n)
		if i := strings.LastIndexByte(head, ' '); !strings.HasPrefix(rest, " ") && i > 0 {
			head, rest = s[:i], s[i:]
		}
		lines, s = append(lines, strings.TrimRight(head, " ")), strings.TrimLeft(rest, " ")
	}
	return append(lines, s)
}

// Page is text that is laid out for a terminal of Width columns. With a Width of 0 nothing is
// cut or wrapped.
type Page struct {
	strings.Builder
	Width int
	// Color permits colors.
	Color bool
	// Attention has the texts of table cells that are red, except in the last column and in the
	// header.
	Attention map[string]bool
}

// New returns an empty page for a terminal with this many columns; 0 means no terminal.
func New(columns int) *Page {
	if columns > 0 {
		columns = max(columns, minWidth)
	}
	return &Page{Width: columns}
}

// Line writes one line. If it is wrapped, the following lines are indented.
func (p *Page) Line(text string) {
	text = Visible(text)
	if p.Width == 0 || Columns(text) <= p.Width {
		p.WriteString(text + "\n")
		return
	}
	head := wrap(text, p.Width)[0]
	p.WriteString(head + "\n")
	p.Block("  ", strings.TrimLeft(text[len(head):], " "))
}

// Alert writes a line that needs attention, in red.
func (p *Page) Alert(text string) {
	plain := Page{Width: p.Width}
	plain.Line(text)
	for line := range strings.Lines(plain.String()) {
		p.WriteString(p.paint(strings.TrimSuffix(line, "\n")) + "\n")
	}
}

func (p *Page) paint(text string) string {
	if !p.Color {
		return text
	}
	return red + text + reset
}

// Block writes a visible text in lines that begin with the indent. The page has a width.
func (p *Page) Block(indent, text string) {
	for _, line := range wrap(text, p.Width-len(indent)) {
		p.WriteString(indent + line + "\n")
	}
}

// Table writes rows in aligned columns, below a header if it is not nil. All rows have the same
// number of cells. On a terminal the last column is wrapped, next to the others or, if there is
// little room, below them. The first column is cut if the others do not fit.
func (p *Page) Table(indent string, header []string, rows [][]string) {
	if header != nil {
		rows = append([][]string{header}, rows...)
	}
	widths := make([]int, len(rows[0])-1)
	last := 0
	for _, row := range rows {
		for i := range row {
			row[i] = Visible(row[i])
			if i < len(widths) {
				widths[i] = max(widths[i], Columns(row[i]))
			}
		}
		last = max(last, Columns(row[len(widths)]))
	}
	fixed := len(indent)
	for _, w := range widths {
		fixed += w + columnGap
	}
	below := false
	if p.Width > 0 {
		if over := fixed - columnGap - p.Width; over > 0 && len(widths) > 0 {
			cut := min(over, max(0, widths[0]-1))
			widths[0], fixed = widths[0]-cut, fixed-cut
		}
		below = p.Width-fixed < min(minLast, last)
	}
	for n, row := range rows {
		head := indent
		for i, w := range widths {
			text := clipMiddle(row[i], w)
			gap := strings.Repeat(" ", w-Columns(text)+columnGap)
			if p.Attention[row[i]] && (n > 0 || header == nil) && !below {
				text = p.paint(text)
			}
			head += text + gap
		}
		text := row[len(widths)]
		switch {
		case p.Width == 0:
			p.WriteString(strings.TrimRight(head+text, " ") + "\n")
		case below:
			p.WriteString(Clip(strings.TrimRight(head, " "), p.Width) + "\n")
			if text != "" && (n > 0 || header == nil) {
				p.Block(indent+"    ", text)
			}
		default:
			for i, line := range wrap(text, p.Width-fixed) {
				if i > 0 {
					head = strings.Repeat(" ", fixed)
				}
				p.WriteString(strings.TrimRight(head+line, " ") + "\n")
			}
		}
	}
}

// A Label adds one labelled line.
type Label func(label, format string, args ...any)

// Labels returns a function that collects labelled lines, and one that writes them as a table.
func (p *Page) Labels() (add Label, write func()) {
	var rows [][]string
	add = func(label, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			rows = append(rows, []string{label, text})
		}
	}
	return add, func() {
		if len(rows) > 0 {
			p.Table("  ", nil, rows)
		}
	}
}

// Named joins names, at most this many, and says how many more there are.
func Named(names []string, most int) string {
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Joined joins words as in a sentence.
func Joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// Plural is a count of things.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Dash is s, or "-" if it is empty.
func Dash(s string) string { return cmp.Or(s, "-") }
