package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Error is one mistake in the configuration.
type Error struct {
	File string
	Line int    // from 1; 0 if the mistake is about the whole file
	Key  string // "" if the mistake is not about a key
	Got  string // what the file has
	// Expected is what the file should have instead.
	Expected string
	// Err is set if the file could not be read.
	Err error
}

// Error returns one line: "FILE:LINE: KEY: GOT, expected EXPECTED".
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
// The caller says what happens now: the service does not start, and a reload keeps the
// old settings.
type Errors []*Error

// Error returns all mistakes on one line, separated by "; ".
func (es Errors) Error() string {
	texts := make([]string, len(es))
	for i, e := range es {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the mistakes for errors.Is and errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Warning is not a mistake, but probably not what the author of the file meant.
type Warning struct {
	File string
	Text string
}

// String returns one line.
func (w Warning) String() string { return w.File + ": " + w.Text }

// show returns a wrong value as an error repeats it.
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

// clip shortens input that an error repeats.
func clip(s string) string { return v1alpha1.OneLine(s, 160) }

func joinAnd(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}
