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
	"path/filepath"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/policy"
)

// Commands returns all commands except help and version, in the order of the help.
func Commands() []*urfave.Command {
	all := []*urfave.Command{status(), history(), wait(), plan(), simulation(), checkConfig()}
	if service != nil {
		all = append([]*urfave.Command{service()}, all...)
	}
	return append(append(all, intents()...), leave(), manifestsText(), initialize(), coordinatorKubeconfig(), migration())
}

// service returns `lockkeeper run`. It is nil in the command line alone, which does not link
// package agent; see run.go.
var service func() *urfave.Command

// Exit prints the error of a command of app and returns the exit status of the process. A nil
// error is 0.
func Exit(app *urfave.App, err error) int {
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
			fmt.Fprintf(app.ErrWriter, "lockkeeper: %v\n", m)
		}
		err = fmt.Errorf("%s in the configuration; nothing was started or changed", page.Plural(len(all), "error"))
	}
	fmt.Fprintf(app.ErrWriter, "lockkeeper: %s\n", asTyped(app, err.Error()))
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

// stateDir returns the directory of what the service on this host reports.
func stateDir(c *urfave.Context) string { return filepath.Join(c.String("root"), local.Dir) }

// outputFlags returns the flags that say how a command prints its report. The first format is the
// default.
func outputFlags(formats ...report.Format) []urfave.Flag {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	list := strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
	return []urfave.Flag{
		&urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "output `FORMAT`: " + list, Value: names[0],
			Action: func(_ *urfave.Context, value string) error {
				if !slices.Contains(names, value) {
					return UsageError("-o %q, expected %s", value, list)
				}
				return nil
			}},
		&urfave.BoolFlag{Name: "no-headers", Usage: "print the table without a header; implies -o table", DisableDefaultText: true},
	}
}

// form returns how the flags and the terminal want a report to be printed.
func form(c *urfave.Context) report.Form {
	f := report.Form{Output: report.Format(c.String("output")), NoHeaders: c.Bool("no-headers"), All: c.Bool("all"), Node: c.Args().First()}
	if f.NoHeaders && !c.IsSet("output") {
		f.Output = report.Table
	}
	f.Width, _ = terminalSize(c.App.Writer)
	f.Color = f.Width > 0 && os.Getenv("NO_COLOR") == ""
	return f
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
		DeleteUpdate: func(ctx context.Context, node string) (bool, error) {
			return kube.DeleteHostUpdate(ctx, client, node)
		},
	}, nil
}

// reported returns the node that the argument names, or what -l selects. Both are zero for all
// nodes.
func reported(c *urfave.Context) (node string, selected labels.Selector, err error) {
	node = c.Args().First()
	if node != "" && c.IsSet("selector") {
		return "", nil, UsageError("-l and a node name (%s) cannot be combined", node)
	}
	selected, err = selector(c)
	return node, selected, err
}

// reportSource is [source] for a command that reports on all nodes, on those that -l selects, or
// on the one that its argument names.
func reportSource(c *urfave.Context) (*cluster.Source, error) {
	node, selected, err := reported(c)
	if err != nil {
		return nil, err
	}
	s, err := source(c)
	if err == nil {
		s.Node, s.Selector = node, selected
	}
	return s, err
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
