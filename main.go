// Command lockkeeper rolls host updates through a Kubernetes cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata" // windows have time zones, and a host may lack their database

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli"
)

// version is set at build time: -ldflags '-X main.version=v1.2.3'.
var version string

func main() { os.Exit(run(os.Args, os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	app := newApp(stdout, stderr)
	args, err := cli.Arrange(app, cli.AsPlugin(app, args))
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	return cli.Exit(app, err)
}

func newApp(stdout, stderr io.Writer) *urfave.App {
	urfave.HelpFlag = nil // urfave's own flag takes the name of a node for a help topic
	app := &urfave.App{
		Name: "lockkeeper", Version: versionText(), Writer: stdout, ErrWriter: stderr,
		HideHelp: true, HideHelpCommand: true, HideVersion: true,
		DisableSliceFlagSeparator: true, // a path may have a comma
		Flags:                     append(cli.ConnectionFlags(), helpFlag(), &urfave.BoolFlag{Name: "version", Hidden: true}),
		Action: func(c *urfave.Context) error { // no command
			if c.Bool("version") {
				return printVersion(c)
			}
			return cli.AppHelp(c)
		},
		OnUsageError:   onUsageError,
		ExitErrHandler: func(*urfave.Context, error) {}, // only main exits
	}
	for _, cmd := range commands() {
		app.Commands = append(app.Commands, finish(cmd))
	}
	app.Commands = append(app.Commands, &urfave.Command{Name: cli.CompleteCommand, Hidden: true, HideHelp: true, SkipFlagParsing: true, Action: cli.Complete})
	return app
}

// commands returns all commands.
func commands() []*urfave.Command {
	return append(cli.Commands(),
		&urfave.Command{Name: "version", Usage: "Show the version", Action: printVersion},
		&urfave.Command{Name: "help", ArgsUsage: "[COMMAND]", Usage: "Show help for all commands or for one", Action: helpCommand},
	)
}

func helpFlag() urfave.Flag {
	return &urfave.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this help", DisableDefaultText: true}
}

func onUsageError(c *urfave.Context, err error, _ bool) error {
	help := "lockkeeper help"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != c.App.Name {
		help += " " + c.Command.Name
	}
	return cli.UsageError("%v; see `%s`", err, help)
}

// finish adds what all commands have: help, and a check of the arguments.
func finish(cmd *urfave.Command) *urfave.Command {
	cmd.Flags = append(cmd.Flags, helpFlag())
	cmd.HideHelp, cmd.HideHelpCommand = true, true
	cmd.OnUsageError = onUsageError
	do := cmd.Action
	cmd.Action = func(c *urfave.Context) error {
		if c.Bool("help") {
			return cli.CommandHelp(c, cmd)
		}
		if err := checkArgs(cmd, c.Args().Slice()); err != nil {
			return err
		}
		return cli.NameCluster(c, do(c))
	}
	return cmd
}

// checkArgs checks the number of arguments.
func checkArgs(cmd *urfave.Command, args []string) error {
	least, most := argsIn(cmd.ArgsUsage)
	switch {
	case len(args) > most && most == 0:
		return cli.UsageError("%s accepts no arguments, got %q; see `lockkeeper help %s`", cmd.Name, args, cmd.Name)
	case len(args) > most:
		return cli.UsageError("%s accepts %s, got %q; see `lockkeeper help %s`", cmd.Name, cmd.ArgsUsage, args, cmd.Name)
	case len(args) < least:
		return cli.UsageError("%s requires %s; see `lockkeeper help %s`", cmd.Name, cmd.ArgsUsage, cmd.Name)
	}
	return nil
}

// argsIn returns how many arguments a usage such as "NODE HOOK", "[NODE]" or "[REASON…]" requires and accepts.
func argsIn(usage string) (least, most int) {
	for word := range strings.FieldsSeq(usage) {
		if most++; word[0] != '[' {
			least++
		}
		if strings.Contains(word, "…") {
			most = 1000
		}
	}
	return least, most
}

func helpCommand(c *urfave.Context) error {
	name := c.Args().First()
	switch name {
	case "":
		return cli.AppHelp(c)
	case cli.ExitStatusTopic:
		return cli.ExitStatusHelp(c)
	}
	cmd := c.App.Command(name)
	if cmd == nil {
		return cli.UnknownCommand(c.App, name)
	}
	return cli.CommandHelp(c, cmd)
}

func printVersion(c *urfave.Context) error {
	_, err := fmt.Fprintf(c.App.Writer, "lockkeeper %s (%s, %s/%s)\n", c.App.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
