package config

import (
	"fmt"
	"strings"
)

const docsHead = `# Configuration of a host

<!-- Rendered from node/config. Do not edit: go test ./node/config -update -->

What a host decides about itself is in ` + "`" + DefaultFile + "`" + `; what the cluster decides is in policies. No file is
needed: without one every default below holds.

## Which files are read

1. The file.
2. Drop-ins, ` + "`*.toml`" + ` in ` + "`config.d`" + ` below ` + "`/usr/lib/lockkeeper`, `/etc/lockkeeper` and `/run/lockkeeper`" + `, in the
   order of their names whichever directory they are in. Of two with the same name the one in ` + "`/run`" + ` is read and the
   one in ` + "`/etc`" + ` is not, and so with ` + "`/etc`" + ` and ` + "`/usr/lib`" + `. A link to ` + "`/dev/null`" + ` masks a drop-in.

Later values replace earlier ones key by key; a list replaces a list as a whole. A file named by ` + "`--config`" + ` has to exist.
Unless it is the default one it has the drop-ins in ` + "`config.d`" + ` beside it, and no others.

## What happens to mistakes

Unknown keys, wrong types and values out of bounds are mistakes, and so is a file that cannot be read. All of them are
reported at once, each with its file, line and key, what stands there and what was expected.

- ` + "`lockkeeper run`" + ` does not start; its exit status is 78.
- A reload (` + "`systemctl reload lockkeeper`" + `, SIGHUP) keeps what is in effect and says so in the journal.
- ` + "`lockkeeper check-config`" + ` finds them beforehand. ` + "`lockkeeper check-config --effective`" + ` prints every value in effect and the
  file and line that it comes from.

## Keys

Durations are strings, a number with its unit: ` + "`\"500ms\"`, `\"90s\"`, `\"5m\"`, `\"1h30m\"`" + `. Both bounds are allowed values. A key
that a reload does not apply needs ` + "`systemctl restart lockkeeper`" + `.
`

// Docs renders docs/configuration.md.
func Docs() string {
	var b strings.Builder
	b.WriteString(docsHead)
	table := "-"
	for _, k := range Keys() {
		t, _, ok := strings.Cut(k.Name, ".")
		if !ok {
			t = ""
		}
		if t != table {
			table = t
			heading := "Top level"
			if t != "" {
				heading = "`[" + t + "]`"
			}
			if k.List {
				heading = "`[[" + t + "]]`"
			}
			fmt.Fprintf(&b, "\n### %s\n\n", heading)
			if k.About != "" {
				b.WriteString(k.About + "\n\n")
			}
			fmt.Fprintf(&b, "| key | type | default | allowed | reload | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
		}
		applies := "no"
		if k.Reload {
			applies = "yes"
		}
		cell := func(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
		def := "`" + cell(k.Default) + "`"
		if k.Default == "" {
			def = "has to be there"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n",
			strings.TrimPrefix(k.Name, t+"."), cell(k.Type), def, cell(k.Bounds), applies, cell(k.Means))
	}
	b.WriteString("\n`lease.duration` > `lease.renew_deadline` > 1.2 × `lease.retry_period`: the last because each try is stretched at random.\n")
	b.WriteString("\n## All defaults\n\n```toml\n" + defaultsAsFile() + "```\n")
	return b.String()
}

func defaultsAsFile() string {
	var b strings.Builder
	head := ""
	for _, v := range Default().Effective() {
		name, h := heading(v)
		if h != head {
			fmt.Fprintf(&b, "\n%s\n", h)
			head = h
		}
		fmt.Fprintf(&b, "%s = %s\n", name, v.Value)
	}
	return b.String()
}
