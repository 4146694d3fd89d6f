package render

import (
	"cmp"
	"regexp"
	"strings"

	"lockkeeper.dev/lockkeeper/node/config"
)

const sampleWidth = 80 // columns

// Sample renders the file that the packages install: head, and then every key, commented
// out, with its default or an example. The tables are commented out too: a downgrade
// leaves the file of the newer version in place, and the older version would refuse a
// table that it does not know.
func Sample(head string, keys []config.Key) string {
	var b strings.Builder
	comment(&b, head)
	last := ""
	for _, k := range keys {
		if k.Table != last {
			b.WriteString("\n")
			if k.About != "" {
				comment(&b, bare(k.About))
			}
			b.WriteString("#" + k.Title() + "\n")
			last = k.Table
		}
		b.WriteString("\n")
		comment(&b, bare(k.Means+" "+strings.ToUpper(k.Type[:1])+k.Type[1:]+", "+k.Bounds+"."))
		value := k.Default
		if k.List {
			value = k.Example
		}
		b.WriteString("#" + k.Last + " = " + value + "\n")
	}
	return b.String()
}

// bare returns text for a place without markup.
func bare(text string) string { return strings.ReplaceAll(unlinked(text), "`", "") }

// link is a Markdown link to another page of docs, or to a section of one.
var link = regexp.MustCompile(`\[[^\]]*\]\(([a-z-]+\.md)(#[^)]*)?\)`)

// unlinked returns text with the name of a page in place of each link.
func unlinked(text string) string { return link.ReplaceAllString(text, "docs/$1") }

// comment adds text as comments, with an empty comment between paragraphs.
func comment(b *strings.Builder, text string) {
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString("#\n")
		}
		wrap(b, "# ", sampleWidth, p)
	}
}

// wrap writes text in lines that begin with prefix. A line has at most width bytes,
// or one word.
func wrap(b *strings.Builder, prefix string, width int, text string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = prefix + word
		case len(line)+1+len(word) > width:
			b.WriteString(line + "\n")
			line = prefix + word
		default:
			line += " " + word
		}
	}
	b.WriteString(line + "\n")
}

// Keys adds the keys to a page, a subsection for each table.
func (r *Roff) Keys(keys []config.Key) {
	last := "-"
	for _, k := range keys {
		if k.Table != last {
			last = k.Table
			r.Subsection(cmp.Or(k.Title(), "Top level"))
			if k.About != "" {
				r.Text(k.About)
			}
		}
		means := k.Means
		if !k.Reload {
			means += "\n\nNeeds a restart."
		}
		item := "`" + k.Last + "`"
		if k.Default != "" {
			item += " = `" + k.Default + "`"
		} else {
			means += "\n\nRequired."
		}
		r.Item(item, strings.ToUpper(k.Type[:1])+k.Type[1:]+": "+k.Bounds+".\n\n"+means)
	}
}

// Page fills in a page that is written by hand: each part replaces the line @NAME@.
func Page(text string, parts map[string]*Roff) string {
	text = strings.ReplaceAll(text, "@DATE@", Date)
	for name, rendered := range parts {
		text = strings.Replace(text, "@"+name+"@\n", rendered.b.String(), 1)
	}
	return ".\\\" Rendered from code and the .in file beside it. Do not edit: make docs\n" + text
}
