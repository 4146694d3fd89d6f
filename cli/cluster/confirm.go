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
// hand. It returns what to print, and an error if the turn does not wait for the hook. If the
// Node changes meanwhile, Confirm reads it again, but confirms the hook only for the turn that it
// found first.
func (s *Source) Confirm(ctx context.Context, name, hook string) (string, error) {
	if err := v1alpha1.ValidateHookName(hook); err != nil {
		return "", err
	}
	first := ""
	return s.annotateNode(ctx, name, func(n *turn.Node) (key, value, text string, err error) {
		if first != "" && first != n.Turn {
			return "", "", "", fmt.Errorf("nothing was confirmed: turn %s of %s ended meanwhile; check the node before you confirm a hook of another turn", first, name)
		}
		first = n.Turn
		if err := awaited(n, hook); err != nil {
			return "", "", "", err
		}
		if n.Hooks[hook] == n.Turn {
			return "", "", fmt.Sprintf("%s: hook %s is already confirmed for turn %s, nothing changed.\n%s", name, hook, n.Turn, stillAwaited(n, hook)), nil
		}
		return v1alpha1.HookAnnotation(hook), n.Turn,
			fmt.Sprintf("%s: hook %s of %s is confirmed for turn %s.\n%s", name, hook, n.State, n.Turn, stillAwaited(n, hook)), nil
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

// stillAwaited says what else the stage waits for, and how to take the confirmation back while
// it waits. It may name a hook that has timed out, although the coordinator continues without it.
func stillAwaited(n *turn.Node, confirmed string) string {
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
	text := ""
	if n.Grant.PausedSince != nil {
		text = "The turn is paused and does not continue until it is resumed.\n"
	}
	if len(others) == 0 {
		return text + "The stage waits for no other hook.\n"
	}
	return fmt.Sprintf("%sThe stage still waits for: %s.\nTo undo: kubectl annotate node %s %s-\n", text, strings.Join(others, ", "), n.Name, v1alpha1.HookAnnotation(confirmed))
}
