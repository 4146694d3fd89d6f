package cli

import (
	"slices"

	urfave "github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
)

// plan is `lockkeeper plan`.
func plan() *urfave.Command {
	return &urfave.Command{
		Name: "plan", ArgsUsage: "[NODE]", Usage: "Show what changes would cost and when, before they happen", Action: planCommand,
		Description: "For each node which rule says what the change costs and why, the plan, which pods would be evicted and which budgets\n" +
			"would block that now, the stages of the turn, what would hold the node now and how many are ahead of it. Nodes of which\n" +
			"the same is to be said are one paragraph. Without --change it is about the changes that are pending now; with it, about\n" +
			"those and the changes named, as if they came to all of these nodes.\n\n" +
			"It reads with your own credential and changes nothing. It needs leave to list nodes and disruptionpolicies.lockkeeper.dev;\n" +
			"with leave to list pods and poddisruptionbudgets.policy, and to get lockkeeper's Lease, it says more.\n\n" +
			"Exit status: 0 when the plan could be made, 1 on errors. With --exit-code also 3: a node would be held.",
		Flags: []urfave.Flag{
			&urfave.StringSliceFlag{Name: "change", Usage: "a `CHANGE` that is to come, may be repeated; one of file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION and request"},
			&urfave.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "the nodes whose labels `SELECTOR` selects, as kubectl has it, instead of all"},
			&urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: text or json", Value: "text"},
			exitCodeFlag(),
			kubeconfigFlag(), configFlag(),
		},
	}
}

func planCommand(c *urfave.Context) error {
	o := cluster.PlanOptions{Node: c.Args().First()}
	format := c.String("output")
	if format != "json" && format != "text" {
		return UsageError("-o %q, expected text or json", format)
	}
	for _, text := range c.StringSlice("change") {
		change, err := forecast.ParseChange(text)
		if err != nil {
			return UsageError("--change %v", err)
		}
		if slices.ContainsFunc(o.Changes, func(other v1alpha1.Change) bool {
			return other.Source == change.Source && other.Name == change.Name
		}) {
			return UsageError("--change %q, expected each change once, and one version of the OS", text)
		}
		o.Changes = append(o.Changes, change)
	}
	if c.IsSet("selector") {
		if o.Node != "" {
			return UsageError("-l selects nodes and %s is one; leave one of them out", o.Node)
		}
		var err error
		if o.Selector, err = labels.Parse(c.String("selector")); err != nil {
			return UsageError("-l %v", err)
		}
	}
	form := report.Form{JSON: format == "json"}
	form.Width, _ = terminalSize(c.App.Writer)
	s, err := source(c)
	if err != nil {
		return err
	}
	f, err := s.Plan(c.Context, o)
	if err != nil {
		return err
	}
	exit, err := report.PrintPlan(c.App.Writer, &f, form)
	return asStatus(c, exit, err)
}
