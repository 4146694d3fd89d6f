//go:build linux && !noagent

package cli

import (
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/agent"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
)

// The command line alone, which people install on their own machines, has no service. It is
// what every other system gets, and Linux with the build tag noagent.
func init() { service = run }

// run is `lockkeeper run`.
func run() *urfave.Command {
	return &urfave.Command{
		Name: "run", Usage: "Run the service on this host; systemd starts it", Action: runCommand,
		Description: "The service refuses to start with a configuration that is invalid." + seeExitStatus,
		Flags:       []urfave.Flag{configFlag(), rootFlag()},
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
	lock, err := local.Acquire(stateDir(c))
	if err != nil {
		return err
	}
	defer lock.Release()
	level := new(slog.LevelVar)
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	limitRuntime()
	return agent.Run(c.Context, cfg, agent.Options{
		Version: c.App.Version, Load: load, Reload: reloads, Root: root, StateDir: stateDir(c), Lock: lock, Log: agent.NewLog(level), Level: level,
		Leads: limitProcs,
	})
}

// Limits of Go's runtime. The environment variables GOGC and GOMAXPROCS take precedence.
const (
	// gcPercent makes the heap grow by a quarter between two collections, instead of doubling. A host allocates so little
	// that it costs no CPU time that can be measured.
	gcPercent = 25
	// maxProcs is how many CPUs run Go code at once. With more, the runtime wakes more threads for each timer, and keeps
	// memory for each CPU. maxLargeProcs is the same for the leader of a large fleet, so that a decision, which takes
	// milliseconds then, delays neither the changes of Nodes that arrive meanwhile nor the renewal of the Lease.
	maxProcs, maxLargeProcs = 1, 2
	// largeFleet is how many Nodes a large fleet has.
	largeFleet = 1000
)

// limitRuntime applies them to this process, which leads no Nodes yet.
func limitRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	limitProcs(0)
}

// limitProcs limits how many CPUs run Go code at once in a process that leads so many Nodes.
func limitProcs(nodes int) {
	procs := maxProcs
	if nodes >= largeFleet {
		procs = min(maxLargeProcs, runtime.NumCPU())
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(procs)
	}
}
