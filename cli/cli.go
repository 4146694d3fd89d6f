// Package cli is commands, flags and their help: what main.go needs of a
// library for command lines, and no more. Its names are those of
// github.com/urfave/cli, which it replaces.
//
// It is ours for the sake of every host's memory. A library that writes help
// with text/template calls methods by names that only the run knows, so that
// the linker has to keep every method of every type in the program: with
// client-go that was 17 MiB of binary, and 10 MiB of each idle process.
//
// This room must not know what any command does.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ActionFunc is what a command does.
type ActionFunc func(*Context) error

// App is a program.
type App struct {
	Name  string
	Usage string // a sentence about it, without its full stop

	Writer, ErrWriter io.Writer

	// Flags are those before a command.
	Flags    []Flag
	Commands []*Command
	// Action is called when there is no command, or none that is known.
	Action ActionFunc
	// OnUsageError makes of a mistake in the flags what [App.RunContext]
	// returns; nil returns the mistake.
	OnUsageError func(*Context, error) error
}

// Command is one of an App's commands.
type Command struct {
	Name string
	// ArgsUsage is what follows the flags, such as "[NODE]".
	ArgsUsage string
	// Usage is a sentence about it, without its full stop; Description is all
	// else that help says.
	Usage, Description string
	Hidden             bool
	Flags              []Flag
	Action             ActionFunc
}

// Context is one call of a command, or of the App itself.
type Context struct {
	Context context.Context
	App     *App
	Command *Command // nil for the App itself

	flags  []Flag
	values map[string]string // by a flag's first name
	args   Args
}

// Args are what follows the flags.
type Args []string

// Slice is all of them, the caller's to change.
func (a Args) Slice() []string { return slices.Clone(a) }

// First is the first one, "" if there is none.
func (a Args) First() string {
	if len(a) == 0 {
		return ""
	}
	return a[0]
}

// Present reports whether there is any.
func (a Args) Present() bool { return len(a) > 0 }

// Args are the arguments of the call.
func (c *Context) Args() Args { return c.args }

// IsSet reports whether a flag was given.
func (c *Context) IsSet(name string) bool {
	_, set := c.values[name]
	return set
}

// Bool is the value of a [BoolFlag], by its Name; false for a flag that is not
// the command's.
func (c *Context) Bool(name string) bool { return c.values[name] == "true" }

// String is the value of a [StringFlag], by its Name; "" for a flag that is
// not the command's.
func (c *Context) String(name string) string {
	if v, set := c.values[name]; set {
		return v
	}
	if f := find(c.flags, name); f != nil {
		return f.GetValue()
	}
	return ""
}

// Command is the one with a name, nil if there is none.
func (a *App) Command(name string) *Command {
	for _, c := range a.Commands {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// RunContext does what args ask for; the first of them is the program's name.
func (a *App) RunContext(ctx context.Context, args []string) error {
	if len(args) > 0 {
		args = args[1:]
	}
	c := &Context{Context: ctx, App: a, flags: a.Flags}
	if err := c.parse(args); err != nil {
		return a.misused(c, err)
	}
	cmd := a.Command(c.args.First())
	if cmd == nil || len(c.values) > 0 {
		return a.Action(c)
	}
	c = &Context{Context: ctx, App: a, Command: cmd, flags: cmd.Flags, args: c.args}
	if err := c.parse(c.args[1:]); err != nil {
		return a.misused(c, err)
	}
	return cmd.Action(c)
}

func (a *App) misused(c *Context, err error) error {
	if a.OnUsageError == nil {
		return err
	}
	return a.OnUsageError(c, err)
}

// parse reads flags up to the first argument, or up to "--". One dash is as
// good as two; "-Aw" is "-A -w" unless there is a flag of that name.
func (c *Context) parse(args []string) error {
	c.values = map[string]string{}
	for len(args) > 0 {
		arg := args[0]
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		args = args[1:]
		if arg == "--" {
			break
		}
		name, value, given := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		flags, err := c.named(arg, name, given)
		if err != nil {
			return err
		}
		for _, f := range flags {
			v := "true"
			switch {
			case given:
				v = value
			case f.TakesValue() && len(args) == 0:
				return errors.New("flag needs an argument: -" + name)
			case f.TakesValue():
				v, args = args[0], args[1:]
			}
			if !f.TakesValue() && v != "true" && v != "false" {
				return fmt.Errorf("-%s is %q, expected true or false", name, v)
			}
			c.values[f.Names()[0]] = v
		}
	}
	c.args = args
	return nil
}

// named are the flags that one word of the command line means.
func (c *Context) named(arg, name string, given bool) ([]Flag, error) {
	if f := find(c.flags, name); f != nil {
		return []Flag{f}, nil
	}
	unknown := errors.New("unknown flag -" + name)
	if strings.HasPrefix(arg, "--") || given || len(name) < 2 {
		return nil, unknown
	}
	var flags []Flag
	for i, letter := range name {
		f := find(c.flags, string(letter))
		if f == nil || f.TakesValue() && i+len(string(letter)) < len(name) {
			return nil, unknown
		}
		flags = append(flags, f)
	}
	return flags, nil
}
