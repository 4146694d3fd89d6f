package cli

import (
	"io"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
)

// retry is `lockkeeper retry`.
func retry() *urfave.Command {
	return writing(&urfave.Command{
		Name: "retry", ArgsUsage: "NODE", Usage: "Clear a node's failed turn",
		Description: "A node that failed gets no turn for the same changes, and counts against maxFailed, until its failed turn is " +
			"cleared. A node whose turn was backed out waits before its next turn; retry ends that wait.",
	}, func(c *urfave.Context, s *cluster.Source) (string, error) {
		return s.Retry(c.Context, c.Args().First())
	})
}

// confirm is `lockkeeper confirm`.
func confirm() *urfave.Command {
	return writing(&urfave.Command{
		Name: "confirm", ArgsUsage: "NODE HOOK", Usage: "Confirm a hook that a node's turn waits for",
		Description: "Use it if you do the hook's work by hand, or if the hook is broken and you have done its work. The turn must be " +
			"in the hook's stage. The confirmation is valid for this turn only.",
	}, func(c *urfave.Context, s *cluster.Source) (string, error) {
		return s.Confirm(c.Context, c.Args().Get(0), c.Args().Get(1))
	})
}

// stop is `lockkeeper stop`.
func stop() *urfave.Command {
	return writing(&urfave.Command{
		Name: "stop", ArgsUsage: "[REASON…]", Usage: "Emergency stop: no turn begins or advances",
		Description: "Hosts that drain stop evicting within seconds. What a host has already committed continues: a reboot that was " +
			"requested cannot be taken back. `lockkeeper go` ends the stop.",
	}, func(c *urfave.Context, s *cluster.Source) (string, error) {
		return s.Stop(c.Context, strings.Join(c.Args().Slice(), " "))
	})
}

// endStop is `lockkeeper go`.
func endStop() *urfave.Command {
	return writing(&urfave.Command{Name: "go", Usage: "End the emergency stop"},
		func(c *urfave.Context, s *cluster.Source) (string, error) { return s.Go(c.Context) })
}

// writing completes a command that writes to the cluster and prints what it did.
func writing(cmd *urfave.Command, do func(*urfave.Context, *cluster.Source) (string, error)) *urfave.Command {
	cmd.Flags = ConnectionFlags()
	cmd.Action = func(c *urfave.Context) error {
		s, err := source(c)
		if err != nil {
			return err
		}
		text, err := do(c, s)
		if err != nil {
			return err
		}
		_, err = io.WriteString(c.App.Writer, text)
		return err
	}
	return cmd
}
