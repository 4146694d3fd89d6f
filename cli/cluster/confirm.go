package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Confirm confirms a hook of the stage that a node is in, for a user who did the hook's work by
// hand, and prints what it did. The error says why the turn does not wait for the hook. If the
// Node changes meanwhile, Confirm reads it again, but confirms the hook only for the turn that it
// found first.
func (s *Source) Confirm(ctx context.Context, name, hook string, dryRun bool, p Printer) error {
	if err := v1alpha1.ValidateHookName(hook); err != nil {
		return err
	}
	o := Options{Intent: &Intent{Command: "confirm", Verb: "confirm"}, Names: []string{name}, DryRun: dryRun, Printer: p}
	nodes, err := s.nodes(ctx, o)
	if err != nil {
		return o.needs(err)
	}
	first := ""
	return s.each(ctx, o, nodes, func(n *turn.Node) (edit, error) {
		if first != "" && first != n.Turn {
			return edit{}, fmt.Errorf("nothing was confirmed: turn %s of %s ended meanwhile; check the node before you confirm a hook of another turn", first, name)
		}
		first = n.Turn
		if err := awaited(n, hook); err != nil {
			return edit{}, err
		}
		if n.Hooks[hook] == n.Turn {
			return edit{same: true, text: fmt.Sprintf("hook %s is already confirmed for turn %s", hook, n.Turn)}, nil
		}
		text, waits := stillAwaited(n, hook)
		return edit{
			key: v1alpha1.HookAnnotation(hook), value: &n.Turn, final: !waits,
			text: fmt.Sprintf("hook %s of %s is confirmed for turn %s; %s", hook, n.State, n.Turn, text),
		}, nil
	})
}

// awaited returns nil if the turn of a node waits for the hook, or did until the hook was
// confirmed; otherwise why not.
func awaited(n *turn.Node, hook string) error {
	const nothing = "nothing to confirm: "
	switch {
	case !n.InTurn() && n.State == "":
		return fmt.Errorf(nothing+"%s is in no turn and has no state", n.Name)
	case !n.InTurn():
		return fmt.Errorf(nothing+"%s is in no turn, its state is %s", n.Name, n.State)
	case !n.Ours():
		return fmt.Errorf(nothing+"%s is in %s with an unreadable grant, which the coordinator repairs", n.Name, n.State)
	}
	terms := &n.Grant.Terms
	if slices.Contains(hookNames(terms.Hooks(n.State)), hook) {
		return nil
	}
	text := fmt.Sprintf(nothing+"turn %s of %s is in %s", n.Turn, n.Name, n.State)
	switch names := hookNames(terms.Hooks(n.State)); {
	case len(names) > 0:
		text += ", which waits for " + strings.Join(names, ", ")
	case n.State.HookStage():
		text += ", which waits for no hook that is confirmed by an annotation"
	default:
		text += ", which waits for no hooks"
	}
	for _, s := range v1alpha1.States() {
		if s != n.State && slices.Contains(hookNames(terms.Hooks(s)), hook) {
			return fmt.Errorf("%s; %s belongs to %s", text, hook, s)
		}
	}
	return fmt.Errorf("%s; no stage of this turn waits for %s", text, hook)
}

func hookNames(hooks []v1alpha1.Hook) []string {
	var names []string
	for _, h := range hooks {
		names = append(names, h.Name)
	}
	return names
}

// stillAwaited says what else the stage waits for; while it does, the confirmation can be taken
// back. It may name a hook that has timed out, although the coordinator continues without it.
func stillAwaited(n *turn.Node, confirmed string) (text string, waits bool) {
	var others []string
	for _, name := range hookNames(n.Grant.Terms.Hooks(n.State)) {
		if name != confirmed && n.Hooks[name] != n.Turn {
			others = append(others, "hook "+name)
		}
	}
	if n.Host != nil && slices.Contains(n.Host.HookStages, n.State) && !n.HasReport(v1alpha1.ReportDone) {
		others = append(others, "the host's hook units")
	}
	if len(n.Volumes) > 0 && n.State == v1alpha1.StateBeforeReboot && n.Grant.Terms.WaitForVolumeDetach && n.Grant.Drains {
		others = append(others, fmt.Sprintf("volumes to detach (%d)", len(n.Volumes)))
	}
	text = "the stage waits for no other hook"
	if len(others) > 0 {
		text = "the stage still waits for " + strings.Join(others, ", ")
	}
	if n.Grant.PausedSince != nil {
		text += "; the turn is paused and does not continue until it is resumed"
	}
	return text, len(others) > 0
}
