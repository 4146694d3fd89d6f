package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/node/config"
)

// configuration returns a table of keys for each table of the host's file, and all defaults as a
// file.
func configuration() map[string]string {
	var b strings.Builder
	last := "-"
	for _, k := range config.Keys() {
		if k.Table != last {
			last = k.Table
			heading := "Top level"
			if last != "" {
				heading = "`" + k.Title() + "`"
			}
			fmt.Fprintf(&b, "\n### %s\n\n", heading)
			if k.About != "" {
				b.WriteString(k.About + "\n\n")
			}
			b.WriteString("| key | type | default | allowed | reload | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
		}
		reload, def := "no", "required"
		if k.Reload {
			reload = "yes"
		}
		if k.Default != "" {
			def = "`" + k.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", k.Last, cell(k.Type), cell(def), cell(k.Bounds), reload, cell(k.Means))
	}
	keys := b.String()
	b.Reset()
	b.WriteString("```toml\n")
	title := ""
	for _, v := range config.Default().Effective() {
		if t := v.Title(); t != title {
			title = t
			fmt.Fprintf(&b, "\n%s\n", t)
		}
		fmt.Fprintf(&b, "%s = %s\n", v.Last, v.Value)
	}
	b.WriteString("```\n")
	return map[string]string{"keys": keys, "defaults": b.String()}
}

// cell keeps text within one cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
