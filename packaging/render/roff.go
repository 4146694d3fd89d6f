package render

import (
	"regexp"
	"strings"
)

// Date is the date in the manual pages: the day on which their text last changed. It is
// set by hand, so that the same commit gives the same page.
const Date = "2026-11-23"

// Roff writes parts of a manual page, in man(7)'s macros. The zero value is an
// empty part.
type Roff struct{ b strings.Builder }

// Subsection begins a subsection; an empty title is not allowed.
func (r *Roff) Subsection(title string) { r.b.WriteString(".SS " + plain(title) + "\n") }

// Text adds paragraphs, with an empty line between each two. `x` becomes bold.
func (r *Roff) Text(text string) {
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			r.b.WriteString(".PP\n")
		}
		r.lines(p)
	}
}

// Item adds a term and what it means; both may hold `x`.
func (r *Roff) Item(term, means string) {
	r.b.WriteString(".TP\n" + bold(term) + "\n")
	for i, p := range strings.Split(strings.TrimSpace(means), "\n\n") {
		if i > 0 {
			r.b.WriteString(".IP\n")
		}
		r.lines(p)
	}
}

// String returns the page.
func (r *Roff) String() string { return r.b.String() }

// lines adds text a sentence a line, as roff likes it.
func (r *Roff) lines(p string) {
	p = unlinked(strings.Join(strings.Fields(p), " "))
	for _, sentence := range strings.SplitAfter(sentenceEnd.ReplaceAllString(p, "$1\n$2"), "\n") {
		r.b.WriteString(guard(bold(strings.TrimSuffix(sentence, "\n"))) + "\n")
	}
}

var (
	sentenceEnd = regexp.MustCompile(`([a-z0-9)` + "`" + `][.;:]) ([A-Z` + "`" + `])`)
	quoted      = regexp.MustCompile("`([^`]*)`")
)

// bold makes `x` bold.
func bold(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range quoted.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(plain(text[at:m[0]]) + "\\fB" + code(text[m[2]:m[3]]) + "\\fR")
		at = m[1]
	}
	b.WriteString(plain(text[at:]))
	return b.String()
}

var (
	plainer = strings.NewReplacer(`\`, `\e`, "…", `\&...`, "×", `\(mu`, "“", `\(lq`, "”", `\(rq`)
	coder   = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", `\&...`, "'", `\(aq`, "×", `\(mu`)
)

// plain is text that means itself; code is text that can be typed in, with ASCII
// dashes.
func plain(text string) string { return plainer.Replace(text) }

func code(text string) string { return coder.Replace(text) }

// guard keeps a line from being taken for a request.
func guard(line string) string {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		return `\&` + line
	}
	return line
}
