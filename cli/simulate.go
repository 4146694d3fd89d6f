package cli

import (
	"fmt"
	"io"
	"os"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/cli/simulate"
)

// simulation is `lockkeeper simulate`.
func simulation() *urfave.Command {
	return &urfave.Command{
		Name: "simulate", ArgsUsage: "FILE…", Usage: "Estimate how long a rollout takes", Action: simulateCommand,
		Description: "Rolls a fleet that you describe through its updates, in virtual time, with the code that decides in the cluster and on hosts. Shows how " +
			"long the rollout takes, how many nodes are unavailable at once under each policy, and where it would stop. The FILEs are YAML: one document " +
			"describes the fleet, and the others are DisruptionPolicies, as `kubectl get dp -o yaml` prints them. - is the standard input. " +
			"docs/simulate.md describes the format. The command connects to no cluster and changes nothing." + seeExitStatus,
		Flags: []urfave.Flag{
			&urfave.Uint64Flag{Name: "seed", Usage: "the `SEED` of what the fleet leaves to chance, instead of the file's"},
			exitCodeFlag(),
		},
	}
}

func simulateCommand(c *urfave.Context) error {
	var files []simulate.File
	for _, name := range c.Args().Slice() {
		text, err := readSimulation(c, name)
		if err != nil {
			return err
		}
		files = append(files, simulate.File{Name: name, Text: text})
	}
	fleet, err := simulate.Read(files...)
	if err != nil {
		return err
	}
	if c.IsSet("seed") {
		fleet.Seed = c.Uint64("seed")
	}
	r, err := simulate.Run(c.Context, fleet)
	if _, printErr := io.WriteString(c.App.Writer, r.String()); err == nil {
		err = printErr
	}
	exit := report.ExitOK
	if err == nil && !r.Done() {
		exit = report.ExitHeld
	}
	return asStatus(c, exit, err)
}

// readSimulation reads a file, or the standard input for "-".
func readSimulation(c *urfave.Context, name string) ([]byte, error) {
	file := c.App.Reader
	if name != "-" {
		opened, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		file = opened
	}
	text, err := io.ReadAll(io.LimitReader(file, simulate.MaxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", name, err)
	case len(text) > simulate.MaxFile:
		return nil, fmt.Errorf("%s has more than %d MiB", name, simulate.MaxFile>>20)
	}
	return text, nil
}
