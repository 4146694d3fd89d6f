package cluster

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// MaxReason bounds a reason, in bytes.
const MaxReason = v1alpha1.MaxRequestReason

// Intent is a command that sets one key on nodes or removes it. The texts follow the name of
// the node.
type Intent struct {
	// Command is the name of the command, such as pause. Undo is the command that takes it back
	// on a node on which the key was not set; "" if there is none.
	Command, Undo string
	// Key is the annotation, or the label if Label is set. Verb is the verb on
	// nodes.lockkeeper.dev that changing it needs.
	Key, Verb string
	Label     bool
	// HasReason, HasUntil and HasForce report which members the payload can have. NeedsReason
	// requires a reason for more than one node.
	HasReason, HasUntil, HasForce, NeedsReason bool
	// Cluster reports whether the command can change the emergency stop.
	Cluster bool
	// Now is what --now does instead; nil if the command does not have --now.
	Now *Intent
	// NamesOnly: the command accepts names of nodes, and no selector or policy.
	NamesOnly bool

	edit editor
}

// editor decides what a command with the payload p writes to the key of a node. The error says
// why the command does not apply to the node.
type editor func(n *turn.Node, p *v1alpha1.Intent) (edit, error)

// edit is what a command does to one key of a node.
type edit struct {
	key   string
	label bool    // key is a label, not an annotation
	value *string // nil removes the key
	same  bool    // nothing is written
	final bool    // it cannot be undone
	text  string  // what the write does, or why nothing is written, without a period
}

// Intents are the commands in the order of the help.
var Intents = []Intent{
	{
		Command: "pause", Undo: "resume", Key: v1alpha1.AnnotationPaused, Verb: "pause", Cluster: true, HasReason: true, HasUntil: true, NeedsReason: true,
		edit: payload("already paused", func(n *turn.Node) *v1alpha1.Intent { return n.Paused }, func(n *turn.Node, _ bool) string {
			if n.InTurn() {
				return fmt.Sprintf("paused in %s; its turn goes no further and keeps its slot", n.State)
			}
			return "paused; it gets no turn"
		}),
	},
	{
		Command: "resume", Key: v1alpha1.AnnotationPaused, Verb: "pause", Cluster: true,
		edit: remove("resumed", "not paused", func(n *turn.Node) *v1alpha1.Intent { return n.Paused }),
	},
	{
		Command: "detach", Undo: "attach", Key: v1alpha1.AnnotationDetached, Verb: "detach", HasReason: true, HasUntil: true, NeedsReason: true, HasForce: true,
		edit: payload("already detached", func(n *turn.Node) *v1alpha1.Intent { return n.Detached }, func(n *turn.Node, force bool) string {
			switch {
			case force:
				return "detached with force; lockkeeper releases it at once and leaves its cordon, unless a reboot or an apply is committed"
			case n.Paused != nil:
				return "detached, but paused; lockkeeper releases it when the pause ends"
			}
			return "detached; " + released(n)
		}),
	},
	{
		Command: "attach", Key: v1alpha1.AnnotationDetached, Verb: "detach",
		edit: remove("attached; lockkeeper starts over from what it finds there", "not detached", func(n *turn.Node) *v1alpha1.Intent { return n.Detached }),
	},
	{Command: "manage", Key: v1alpha1.LabelManaged, Label: true, Verb: "manage", edit: managed(true)},
	{Command: "unmanage", Key: v1alpha1.LabelManaged, Label: true, Verb: "manage", edit: managed(false)},
	{
		Command: "request", Key: v1alpha1.AnnotationRequest, Verb: "request", HasReason: true, edit: request(false),
		Now: &Intent{Command: "request", Key: v1alpha1.AnnotationRequestNow, Verb: "request-now", HasReason: true, edit: request(true)},
	},
	{
		Command: "retry", Key: v1alpha1.AnnotationRetry, Verb: "retry", NamesOnly: true,
		edit: func(n *turn.Node, _ *v1alpha1.Intent) (edit, error) {
			id, text, err := clearable(n)
			if err == nil && n.Retry == id {
				return edit{same: true, text: fmt.Sprintf("turn %s is already cleared", page.Cell(id))}, nil
			}
			return edit{value: &id, text: text}, err
		},
	},
}

// payload sets an annotation whose value is an Intent. It changes nothing if the node has the
// same one already, no matter who set it. A command without a reason accepts any reason.
func payload(already string, current func(*turn.Node) *v1alpha1.Intent, text func(n *turn.Node, force bool) string) editor {
	return func(n *turn.Node, p *v1alpha1.Intent) (edit, error) {
		if c := current(n); c != nil && (p.Reason == "" || p.Reason == c.Reason) && p.Force == c.Force && sameTime(p.Until, c.Until) {
			return edit{same: true, text: already + describe(c)}, nil
		}
		end := ""
		if p.Until != nil {
			end = ", until " + p.Until.Format(time.RFC3339)
		}
		return edit{value: new(v1alpha1.FormatRecord(p)), text: text(n, p.Force) + end}, nil
	}
}

