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
	return cli.Exit(newApp(stdout, stderr).RunContext(ctx, args), stderr)
}

const helpTemplate = `lockkeeper rolls host updates through a Kubernetes cluster, one host at a time.

Usage: lockkeeper COMMAND [FLAG…] [ARGUMENT…]

{{range .VisibleCommands}}  {{.Name}} {{.ArgsUsage}}{{"\t"}}{{.Usage}}
{{end}}
lockkeeper help COMMAND tells more of each. Flags go before arguments.
`

const commandTemplate = `lockkeeper {{.Name}}{{if .VisibleFlags}} [FLAG…]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}

{{.Usage}}.
{{if .Description}}
{{.Description}}
{{end}}{{if .VisibleFlags}}
Flags:
{{range .VisibleFlags}}  {{.}}
{{end}}{{end}}`

func newApp(stdout, stderr io.Writer) *urfave.App {
	urfave.HelpFlag = nil // help is a flag of ours: theirs takes a node's name for a topic
	app := &urfave.App{
		Name: "lockkeeper", Version: versionText(), Writer: stdout, ErrWriter: stderr,
		HideHelp: true, HideHelpCommand: true, HideVersion: true, UseShortOptionHandling: true,
		DisableSliceFlagSeparator: true, // a path may have a comma
		CustomAppHelpTemplate:     helpTemplate,
		Flags:                     []urfave.Flag{helpFlag(), &urfave.BoolFlag{Name: "version", Hidden: true}},
		Before: func(c *urfave.Context) error {
			if (c.Bool("help") || c.Bool("version")) && c.Args().Present() {
				return cli.UsageError("--help and --version go without a command; `lockkeeper help %s` tells of it", c.Args().First())
			}
			return nil
		},
		// No command, or none that is known; cli would exit with 3.
		Action: func(c *urfave.Context) error {
			switch {
			case c.Bool("version"):
				return printVersion(c)
			case c.Args().Present():
				return cli.UsageError("unknown command %q; `lockkeeper help` lists them", c.Args().First())
			}
			return urfave.ShowAppHelp(c)
		},
		OnUsageError:   onUsageError,
		ExitErrHandler: func(*urfave.Context, error) {}, // nobody exits but main
	}
	for _, cmd := range commands() {
		app.Commands = append(app.Commands, finish(cmd))
	}
	return app
}

// commands returns all commands.
func commands() []*urfave.Command {
	return append(cli.Commands(),
		&urfave.Command{Name: "version", Usage: "Show the version", Action: printVersion},
		&urfave.Command{Name: "help", ArgsUsage: "[COMMAND]", Usage: "Show the commands, or one of them", Action: helpCommand},
	)
}

func helpFlag() urfave.Flag {
	return &urfave.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this", DisableDefaultText: true}
}

func onUsageError(c *urfave.Context, err error, _ bool) error {
	text := strings.Replace(err.Error(), "flag provided but not defined: ", "unknown flag ", 1)
	help := "lockkeeper help"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != "lockkeeper" {
		help += " " + c.Command.Name
	}
	return cli.UsageError("%s; see `%s`", text, help)
}

// finish gives a command what all have: help, and strict arguments.
func finish(cmd *urfave.Command) *urfave.Command {
	cmd.Flags = append(cmd.Flags, helpFlag())
	cmd.HideHelp, cmd.HideHelpCommand = true, true
	cmd.CustomHelpTemplate = commandTemplate
	cmd.OnUsageError = onUsageError
	do := cmd.Action
	least, most := argsIn(cmd.ArgsUsage)
	cmd.Action = func(c *urfave.Context) error {
		if c.Bool("help") {
			urfave.HelpPrinter(c.App.Writer, commandTemplate, c.Command)
			return nil
		}
		args := c.Args().Slice()
		for i, a := range args {
			if i > 0 && len(a) > 1 && a[0] == '-' {
				order := append([]string{"lockkeeper", cmd.Name}, append(args[i:len(args):len(args)], args[:i]...)...)
				return cli.UsageError("%s after an argument would be ignored, so nothing was done; flags go first: %s", a, strings.Join(order, " "))
			}
		}
		if len(args) > most {
			return cli.UsageError("%s takes %s, not %q; see `lockkeeper help %s`", cmd.Name, takes(cmd.ArgsUsage), args, cmd.Name)
		}
		if len(args) < least {
			return cli.UsageError("%s needs %s; see `lockkeeper help %s`", cmd.Name, cmd.ArgsUsage, cmd.Name)
		}
		return do(c)
	}
	return cmd
}

// argsIn is how many arguments a usage such as "NODE HOOK", "[NODE]" or "[REASON…]" needs and allows.
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

func takes(usage string) string {
	if usage == "" {
		return "no arguments"
	}
	return usage
}

func helpCommand(c *urfave.Context) error {
	name := c.Args().First()
	if name == "" {
		return urfave.ShowAppHelp(c)
	}
	cmd := c.App.Command(name)
	if cmd == nil {
		return cli.UsageError("unknown command %q; `lockkeeper help` lists them", name)
	}
	urfave.HelpPrinter(c.App.Writer, commandTemplate, cmd)
	return nil
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
