package cli

import (
	"fmt"
	"log/slog"
	"os"
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
		Name: "run", Usage: "Run the service on this host; systemd starts it", Action: runCommand,
		Description: "The service refuses to start with a configuration that is invalid." + seeExitStatus,
		Flags:       []urfave.Flag{configFlag(), rootFlag()},
	}
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

func runCommand(c *urfave.Context) error {
	signal.Ignore(syscall.SIGPIPE) // the service must survive a restart of the journal
	root, testbed := c.String("root"), c.String("root") != ""
	if !testbed {
		root = "/"
	}
	load := func() (*config.Config, []config.Warning, error) {
		return config.Load(config.Options{File: c.String("config"), Testbed: testbed})
	}
	cfg, err := warned(c, load)
	if err != nil {
		return err
	}
	release, err := local.Acquire(stateDir(c))
	if err != nil {
		return err
	}
	defer release()
	level := new(slog.LevelVar)
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	return agent.Run(c.Context, cfg, agent.Options{
		Version: c.App.Version, Load: load, Reload: reloads, Root: root, StateDir: stateDir(c), Log: agent.NewLog(level), Level: level,
	})
}

// warned loads a configuration and prints its warnings.
func warned(c *urfave.Context, load func() (*config.Config, []config.Warning, error)) (*config.Config, error) {
	cfg, warnings, err := load()
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	return cfg, err
}

func stateDir(c *urfave.Context) string { return filepath.Join(c.String("root"), local.Dir) }

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
