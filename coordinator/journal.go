package coordinator

import (
	"cmp"
	"fmt"
	"log/slog"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// logWrite logs a decision that was written, one entry each.
func (l *leader) logWrite(n *turn.Node, v *rollout.Verdict, turnID string) {
	attrs := []any{"node", n.Name}
	m := v.Move
	if m == nil || m.From == m.To && n.Held != v.Held {
		l.logHeld(n, v)
		return
	}
	turnID = cmp.Or(turnID, n.Turn)
	text := fmt.Sprintf("%s: %s -> %s (%s)", n.Name, m.From, m.To, cmp.Or(string(m.On), "mended"))
	if m.Last != nil && m.From.InTurn() && !m.To.InTurn() {
		systemd.LogTurnEnd(l.log, text+"; the turn", m.Last, append(attrs, "state", m.To.String())...)
		return
	}
	if turnID != "" {
		attrs = append(attrs, "turn", turnID)
	}
	if m.Reason != "" {
		attrs = append(attrs, "reason", string(m.Reason))
	}
	switch {
	case m.From == m.To:
		l.log.Info(fmt.Sprintf("%s: %s, record renewed", n.Name, m.To), append(attrs, "state", m.To.String())...)
	case m.On == turn.Granted:
		systemd.LogEvent(l.log, slog.LevelInfo, v1alpha1.MessageGranted, text, append(attrs, "state", m.To.String())...)
	default:
		systemd.LogEvent(l.log, slog.LevelInfo, v1alpha1.MessageStateEntered, text, append(attrs, systemd.StateAttr(m.To))...)
	}
}

// logHeld logs that a node is held by another reason than before, or by none.
func (l *leader) logHeld(n *turn.Node, v *rollout.Verdict) {
	attrs := []any{"node", n.Name, "state", n.State.String()}
	if n.Turn != "" && n.InTurn() {
		attrs = append(attrs, "turn", n.Turn)
	}
	if v.Held == "" {
		systemd.LogEvent(l.log, slog.LevelInfo, v1alpha1.MessageHeldNoMore, n.Name+": held no more", attrs...)
		return
	}
	if v.Detail != "" {
		attrs = append(attrs, "detail", v.Detail)
	}
	systemd.LogEvent(l.log, systemd.HeldLevel(v.Held), v1alpha1.MessageHeld, fmt.Sprintf("%s: held=%s", n.Name, v.Held), append(attrs, systemd.ReasonAttr(v.Held))...)
}

// logStop logs when the emergency stop comes and goes.
func (l *leader) logStop(before, now *coordinationv1.Lease) {
	stop := func(lease *coordinationv1.Lease) (text string, stopped bool) {
		if lease == nil {
			return "there is no Lease", true
		}
		text, stopped = lease.Annotations[v1alpha1.AnnotationStop]
		return text, stopped
	}
	was, wasStopped := stop(before)
	text, stopped := stop(now)
	switch {
	case stopped && (!wasStopped || was != text):
		systemd.LogEvent(l.log, slog.LevelWarn, v1alpha1.MessageStopped, "the emergency stop is set: "+text, "node", l.self, "why", text)
	case before != nil && wasStopped && !stopped:
		systemd.LogEvent(l.log, slog.LevelInfo, v1alpha1.MessageStopOver, "the emergency stop is over", "node", l.self)
	}
}
