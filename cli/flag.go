package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Flag is a [BoolFlag] or a [StringFlag].
type Flag interface {
	// Names are all that it goes by, its own name first, without dashes.
	Names() []string
	// TakesValue reports whether a value follows it.
	TakesValue() bool
	// GetUsage is what help says of it; `THIS` in it names its value.
	GetUsage() string
	// GetValue is what holds when it is not given, "" for a BoolFlag.
	GetValue() string
	// IsHidden reports whether help passes it over.
	IsHidden() bool
}

// BoolFlag is there or is not; it can also be given as --name=false.
type BoolFlag struct {
	Name    string
	Aliases []string
	Usage   string
	Hidden  bool
}

// Names are all that it goes by.
func (f *BoolFlag) Names() []string { return append([]string{f.Name}, f.Aliases...) }

// TakesValue is false.
func (f *BoolFlag) TakesValue() bool { return false }

// GetUsage is what help says of it.
func (f *BoolFlag) GetUsage() string { return f.Usage }

// GetValue is "".
func (f *BoolFlag) GetValue() string { return "" }

// IsHidden reports whether help passes it over.
func (f *BoolFlag) IsHidden() bool { return f.Hidden }

// StringFlag has a value, as the next word or after "=".
type StringFlag struct {
	Name    string
	Aliases []string
	Usage   string // `THIS` in it names the value
	Value   string // when it is not given
	Hidden  bool
}

// Names are all that it goes by.
func (f *StringFlag) Names() []string { return append([]string{f.Name}, f.Aliases...) }

// TakesValue is true.
func (f *StringFlag) TakesValue() bool { return true }

// GetUsage is what help says of it.
func (f *StringFlag) GetUsage() string { return f.Usage }

// GetValue is what holds when it is not given.
func (f *StringFlag) GetValue() string { return f.Value }

// IsHidden reports whether help passes it over.
func (f *StringFlag) IsHidden() bool { return f.Hidden }

func find(flags []Flag, name string) Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// VisibleFlags are those that help tells of.
func (c *Command) VisibleFlags() []Flag {
	return slices.DeleteFunc(slices.Clone(c.Flags), Flag.IsHidden)
}

// WriteHelp lists the commands.
func (a *App) WriteHelp(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s.\n\nUsage: %[1]s COMMAND [FLAG…] [ARGUMENT…]\n\n", a.Name, a.Usage)
	for _, c := range a.Commands {
		if !c.Hidden {
			fmt.Fprintf(&b, "  %-30s%s\n", c.Name+" "+c.ArgsUsage, c.Usage)
		}
	}
	fmt.Fprintf(&b, "\n%s help COMMAND tells more of each. Flags go before arguments.\n", a.Name)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHelp tells all of one command of the program called app.
func (c *Command) WriteHelp(w io.Writer, app string) error {
	var b strings.Builder
	b.WriteString(app + " " + c.Name)
	flags := c.VisibleFlags()
	if len(flags) > 0 {
		b.WriteString(" [FLAG…]")
	}
	if c.ArgsUsage != "" {
		b.WriteString(" " + c.ArgsUsage)
	}
	fmt.Fprintf(&b, "\n\n%s.\n", c.Usage)
	if c.Description != "" {
		fmt.Fprintf(&b, "\n%s\n", c.Description)
	}
	if len(flags) > 0 {
		b.WriteString("\nFlags:\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, f := range flags {
			forms, usage := describe(f)
			fmt.Fprintf(t, "  %s\t%s\n", forms, usage)
		}
		t.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describe is a flag as help shows it: how it is typed, and what it is for.
func describe(f Flag) (forms, usage string) {
	usage = strings.ReplaceAll(f.GetUsage(), "`", "")
	value := ""
	if f.TakesValue() {
		value = " VALUE"
		if _, rest, ok := strings.Cut(f.GetUsage(), "`"); ok {
			name, _, _ := strings.Cut(rest, "`")
			value = " " + name
		}
	}
	if v := f.GetValue(); v != "" {
		usage += fmt.Sprintf(" (default: %q)", v)
	}
	var typed []string
	for _, name := range f.Names() {
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		typed = append(typed, dashes+name+value)
	}
	return strings.Join(typed, ", "), usage
}
