package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Confirm confirms a hook of the stage that a node is in, for a person who did
// the hook's work by hand. It returns what to tell them, and refuses a hook that
// the turn does not wait for. A Node that changes meanwhile is looked at again,
// but a confirmation is for the turn that was found first and for no other.
func (s *Source) Confirm(ctx context.Context, name, hook string) (string, error) {
	if err := v1alpha1.ValidateHookName(hook); err != nil {
		return "", err
	}
	meant := ""
	for try := 1; ; try++ {
		node, err := s.node(ctx, name)
		if err != nil {
			return "", err
		}
		f := turn.FromNode(node)
		switch {
		case meant == "":
			meant = f.Turn
		case meant != f.Turn:
			return "", fmt.Errorf("nothing was confirmed: turn %s of %s ended meanwhile; look at the node again before you confirm anything of another turn", meant, name)
		}
		if err := awaited(&f, hook); err != nil {
			return "", err
		}
		key := v1alpha1.HookAnnotation(hook)
		if f.Hooks[hook] == f.Turn {
			return fmt.Sprintf("%s: hook %s is confirmed already for turn %s, nothing changed.\n%s", name, hook, f.Turn, stillAwaited(&f, hook)), nil
		}
		_, outcome, err := kube.Write(ctx, s.Client, kube.Patch{
			Node: name, ResourceVersion: f.ResourceVersion, Manager: kube.FieldManager("admin"),
			Annotations: map[string]*string{key: &f.Turn},
		})
		switch {
		case outcome == kube.Written:
			return fmt.Sprintf("%s: hook %s of %s is confirmed for turn %s.\n%s", name, hook, f.State, f.Turn, stillAwaited(&f, hook)), nil
		case outcome == kube.Conflict && try < retries:
			continue // it is another version: look again whether this is still meant
		case outcome == kube.Unknown:
			return "", fmt.Errorf("%w; whether it was written is not known, and saying it again does no harm", err)
		}
		return "", err
	}
}

// awaited says why the turn of a node does not wait for the hook, or nil. One
// that has confirmed is among those that are waited for.
func awaited(n *turn.Node, hook string) error {
	const nothing = "nothing to confirm: "
	switch {
	case !n.InTurn() && n.State == "":
		return fmt.Errorf(nothing+"%s is in no turn, and in no coordinator's care", n.Name)
	case !n.InTurn():
		return fmt.Errorf(nothing+"%s is in no turn, but in %s", n.Name, n.State)
	case !n.Ours():
		return fmt.Errorf(nothing+"%s is in %s under a grant that cannot be read, which the coordinator mends", n.Name, n.State)
	}
	terms := &n.Grant.Terms
	if slices.Contains(hookNames(terms.Hooks(n.State)), hook) {
		return nil
	}
	text := fmt.Sprintf(nothing+"turn %s of %s is in %s", n.Turn, n.Name, n.State)
	switch names := hookNames(terms.Hooks(n.State)); {
	case len(names) > 0:
		text += ", which awaits " + strings.Join(names, ", ")
	case n.State.HookStage():
		text += ", which awaits no hook that confirms by an annotation"
	default:
		text += ", which awaits no hooks"
	}
	for _, s := range v1alpha1.States() {
		if s != n.State && slices.Contains(hookNames(terms.Hooks(s)), hook) {
			return fmt.Errorf("%s; %s is of %s", text, hook, s)
		}
	}
	return fmt.Errorf("%s; this turn awaits %s nowhere", text, hook)
}

func hookNames(hooks []v1alpha1.Hook) []string {
	var names []string
	for _, h := range hooks {
		names = append(names, h.Name)
	}
	return names
}

// stillAwaited says what else the stage waits for besides the hook that has
// confirmed, and how to take that back while there is something. A hook whose
// time is over may be named although the coordinator goes on without it.
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
		text = "The turn is paused, and goes nowhere until it is resumed.\n"
	}
	if len(others) == 0 {
		return text + "No other hook is awaited.\n"
	}
	return fmt.Sprintf("%sStill awaited: %s.\nUndo it with: kubectl annotate node %s %s-\n", text, strings.Join(others, ", "), n.Name, v1alpha1.HookAnnotation(confirmed))
}
