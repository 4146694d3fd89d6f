// Package cli has the commands that people type: `lockkeeper status`, plan, wait and the
// others, with their flags and help. They read and write the cluster with the caller's own
// credential. Package cli/agent is the service that `run` starts.
//
// The package must not know how anything is decided.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/policy"
)

// Commands returns all commands except help and version, in the order of the help.
func Commands() []*urfave.Command {
	all := []*urfave.Command{run(), status(), history(), wait(), plan(), checkConfig()}
	return append(append(all, intents()...), manifestsText(), coordinatorKubeconfig())
}

// Exit prints the error of a command to stderr and returns the exit status of the
// process. A nil error is 0.
func Exit(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	code := report.ExitError
	if _, ok := errors.AsType[usageError](err); ok {
		code = report.ExitUsage
	}
	if all, ok := errors.AsType[config.Errors](err); ok {
		code = report.ExitConfig
		for _, m := range all {
			fmt.Fprintf(stderr, "lockkeeper: %v\n", m)
		}
		err = fmt.Errorf("%s in the configuration; nothing was started or changed", page.Plural(len(all), "error"))
	}
	fmt.Fprintf(stderr, "lockkeeper: %v\n", err)
	return code
}

// UsageError returns the error of a command that was called in the wrong way.
func UsageError(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

type usageError string

func (e usageError) Error() string { return string(e) }

// exitStatus ends the process with this exit status and prints nothing.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func configFlag() urfave.Flag {
	return &urfave.StringFlag{Name: "config", Usage: "the host's configuration `FILE`, default " + config.DefaultFile}
}

func exitCodeFlag() urfave.Flag {
	return &urfave.BoolFlag{Name: "exit-code", Usage: "let the exit status reflect the report", DisableDefaultText: true}
}

// rootFlag is the directory that the test bed uses in place of /.
func rootFlag() urfave.Flag { return &urfave.StringFlag{Name: "root", Hidden: true} }

func outputFlag() urfave.Flag {
	return &urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "output `FORMAT`: text or json", Value: "text"}
}

// form returns how the flags and the terminal want a report to be printed.
func form(c *urfave.Context) (report.Form, error) {
	f := report.Form{JSON: c.String("output") == "json"}
	if o := c.String("output"); o != "json" && o != "text" {
		return f, UsageError("-o %q, expected text or json", o)
	}
	f.Width, _ = terminalSize(c.App.Writer)
	return f, nil
}

// source connects to the caller's cluster.
func source(c *urfave.Context) (*cluster.Source, error) {
	client, err := connect(c)
	if err != nil {
		return nil, err
	}
	namespace, lease := leaseNames(c)
	return &cluster.Source{
		Client: client, Skew: client.Skew, Namespace: namespace, LeaseName: lease,
		WatchPolicies: func(notify func()) cluster.PolicyView { return kube.WatchPolicies(client, policy.Compile, notify) },
		ReadUpdate: func(ctx context.Context, node string) (*v1alpha1.HostUpdate, error) {
			return kube.ReadHostUpdate(ctx, client, node)
		},
		Node: c.Args().First(),
	}, nil
}

// asStatus makes exit the exit status of the process if --exit-code asks for it.
func asStatus(c *urfave.Context, exit int, err error) error {
	if err == nil && exit != 0 && c.Bool("exit-code") {
		err = exitStatus(exit)
	}
	return err
}

// terminalSize returns the columns and rows of the terminal that w writes to, and zeros if
// w is not a terminal on which text can be drawn.
func terminalSize(w io.Writer) (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "" {
		return 0, 0
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0, 0
	case columns == 0: // a terminal that was given no size, such as a serial line
		return 80, 24
	}
	return columns, rows
}
