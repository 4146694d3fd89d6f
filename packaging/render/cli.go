package render

import "strings"

// Command is one command as people are told of it.
type Command struct {
	Name, Args, Usage, About string
	Flags                    []Flag
}

// Flag is a flag of a command.
type Flag struct {
	Names []string // the long one first, without dashes
	Value string   // what it takes, such as FILE; "" for none
	Usage string
}

// Takes fills in what the flag is for from a usage in which `THIS` names the value
// that it takes, and the value that holds without it.
func (f Flag) Takes(value bool, usage, def string) Flag {
	f.Usage = strings.ReplaceAll(usage, "`", "")
	if !value {
		return f
	}
	f.Value = "VALUE"
	if _, rest, ok := strings.Cut(usage, "`"); ok {
		f.Value, _, _ = strings.Cut(rest, "`")
	}
	if def != "" {
		f.Usage += " (default: " + def + ")"
	}
	return f
}

// dashed is a flag's name as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// forms are a flag's names as they are typed, each with its value.
func (f Flag) forms() string {
	var forms []string
	for _, n := range f.Names {
		form := "`" + dashed(n) + "`"
		if f.Value != "" {
			form += " " + f.Value
		}
		forms = append(forms, form)
	}
	return strings.Join(forms, ", ")
}

// Commands adds the commands to a page.
func (r *Roff) Commands(commands []Command) {
	for _, c := range commands {
		title := c.Name
		if len(c.Flags) > 0 {
			title += " [FLAG…]"
		}
		if c.Args != "" {
			title += " " + c.Args
		}
		r.Subsection("lockkeeper " + title)
		r.Text(strings.TrimSuffix(c.Usage, ".") + ".")
		if c.About != "" {
			r.b.WriteString(".PP\n")
			r.Text(c.About)
		}
		for _, f := range c.Flags {
			r.Item(f.forms(), strings.TrimSuffix(f.Usage, ".")+".")
		}
	}
}
