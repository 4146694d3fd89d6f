package cli

import (
	"fmt"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
)

// history is `lockkeeper history`.
func history() *urfave.Command {
	return &urfave.Command{
		Name: "history", ArgsUsage: "[NODE]", Usage: "Show finished turns and how long each stage took", Action: historyCommand,
		Description: "Each host keeps its last ten turns in its HostUpdate. The command uses your own credential, which must be allowed " +
			"to list hostupdates.lockkeeper.dev, or to get the HostUpdate of NODE.",
		Flags: append([]urfave.Flag{outputFlag()}, ConnectionFlags()...),
	}
}

func historyCommand(c *urfave.Context) error {
	form, err := form(c)
	if err != nil {
		return err
	}
	client, err := connect(c)
	if err != nil {
		return err
	}
	var all []v1alpha1.HostUpdate
	if name := c.Args().First(); name == "" {
		var undecodable []error
		all, undecodable, err = kube.ListHostUpdates(c.Context, client)
		for _, err := range undecodable {
			fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", err)
		}
	} else {
		var u *v1alpha1.HostUpdate
		if u, err = kube.ReadHostUpdate(c.Context, client, name); err == nil && u == nil {
			err = fmt.Errorf("HostUpdate %q not found: no host of that name has published one", name)
		}
		if u != nil {
			all = []v1alpha1.HostUpdate{*u}
		}
	}
	if err != nil {
		return err
	}
	return report.WriteHistory(c.App.Writer, report.History(all), time.Now(), form)
}