// remove removes an annotation.
func remove(text, not string, current func(*turn.Node) *v1alpha1.Intent) editor {
	return func(n *turn.Node, _ *v1alpha1.Intent) (edit, error) {
		if current(n) == nil {
			return edit{same: true, text: not}, nil
		}
		return edit{text: text}, nil
	}
}

// managed sets the label.
func managed(to bool) editor {
	return func(n *turn.Node, _ *v1alpha1.Intent) (edit, error) {
		value := fmt.Sprint(to)
		switch {
		case n.Labels[v1alpha1.LabelManaged] == value:
			return edit{same: true, text: "already labeled " + v1alpha1.LabelManaged + "=" + value}, nil
		case to:
			return edit{value: &value, text: "managed, whatever managed_by_default in its host's file says"}, nil
		}
		text := "no longer managed; " + released(n)
		if n.Paused != nil {
			text += "; its pause no longer applies"
		}
		return edit{value: &value, text: text}, nil
	}
}

// request requests a reboot. A request that waits for nothing includes one that waits.
func request(now bool) editor {
	return func(n *turn.Node, p *v1alpha1.Intent) (edit, error) {
		if r := n.Request; r != nil && (r.Now || !now) && (p.Reason == "" || p.Reason == r.Reason) {
			return edit{same: true, text: "a reboot is already requested"}, nil
		}
		text := "a reboot is requested; it takes a turn like any other change"
		if now {
			text = "a reboot is requested; its turn does not wait for windows, blackouts, gates or settle"
		}
		return edit{value: new(v1alpha1.FormatRecord(v1alpha1.Request{Action: "reboot", Reason: p.Reason, By: p.By})), text: text}, nil
	}
}

// released says what happens to a node that is taken out of lockkeeper's care.
func released(n *turn.Node) string {
	if n.InTurn() {
		return fmt.Sprintf("its turn in %s is backed out, or finished if a reboot or an apply is committed, and then lockkeeper releases it", n.State)
	}
	return "lockkeeper releases it"
}

// describe adds the payload of an intent to a text.
func describe(i *v1alpha1.Intent) string {
	text := ""
	if i.By != "" {
		text += " by " + quoteText(i.By)
	}
	if i.Until != nil {
		text += " until " + i.Until.Format(time.RFC3339)
	}
	if i.Reason != "" {
		text += ": " + quoteText(i.Reason)
	}
	return text
}

func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

// clearable returns the turn of the node that a retry clears, and what happens then. The error
// says why there is none.
func clearable(n *turn.Node) (id, text string, err error) {
	if !n.InTurn() {
		l := n.Last
		switch {
		case l == nil:
			return "", "", fmt.Errorf("nothing to retry: %s has had no turn", n.Name)
		case n.Held == v1alpha1.ReasonTurnLimit:
			return l.Turn, "the node may get another turn, although it has reached its policy's maxTurnsPerDay", nil
		case l.Result != v1alpha1.ResultFailed && l.Result != v1alpha1.ResultBackedOut:
			return "", "", fmt.Errorf("nothing to retry: the last turn of %s ended as %s; only Failed and BackedOut hold a node", n.Name, l.Result)
		}
		return l.Turn, fmt.Sprintf("turn %s, which ended as %s (%s), is cleared; the node may get another turn",
			page.Cell(l.Turn), l.Result, page.Cell(string(l.Reason))), nil
	}
	failed := n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
	held, stopped := n.Held == v1alpha1.ReasonFailed || n.Held == v1alpha1.ReasonOverdue, ""
	if g := n.Grant; n.Ours() && g.PausedSince != nil {
		// A pause or stop replaces the reason of a turn that was overdue before, and still counts as failed.
		held = held || !n.HasReport(v1alpha1.ReportDone) && g.PausedSince.Sub(g.StageAt)-g.PausedFor.Duration >= g.Terms.Limit(n.State)
		stopped = "; the turn is paused and does not continue until it is resumed"
	}
	switch {
	case !n.Ours():
		return "", "", fmt.Errorf("nothing to retry: %s is in %s with an unreadable grant, which the coordinator repairs", n.Name, n.State)
	case failed && n.State == v1alpha1.StateBeforeUncordon:
		return n.Turn, fmt.Sprintf("turn %s: the host now runs its hook units of before-uncordon again; it repeats them at least every 10 minutes without a retry", n.Turn), nil
	case n.Grant.Result == v1alpha1.ResultFailed:
	case n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying:
		return "", "", fmt.Errorf("nothing to retry: %s is in %s, and retry only ends turns that failed in rebooting or applying", n.Name, n.State)
	case !failed && !held:
		return "", "", fmt.Errorf("nothing to retry: the turn of %s is in %s and has not failed", n.Name, n.State)
	case !failed && n.State == v1alpha1.StateRebooting && !n.Rebooted():
		return n.Turn, fmt.Sprintf("turn %s is cleared and no longer counts as failed. It ends when the host reports from a new boot; the reboot may still happen%s", n.Turn, stopped), nil
	}
	return n.Turn, fmt.Sprintf("turn %s is cleared: the coordinator ends it and returns the node to the cluster%s", n.Turn, stopped), nil
}
