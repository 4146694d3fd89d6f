package config

import (
	"fmt"
	"io"
	"text/tabwriter"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Value is the value of a key in effect.
type Value struct {
	*Key
	Value  string // as TOML
	Origin string // "FILE:LINE", or "default"
	// Table counts the tables of a list, from 1. It is 0 for a key outside of one.
	Table int
}

// Effective returns all values in effect and where each comes from, in the order of
// [Keys]. For a list of tables it returns the keys of each table.
func (c *Config) Effective() []Value {
	var all []Value
	add := func(list bool, table int, w *v1alpha1.Window, origins map[string]origin) {
		for i := range keys {
			if k := &keys[i]; k.List == list {
				all = append(all, Value{k, k.text(target{c, w}), originOf(origins, k.Name), table})
			}
		}
	}
	add(false, 0, nil, c.origins)
	for i := range c.windows {
		add(true, i+1, &c.windows[i].Window, c.windows[i].origins)
	}
	return all
}

// originOf returns where the value of a key comes from.
func originOf(origins map[string]origin, key string) string {
	if o, ok := origins[key]; ok {
		return o.String()
	}
	return "default"
}

// WriteEffective writes all values in effect as TOML, each with a comment that says where
// it comes from. The output is a valid file with the same settings.
func (c *Config) WriteEffective(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	title, table := "", 0
	for _, v := range c.Effective() {
		if t := v.Title(); t != title || v.Table != table {
			fmt.Fprintf(tw, "\n%s\n", t) // no tab, so it does not widen the columns
			title, table = t, v.Table
		}
		fmt.Fprintf(tw, "%s = %s\t# %s\n", v.Last, v.Value, v.Origin)
	}
	if len(c.windows) == 0 {
		fmt.Fprintf(tw, "\n# no [[window]]: at all times\t# %s\n", originOf(c.origins, windowTable))
	}
	return tw.Flush()
}
