package config

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Value is a key's value in effect.
type Value struct {
	Key    string
	Value  string // as TOML
	Origin string // "FILE:LINE", or "default"
	// Table, of a key that stands in each table of a list, is in which one it
	// stands, from 1; else 0.
	Table int
}

// Effective returns all values in effect and where each comes from, in the
// table's order. Of a list of tables it returns the keys of each; of an empty
// one, nothing.
func (c *Config) Effective() []Value {
	var out []Value
	windows := false
	for i := range keys {
		k := &keys[i]
		if !windows && strings.HasPrefix(k.Name, afterWindows) {
			windows = true
			out = append(out, c.effectiveWindows()...)
		}
		out = append(out, Value{Key: k.Name, Value: k.text(c), Origin: whence(c.origins, k.Name)})
	}
	return out
}

func (c *Config) effectiveWindows() []Value {
	var out []Value
	for i, w := range c.Windows {
		for j, text := range windowTexts(w) {
			k := &windowKeys[j]
			out = append(out, Value{Key: k.Name, Value: text, Origin: whence(c.windowOrigins[i], k.Name), Table: i + 1})
		}
	}
	return out
}

// whence is where a key's value comes from.
func whence(origins map[string]origin, key string) string {
	if o, ok := origins[key]; ok {
		return fmt.Sprintf("%s:%d", o.file, o.line)
	}
	return "default"
}

// noWindows is said where there is nothing to show of them.
const noWindows = "# no [[window]]: at all times"

// WriteEffective writes all values in effect as TOML, each with a comment that
// tells where it comes from. What it writes is a valid file of the same
// settings.
func (c *Config) WriteEffective(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := ""
	for _, v := range c.Effective() {
		name, h := heading(v)
		if h != head {
			if len(c.Windows) == 0 && strings.HasPrefix(v.Key, afterWindows) {
				fmt.Fprintf(tw, "\n%s\t# %s\n", noWindows, whence(c.origins, windowTable))
			}
			// Not a row of the columns.
			fmt.Fprintf(tw, "\n%s\n", h[strings.IndexByte(h, '['):])
			head = h
		}
		fmt.Fprintf(tw, "%s = %s\t# %s\n", name, v.Value, v.Origin)
	}
	return tw.Flush()
}

// heading returns a value's name in its table, and how the table begins; before
// that its number, if it is one of a list. "" is the top level.
func heading(v Value) (name, head string) {
	table, name, ok := strings.Cut(v.Key, ".")
	switch {
	case !ok:
		return v.Key, ""
	case v.Table > 0:
		return name, fmt.Sprintf("%d[[%s]]", v.Table, table)
	}
	return name, "[" + table + "]"
}
