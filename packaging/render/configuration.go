package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/node/config"
)

const configurationIntro = `This page lists every setting of a host's file and says how the file is read.

The host's file, ` + "`" + config.DefaultFile + "`" + `, says what a host decides about
itself. Policies say what the cluster decides. The file is optional: without it, all settings have the defaults below.

## Which files are read

1. The file.
2. Drop-ins: ` + "`*.toml`" + ` in ` + "`config.d`" + ` below ` + "`/usr/lib/lockkeeper`, `/etc/lockkeeper` and `/run/lockkeeper`" + `.
   They are read in the order of their names, whichever directory they are in. If two have the
   same name, lockkeeper reads the one in ` + "`/run`" + ` rather than the one in ` + "`/etc`" + `, and the one in
   ` + "`/etc`" + ` rather than the one in ` + "`/usr/lib`" + `. A link to ` + "`/dev/null`" + ` masks a drop-in.

Later values replace earlier ones key by key. A list replaces the whole earlier list. A file that
` + "`--config`" + ` names must exist. Unless it is the default file, only the drop-ins in the directory
` + "`config.d`" + ` next to it are read.

## Mistakes

Unknown keys, wrong types, values out of bounds and unreadable files are mistakes. lockkeeper
reports all of them at once, each with its file, line and key, the value, and what it expected.

- ` + "`lockkeeper run`" + ` does not start. Its exit status is 78.
- A reload (` + "`systemctl reload lockkeeper`" + `, SIGHUP) keeps the old settings and logs the mistakes.
- ` + "`lockkeeper check-config`" + ` finds mistakes in advance. ` + "`lockkeeper check-config --effective`" + ` prints
  every value in effect and the file and line that it comes from.

## Keys

A duration is a string, a number with its unit: ` + "`\"500ms\"`, `\"90s\"`, `\"5m\"`, `\"1h30m\"`" + `. Bounds are inclusive.
A key that a reload does not apply needs ` + "`systemctl restart lockkeeper`" + `.
`

// Configuration returns docs/configuration.md.
func Configuration() string {
	var b strings.Builder
	b.WriteString("# Configuration of a host\n\n" + generated + configurationIntro)
	table := "-"
	for _, k := range config.Keys() {
		if k.Table != table {
			table = k.Table
			heading := "Top level"
			if table != "" {
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
	b.WriteString("\n`lease.duration` > `lease.renew_deadline` > 1.2 × `lease.retry_period`. The factor is there because\n" +
		"the time between two tries is extended at random, by up to 20%.\n\n## All defaults\n\n```toml\n")
	title := ""
	for _, v := range config.Default().Effective() {
		if t := v.Title(); t != title {
			title = t
			fmt.Fprintf(&b, "\n%s\n", t)
		}
		fmt.Fprintf(&b, "%s = %s\n", v.Last, v.Value)
	}
	b.WriteString("```\n")
	return b.String()
}
