package render

import (
	"strings"
)

// Key is one key of a TOML file, as people are told of it.
type Key struct {
	Name          string // with its tables
	Type, Allowed string
	Default       string // as TOML; "" is that the key has to be there
	Means         string // may hold `x`
	Reload        bool   // a reload applies it; else a restart does
	About         string // of its table as a whole, said with the first key of it
	// List: it is one of each table of a list; Example is a value for it.
	List    bool
	Example string
}

// title is the line that its table begins with.
func (k Key) title() string {
	table, _ := k.split()
	if k.List {
		return "[[" + table + "]]"
	}
	return "[" + table + "]"
}

func (k Key) split() (table, name string) {
	if table, name, ok := strings.Cut(k.Name, "."); ok {
		return table, name
	}
	return "", k.Name
}

const sampleWidth = 80 // columns

// Sample renders the file with head above it and every key commented out at its
// default, those of a list's tables with an example. Tables are commented out
// too: the file of a newer version, left where it is by a downgrade, would be
// refused for a table that the older one does not know.
func Sample(head string, keys []Key) string {
	var b strings.Builder
	comment(&b, head)
	last := ""
	for _, k := range keys {
		table, name := k.split()
		if table != last {
			b.WriteString("\n")
			if k.About != "" {
				comment(&b, strings.ReplaceAll(k.About, "`", ""))
			}
			b.WriteString("#" + k.title() + "\n")
			last = table
		}
		b.WriteString("\n")
		comment(&b, strings.ReplaceAll(k.Means, "`", "")+" "+strings.ToUpper(k.Type[:1])+k.Type[1:]+", "+strings.ReplaceAll(k.Allowed, "`", "")+".")
		value := k.Default
		if k.List {
			value = k.Example
		}
		b.WriteString("#" + name + " = " + value + "\n")
	}
	return b.String()
}

// comment adds text as comments, its paragraphs apart.
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
func (r *Roff) Keys(keys []Key) {
	last := "-"
	for _, k := range keys {
		table, name := k.split()
		if table != last {
			last = table
			title := "Top level"
			if table != "" {
				title = k.title()
			}
			r.Subsection(title)
			if k.About != "" {
				r.Text(k.About)
			}
		}
		means := k.Means
		if !k.Reload {
			means += "\n\nNeeds a restart."
		}
		item := "`" + name + "`"
		if k.Default != "" {
			item += " = `" + k.Default + "`"
		} else {
			means += "\n\nHas to be there."
		}
		r.Item(item, strings.ToUpper(k.Type[:1])+k.Type[1:]+": "+k.Allowed+".\n\n"+means)
	}
}

// Page fills a page that is written by hand: each part replaces the line @NAME@
// that has its name.
func Page(text string, parts map[string]*Roff) string {
	text = strings.ReplaceAll(text, "@DATE@", Date)
	for name, rendered := range parts {
		text = strings.Replace(text, "@"+name+"@\n", rendered.b.String(), 1)
	}
	return ".\\\" Rendered from code and the .in file beside it. Do not edit: make docs\n" + text
}
