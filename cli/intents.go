package cli

import (
	"io"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
)

// retry is `lockkeeper retry`.
func retry() *urfave.Command {
	return &urfave.Command{
		Name: "retry", ArgsUsage: "NODE", Usage: "Clear a node's failed turn", Flags: []urfave.Flag{kubeconfigFlag(), configFlag()},
		Description: "A node that failed gets no turn for the same changes, and stops the line, until its turn is cleared. A node that was\n" +
			"backed out need not wait any longer.",
		Action: say(func(c *urfave.Context, s *cluster.Source) (string, error) {
			return s.Retry(c.Context, c.Args().First())
		}),
	}
}

// confirm is `lockkeeper confirm`.
func confirm() *urfave.Command {
	return &urfave.Command{
		Name: "confirm", ArgsUsage: "NODE HOOK", Usage: "Confirm a hook that a node's turn waits for", Flags: []urfave.Flag{kubeconfigFlag(), configFlag()},
		Description: "For hooks whose work a person does, or did for a hook that is broken. The turn has to be in the hook's stage; what is\n" +
			"confirmed holds for this turn alone.",
		Action: say(func(c *urfave.Context, s *cluster.Source) (string, error) {
			return s.Confirm(c.Context, c.Args().Get(0), c.Args().Get(1))
		}),
	}
}

// stop is `lockkeeper stop`.
func stop() *urfave.Command {
	return &urfave.Command{
		Name: "stop", ArgsUsage: "[REASON…]", Usage: "Emergency stop: nothing is promoted, no host commits", Flags: []urfave.Flag{kubeconfigFlag(), configFlag()},
		Description: "What was committed before goes on: a reboot that was called cannot be called back. Hosts that drain stop evicting\n" +
			"within seconds. `lockkeeper go` ends it.",
		Action: say(func(c *urfave.Context, s *cluster.Source) (string, error) {
			return s.Stop(c.Context, strings.Join(c.Args().Slice(), " "))
		}),
	}
}

// goOn is `lockkeeper go`.
func goOn() *urfave.Command {
	return &urfave.Command{
		Name: "go", Usage: "End the emergency stop", Flags: []urfave.Flag{kubeconfigFlag(), configFlag()},
		Action: say(func(c *urfave.Context, s *cluster.Source) (string, error) { return s.Go(c.Context) }),
	}
}

// say is a command that writes something and says what it did.
func say(do func(*urfave.Context, *cluster.Source) (string, error)) urfave.ActionFunc {
	return func(c *urfave.Context) error {
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
}
