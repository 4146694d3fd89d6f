package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Error is one mistake in the configuration.
type Error struct {
	File string
	Line int    // from 1; 0 when it is about the file as a whole
	Key  string // "" when it is about no key
	Got  string // what stands there
	// Expected is what should.
	Expected string
	// Err is why the file could not be read, where that is the mistake.
	Err error
}

// Error is one line: "FILE:LINE: KEY: GOT, expected EXPECTED".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		b.WriteString(":" + strconv.Itoa(e.Line))
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(clip(e.Key) + ": ")
	}
	switch {
	case e.Err != nil:
		b.WriteString(clip(e.Err.Error()))
	case e.Got == "":
		b.WriteString("expected " + e.Expected)
	default:
		b.WriteString(e.Got + ", expected " + e.Expected)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errors are all mistakes found, in the order of the files and their lines.
// Whoever gets them says what happens now: a start does not, a reload keeps
// what is in effect.
type Errors []*Error

// Error is all mistakes on one line, divided by "; ".
func (es Errors) Error() string {
	texts := make([]string, len(es))
	for i, e := range es {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap lets errors.Is and errors.As look into each.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Warning is something that is no mistake but probably not what was meant.
type Warning struct {
	File string
	Text string
}

// String is one line.
func (w Warning) String() string { return w.File + ": " + w.Text }

// maxShown bounds how much of a wrong value or key is repeated, in bytes.
const maxShown = 160

// show is a wrong value as an error repeats it.
func show(raw any) string {
	switch v := raw.(type) {
	case string:
		return strconv.Quote(clip(v))
	case time.Time:
		return "a time without quotes"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "a list of tables"
	case []any:
		return clip(fmt.Sprintf("the list %v", v))
	}
	return clip(fmt.Sprint(raw))
}

func clip(s string) string {
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

func joinAnd(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}
