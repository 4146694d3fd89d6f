package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/report"
)

// wait is `lockkeeper wait`.
func wait() *urfave.Command {
	return &urfave.Command{
		Name: "wait", ArgsUsage: "[NODE]", Usage: "Wait until the fleet or a node is up to date, idle or held", Action: waitCommand,
		Description: "For scripts. Reads the cluster with your own credential and then watches it; an API server that is away for a while\n" +
			"does not end the wait. It prints to standard error what it waits for, whenever that has changed.\n\n" +
			"up-to-date: no node wants anything or is in a turn, as the hosts last reported. idle: no node is in a turn. held: the\n" +
			"rollout is held, halted or stopped; or the node is held. An emergency stop or a halt ends no other wait.\n\n" +
			"Exit status: 0 when it is reached, 1 on errors, 4 when the time is over.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "for", Usage: "what to wait for, a `GOAL`: up-to-date, idle or held"},
			&urfave.StringFlag{Name: "timeout", Usage: "how long to wait, a `DURATION` of 1s to 720h, such as 90m; without it there is no limit"},
			kubeconfigFlag(), configFlag(),
		},
	}
}

// Bounds of wait's --timeout.
const (
	minWait = time.Second
	maxWait = 720 * time.Hour
)

func waitCommand(c *urfave.Context) error {
	goal, err := report.ParseGoal(c.String("for"))
	if err != nil {
		return UsageError("--for %v", err)
	}
	ctx := c.Context
	if text := c.String("timeout"); c.IsSet("timeout") {
		d, err := time.ParseDuration(text)
		if err != nil || d < minWait || d > maxWait {
			return UsageError("--timeout %q, expected 1s to 720h, such as 90m", text)
		}
		bounded, cancel := context.WithTimeoutCause(ctx, d, cluster.ErrTimeout)
		defer cancel()
		ctx = bounded
	}
	s, err := source(c)
	if err != nil {
		return err
	}
	err = s.Wait(ctx, goal, c.Args().First(), func(line string) { fmt.Fprintln(c.App.ErrWriter, line) })
	switch {
	case errors.Is(err, cluster.ErrTimeout):
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: after %s it is not %s\n", c.String("timeout"), goal)
		return exitStatus(report.ExitTimeout)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; it is not %s yet", goal)
	}
	return err
}
