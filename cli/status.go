package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
)

// status is `lockkeeper status`.
func status() *urfave.Command {
	return &urfave.Command{
		Name: "status", ArgsUsage: "[NODE]", Usage: "Show the state of the rollout, or of one node", Action: statusCommand,
		Description: "Reads the cluster with your own credential. On a host without one, or if the API server cannot be reached, it shows " +
			"what this host knows." + seeExitStatus,
		Flags: slices.Concat([]urfave.Flag{
			&urfave.BoolFlag{Name: "all", Aliases: []string{"A"}, Usage: "show all nodes, also idle ones that need nothing", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "keep showing changes until interrupted", DisableDefaultText: true},
			selectorFlag(), exitCodeFlag(), rootFlag(),
		}, outputFlags(report.Text, report.Table, report.Wide, report.JSON, report.YAML, report.Name), ConnectionFlags()),
	}
}

func statusCommand(c *urfave.Context) error {
	form := form(c)
	switch {
	case form.All && form.Node != "":
		return UsageError("-A and a node name (%s) cannot be combined", form.Node)
	case c.Bool("watch") && form.Output == report.Name:
		return UsageError("-w and -o name cannot be combined")
	}
	s, err := reportSource(c)
	if errors.Is(err, kube.ErrNoKubeconfig) {
		return hostStatus(c, form, err)
	}
	if err != nil {
		return err
	}
	r, err := s.Read(c.Context)
	if cluster.Away(err) {
		err = hostStatus(c, form, err)
		if _, shown := err.(exitStatus); (err == nil || shown) && form.Node == "" && c.Bool("exit-code") {
			return exitStatus(report.ExitError) // the question was about the fleet
		}
		return err
	}
	if err != nil {
		return err
	}
	if c.Bool("watch") {
		p := &report.Printer{Form: form, W: c.App.Writer}
		if form.Width > 0 {
			p.Size = func() (columns, rows int) { return terminalSize(c.App.Writer) }
		}
		if err := p.Show(r, nil); err != nil {
			return err
		}
		if err := s.Follow(c.Context, p.Show); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return asStatus(c, p.Exit(), nil)
	}
	exit, err := form.Print(c.App.Writer, &r)
	return asStatus(c, exit, err)
}

// hostStatus prints what this host knows; why is why the cluster cannot be shown.
func hostStatus(c *urfave.Context, form report.Form, why error) error {
	if c.IsSet("selector") || form.Output == report.Name || form.Output == report.Table || form.Output == report.Wide {
		return why // a host knows no labels, and has no list of nodes for the program that reads it
	}
	running, err := local.Running(stateDir(c))
	if err != nil {
		return err
	}
	s, err := local.Read(stateDir(c))
	switch {
	case err != nil && running:
		return fmt.Errorf("%w; lockkeeper runs on this host but has not reported yet", why)
	case err != nil:
		return fmt.Errorf("%w; lockkeeper has not run on this host since it booted", why)
	case form.Node != "" && form.Node != s.Node:
		return fmt.Errorf("%w; this host is not %s", why, form.Node)
	}
	h := report.BuildHost(time.Now(), s, running, why.Error())
	exit, err := h.Print(c.App.Writer, form)
	if err == nil && c.Bool("watch") {
		err = fmt.Errorf("not watching the cluster: %w", why)
	}
	return asStatus(c, exit, err)
}

// checkConfig is `lockkeeper check-config`.
func checkConfig() *urfave.Command {
	return &urfave.Command{
		Name: "check-config", Usage: "Check this host's configuration", Action: checkConfigCommand,
		Description: "Prints each error with its file and line. Nothing is started or changed." + seeExitStatus,
		Flags: []urfave.Flag{configFlag(),
			&urfave.BoolFlag{Name: "effective", Usage: "print each value and where it comes from", DisableDefaultText: true}},
	}
}

// warned loads a configuration and prints its warnings.
func warned(c *urfave.Context, load func() (*config.Config, []config.Warning, error)) (*config.Config, error) {
	cfg, warnings, err := load()
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	return cfg, err
}

func checkConfigCommand(c *urfave.Context) error {
	cfg, err := warned(c, func() (*config.Config, []config.Warning, error) {
		return config.Load(config.Options{File: c.String("config")})
	})
	if err != nil {
		return err
	}
	for _, finding := range kube.Exposed(cfg.Coordinator.Kubeconfig) {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: coordinator.kubeconfig: %s\n", finding)
	}
	if c.Bool("effective") {
		return cfg.WriteEffective(c.App.Writer)
	}
	read := "no file, all values are defaults"
	if files := cfg.Files(); len(files) > 0 {
		read = strings.Join(files, ", ")
	}
	_, err = fmt.Fprintln(c.App.Writer, "valid: "+read)
	return err
}
