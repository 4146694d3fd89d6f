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
}

// Effective returns all values in effect and where each comes from, in the
// table's order.
func (c *Config) Effective() []Value {
	out := make([]Value, len(keys))
	for i := range keys {
		k := &keys[i]
		out[i] = Value{Key: k.Name, Value: k.text(c), Origin: "default"}
		if o, ok := c.origins[k.Name]; ok {
			out[i].Origin = fmt.Sprintf("%s:%d", o.file, o.line)
		}
	}
	return out
}

// WriteEffective writes all values in effect as TOML, each with a comment that
// tells where it comes from. What it writes is a valid file of the same
// settings.
func (c *Config) WriteEffective(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	table := ""
	for _, v := range c.Effective() {
		name := v.Key
		if t, tail, ok := strings.Cut(v.Key, "."); ok {
			if t != table {
				// Not a row of the columns.
				fmt.Fprintf(tw, "\n[%s]\n", t)
				table = t
			}
			name = tail
		}
		fmt.Fprintf(tw, "%s = %s\t# %s\n", name, v.Value, v.Origin)
	}
	return tw.Flush()
}
