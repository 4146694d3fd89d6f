package cli

import (
	"slices"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
)

// plan is `lockkeeper plan`.
func plan() *urfave.Command {
	return &urfave.Command{
		Name: "plan", ArgsUsage: "[NODE]", Usage: "Show what changes would cost, and when, before they happen", Action: planCommand,
		Description: "For each node, shows which rule decides what a change costs and why, the plan, the pods that a drain would evict, " +
			"the PodDisruptionBudgets that would block that now, the stages of the turn, what would hold the node now, and how many " +
			"nodes are ahead of it. Nodes with the same result share one paragraph.\n\n" +
			"Without --change, the plan covers the changes that are pending now. With --change, it also covers the changes that you " +
			"name, as if they arrived on all of these nodes.\n\n" +
			"The command uses your own credential and changes nothing. The credential must be allowed to list nodes and " +
			"disruptionpolicies.lockkeeper.dev. The plan shows more if it may also list pods and poddisruptionbudgets.policy, and get " +
			"lockkeeper's Lease." + seeExitStatus,
		Flags: slices.Concat([]urfave.Flag{
			&urfave.StringSliceFlag{Name: "change", Usage: "plan for this `CHANGE` too (repeatable); one of " + forecast.ChangeForms},
			selectorFlag(), exitCodeFlag(),
		}, outputFlags(report.Text, report.Table, report.JSON, report.YAML), ConnectionFlags()),
	}
}

func planCommand(c *urfave.Context) error {
	var changes []v1alpha1.Change
	for _, text := range c.StringSlice("change") {
		change, err := forecast.ParseChange(text)
		if err != nil {
			return UsageError("--change %v", err)
		}
		if slices.ContainsFunc(changes, func(other v1alpha1.Change) bool {
			return other.Source == change.Source && other.Name == change.Name
		}) {
			return UsageError("--change %q, expected each change once, and only one OS version", text)
		}
		changes = append(changes, change)
	}
	s, err := reportSource(c)
	if err != nil {
		return err
	}
	f, err := s.Plan(c.Context, changes)
	if err != nil {
		return err
	}
	exit, err := report.PrintPlan(c.App.Writer, &f, form(c))
	return asStatus(c, exit, err)
}
