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
		Description: "For scripts. The command watches the cluster with your own credential, and keeps waiting while the API server " +
			"cannot be reached. It prints to standard error what it waits for whenever that changes.\n\n" +
			"up-to-date: no node wants anything or is in a turn, as the hosts last reported.\n\n" +
			"idle: no node is in a turn.\n\n" +
			"held: the rollout is held, halted or stopped, or the node is held. An emergency stop or a halt does not end a wait for another goal." + seeExitStatus,
		Flags: append([]urfave.Flag{
			&urfave.StringFlag{Name: "for", Usage: "required: what to wait for, a `GOAL`: up-to-date, idle or held"},
			&urfave.StringFlag{Name: "timeout", Usage: "how long to wait, a `DURATION` from 1s to 720h such as 90m; default no limit"},
			selectorFlag(),
		}, ConnectionFlags()...),
	}
}

// maxWait bounds --timeout.
const maxWait = 720 * time.Hour

func waitCommand(c *urfave.Context) error {
	goal, err := report.ParseGoal(c.String("for"))
	if err != nil {
		return UsageError("--for %v", err)
	}
	ctx := c.Context
	if c.IsSet("timeout") {
		d, err := parseDuration(c, "timeout", maxWait)
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeoutCause(ctx, d, cluster.ErrTimeout)
		defer cancel()
		ctx = bounded
	}
	s, err := reportSource(c)
	if err != nil {
		return err
	}
	err = s.Wait(ctx, goal, c.Args().First(), func(line string) { fmt.Fprintln(c.App.ErrWriter, line) })
	switch {
	case errors.Is(err, cluster.ErrTimeout):
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: timed out after %s; not %s yet\n", c.String("timeout"), goal)
		return exitStatus(report.ExitTimeout)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; not %s yet", goal)
	}
	return err
}
