package render

import "strings"

// catalogWidth is the width of the catalog's lines in bytes.
const catalogWidth = 80

// Catalog returns packaging/lockkeeper.catalog, the message catalog of
// systemd's journal.
func Catalog() string {
	var b strings.Builder
	b.WriteString("# What lockkeeper's entries in the journal mean, as `journalctl -x` shows it.\n" +
		"# Rendered from code by `make docs`; do not edit.\n")
	for _, d := range messageDocs {
		b.WriteString("\n-- " + string(d.ID) + "\nSubject: " + d.Subject +
			"\nDefined-By: lockkeeper\nDocumentation: man:lockkeeper(8)\n\n")
		wrap(&b, "", catalogWidth, d.Means)
		b.WriteByte('\n')
		wrap(&b, "", catalogWidth, "What to do: "+d.Do)
	}
	return b.String()
}
