package cli

import (
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/agent"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
)

// run is `lockkeeper run`.
func run() *urfave.Command {
	return &urfave.Command{
		Name: "run", Usage: "Look after this host; what the systemd unit starts", Action: runCommand,
		Description: "Exit status: 0 when it was stopped, 78 when the configuration is bad, 1 on errors.",
		Flags:       []urfave.Flag{configFlag(), rootFlag()},
	}
}

// checkConfig is `lockkeeper check-config`.
func checkConfig() *urfave.Command {
	return &urfave.Command{
		Name: "check-config", Usage: "Check this host's configuration", Action: checkConfigCommand,
		Description: "Exit status: 0 when it is valid, 78 when it is not.",
		Flags: []urfave.Flag{configFlag(),
			&urfave.BoolFlag{Name: "effective", Usage: "print every value in effect and where it comes from", DisableDefaultText: true}},
	}
}

func runCommand(c *urfave.Context) error {
	signal.Ignore(syscall.SIGPIPE) // a journal that goes away must not take the service with it
	root, testbed := c.String("root"), c.String("root") != ""
	if !testbed {
		root = "/"
	}
	load := func() (*config.Config, []config.Warning, error) {
		return config.Load(config.Options{File: c.String("config"), Testbed: testbed})
	}
	cfg, warnings, err := load()
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	if err != nil {
		return err
	}
	release, err := local.Acquire(stateDir(c))
	if err != nil {
		return err
	}
	defer release()
	return agent.Run(c.Context, cfg, agent.Options{
		Version: c.App.Version, Load: load, Root: root, StateDir: stateDir(c),
	})
}

func stateDir(c *urfave.Context) string { return filepath.Join(c.String("root"), local.Dir) }

func checkConfigCommand(c *urfave.Context) error {
	cfg, warnings, err := config.Load(config.Options{File: c.String("config")})
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	if err != nil {
		return err
	}
	for _, finding := range kube.Exposed(cfg.Coordinator.Kubeconfig, "") {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: coordinator.kubeconfig: %s\n", finding)
	}
	if c.Bool("effective") {
		return cfg.WriteEffective(c.App.Writer)
	}
	read := "no file; every default holds"
	if files := cfg.Files(); len(files) > 0 {
		read = strings.Join(files, ", ")
	}
	_, err = fmt.Fprintln(c.App.Writer, "valid: "+read)
	return err
}
