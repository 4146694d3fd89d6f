package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/cli/migrate"
)

// The marks between which the table of a page about another tool is rendered.
const (
	settingsBegin = "<!-- Rendered from code by `make docs`; do not edit this table. -->\n\n"
	settingsEnd   = "\n<!-- End of the table. -->\n"
)

// Migration returns a page about another tool with its table of settings: each flag or
// variable, and what it becomes. It returns an error if the page has no place for it.
func Migration(page string, tool migrate.Tool) (string, error) {
	before, rest, begins := strings.Cut(page, settingsBegin)
	_, after, ends := strings.Cut(rest, settingsEnd)
	if !begins || !ends {
		return "", fmt.Errorf("the page about %s has no place for the table of settings", tool)
	}
	return before + settingsBegin + settingsTable(tool) + settingsEnd + after, nil
}

// settingsTable has one row for settings next to each other that become the same.
func settingsTable(tool migrate.Tool) string {
	var b strings.Builder
	b.WriteString("| program | setting | becomes | how, or why not |\n| --- | --- | --- | --- |\n")
	all := migrate.Settings(tool)
	for i := 0; i < len(all); {
		s, names := &all[i], []string{}
		for ; i < len(all) && all[i].Program == s.Program && all[i].Becomes == s.Becomes && all[i].How == s.How; i++ {
			names = append(names, "`"+settingName(tool, all[i].Name)+"`")
		}
		becomes := "-"
		if s.Becomes != "" {
			becomes = "`" + s.Becomes + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.Program, strings.Join(names, ", "), becomes, cell(s.How))
	}
	return b.String()
}

func settingName(tool migrate.Tool, name string) string {
	if tool == migrate.Locksmith {
		return name
	}
	return "--" + name
}
