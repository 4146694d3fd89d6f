package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	urfave "github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
)

// history is `lockkeeper history`.
func history() *urfave.Command {
	return &urfave.Command{
		Name: "history", ArgsUsage: "[NODE]", Usage: "Show finished turns and how long each stage took", Action: historyCommand,
		Description: "Each host keeps its last ten turns in its HostUpdate. The command uses your own credential, which must be allowed " +
			"to list hostupdates.lockkeeper.dev, or to get the HostUpdate of NODE. -l also requires permission to list nodes.",
		Flags: slices.Concat([]urfave.Flag{selectorFlag()}, outputFlags(report.Table, report.Wide, report.JSON, report.YAML), ConnectionFlags()),
	}
}

func historyCommand(c *urfave.Context) error {
	name, selected, err := reported(c)
	if err != nil {
		return err
	}
	client, err := connect(c)
	if err != nil {
		return err
	}
	var all []v1alpha1.HostUpdate
	if name == "" {
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
	if err == nil && selected != nil {
		all, err = ofNodes(c.Context, client, selected, all)
	}
	if err != nil {
		return err
	}
	return report.WriteHistory(c.App.Writer, report.History(all), time.Now(), form(c))
}

// ofNodes returns those of the HostUpdates whose nodes match the selector.
func ofNodes(ctx context.Context, client kube.API, selected labels.Selector, all []v1alpha1.HostUpdate) ([]v1alpha1.HostUpdate, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selected.String()})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	matches := map[string]bool{}
	for i := range nodes.Items {
		matches[nodes.Items[i].Name] = true
	}
	return slices.DeleteFunc(all, func(u v1alpha1.HostUpdate) bool { return !matches[u.Name] }), nil
}
