package render

import (
	"fmt"
	"regexp"
	"strings"

	"lockkeeper.dev/lockkeeper/cli"
)

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

// Commands reads the visible commands and flags of an application.
func Commands(app *cli.App) []Command {
	var out []Command
	for _, c := range app.Commands {
		if c.Hidden {
			continue
		}
		cmd := Command{Name: c.Name, Args: c.ArgsUsage, Usage: c.Usage, About: c.Description}
		for _, f := range c.VisibleFlags() {
			cmd.Flags = append(cmd.Flags, readFlag(f))
		}
		out = append(out, cmd)
	}
	return out
}

var placeholder = regexp.MustCompile("`([^`]+)`")

func readFlag(f cli.Flag) Flag {
	flag := Flag{Names: f.Names()}
	flag.Usage = strings.ReplaceAll(f.GetUsage(), "`", "")
	if f.TakesValue() {
		flag.Value = "VALUE"
		if m := placeholder.FindStringSubmatch(f.GetUsage()); m != nil {
			flag.Value = m[1]
		}
		if def := f.GetValue(); def != "" {
			flag.Usage += fmt.Sprintf(" (default: %s)", def)
		}
	}
	return flag
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
