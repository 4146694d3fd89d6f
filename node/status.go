package node

import (
	"cmp"
	"log/slog"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// transition is what was last logged, so that there is one line for each
// change and none for the rest.
type transition struct {
	any   bool // something was logged
	state v1alpha1.State
	turn  string
	waits v1alpha1.Reason
	wants v1alpha1.Wants
}

// waiting is what the host waits for, and since when.
type waiting struct {
	state  v1alpha1.State
	turn   string
	reason v1alpha1.Reason
	since  time.Time
}

// tell says what the host does: to the journal, once for each change, and to
// whoever shows its status.
func (h *Host) tell(o step.Observation, d step.Decision, apiErr error) {
	n := &o.Node
	rests := d.Read == step.ReadNothing && d.Write == nil
	if rests {
		h.resume(&o, d.Waits)
	}
	h.told = h.record(&o, d)
	if !rests {
		return
	}
	if now := (waiting{state: n.State, turn: n.Turn, reason: d.Waits}); h.since.state != now.state ||
		h.since.turn != now.turn || h.since.reason != now.reason || h.since.since.IsZero() {
		now.since = time.Now()
		h.since = now
	}
	s := h.told
	s.Since = h.since.since
	if t := h.explain(apiErr); t != nil {
		s.API = failure(t)
		if s.Waits == v1alpha1.ReasonNotReady && n.UID == "" && t.Reason != "" {
			s.Waits, s.Detail = t.Reason, ""
		}
		h.logTrouble(t)
	}
	switch {
	case d.Detail == step.ItsTurn:
		s.Activity = local.ActivityQueued
	case d.Do != step.DoNothing:
		s.Activity = local.ActivityWorking
	}
	h.failing = time.Time{}
	h.report(s)
	if h.events != nil {
		h.events.Report(&s)
	}

	if n.UID != "" {
		h.journal(n, transition{any: true, state: n.State, turn: s.Turn, waits: d.Waits, wants: s.Wants}, d.Detail)
	}
}

// record is what an observation and its decision say of the host.
func (h *Host) record(o *step.Observation, d step.Decision) local.Host {
	n := &o.Node
	s := local.Host{
		Node: h.name, BootID: h.self.bootID, OS: h.self.os(),
		Changes: o.Sources.Changes, Plan: o.Sources.Plan, Drains: o.Sources.Drains,
		Waits: d.Waits, Detail: d.Detail,
		Blockers: h.blockers.list(h.blockedBy(o), time.Now()), Drain: h.drainStatus(o), SourcesError: h.sourcesError(o),
	}
	h.describe(&s, n)
	if o.Sources.Complete {
		s.Wants = o.Sources.Wants
	}
	s.Withdrawn = o.Released()
	s.Engine, s.EngineError = h.engineStatus()
	return s
}

// describe puts into s what the Node says.
func (h *Host) describe(s *local.Host, n *turn.Node) {
	s.UID, s.State, s.Cordoned, s.Last = n.UID, n.State, n.Unschedulable, n.Last
	if !n.InTurn() {
		return
	}
	s.Turn = n.Turn
	if !n.Ours() {
		return
	}
	g := n.Grant
	s.TurnSince, s.StageSince = g.StartedAt, g.StageAt
	s.Course = &local.Course{Wants: g.Wants, Drains: g.Drains, Rebooted: g.BootID != h.self.bootID, Result: g.Result, Reason: g.Reason}
	if s.Course.Result == "" && n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed {
		s.Course.Result, s.Course.Reason = v1alpha1.ResultFailed, n.Ack.Reason
	}
}

// journal writes what has changed since it was last called to the journal, one
// entry for each transition.
func (h *Host) journal(n *turn.Node, now transition, detail string) {
	was := h.logged
	if now == was {
		return
	}
	h.logged = now
	attrs := []any{}
	if now.turn != "" {
		attrs = append(attrs, "turn", now.turn)
	}
	if was.turn != "" && was.turn != now.turn {
		h.journalEnd(n, was.turn)
	}
	if now.state != was.state || !was.any {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageStateEntered, "the node is in "+now.state.String(), append(attrs, systemd.StateAttr(now.state))...)
	}
	attrs = append(attrs, "state", now.state.String())
	if now.wants != was.wants {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageWants, "wants "+cmp.Or(string(now.wants), "what is not known yet"), append(attrs, "wants", string(now.wants))...)
	}
	switch {
	case now.waits != "" && (now.waits != was.waits || now.state != was.state || now.turn != was.turn):
		text := "waits: " + string(now.waits)
		if detail != "" {
			text += " (" + detail + ")"
		}
		systemd.LogEvent(h.log, systemd.HeldLevel(now.waits), v1alpha1.MessageHeld, text, append(attrs, systemd.ReasonAttr(now.waits))...)
	case now.waits == "" && was.waits != "" && now.state == was.state && now.turn == was.turn:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageHeldNoMore, "waits no more: "+string(was.waits)+" is over", attrs...)
	}
}

// journalEnd says how a turn ended, as far as the Node tells.
func (h *Host) journalEnd(n *turn.Node, turnID string) {
	l := n.Last
	if l == nil || l.Turn != turnID {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageTurnEnded, "its turn is over; the Node does not say how it ended", "turn", turnID, "state", n.State.String(), "result", "Unknown")
		return
	}
	if h.TurnEnded != nil {
		h.TurnEnded(l.Result)
	}
	systemd.LogTurnEnd(h.log, "its turn", l, "state", n.State.String())
}

// report tells of the host's state, with since when the API server has failed.
func (h *Host) report(s local.Host) {
	if s.API != nil {
		s.API.Since = time.Now().UTC()
		if was := h.apiFailed; was != nil && was.Own == s.API.Own {
			s.API.Since = was.Since
		}
	}
	h.apiFailed = s.API
	if h.hostUpdate != nil {
		h.hostUpdate.Report(s, h.settled)
	}
	if h.conditions != nil {
		now := h.currentSettings()
		h.conditions.Report(s, now.LifecycleConditions && !now.Observe)
	}
	if h.Report != nil {
		h.Report(s)
	}
}

// logWrite logs what this host said.
func (h *Host) logWrite(n *turn.Node, w *step.Write) {
	if w.Ack.Report != "" {
		h.logWord(w.Ack, n.Ack.Turn != w.Ack.Turn)
	}
	switch attrs := []any{"turn", n.Turn, "state", n.State.String()}; {
	case w.Unschedulable == nil:
	case *w.Unschedulable:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageCordoned, "cordoned the node", attrs...)
	default:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageUncordoned, "uncordoned the node", attrs...)
	}
}

// logWord logs a word that was written; first is whether it is the turn's first.
func (h *Host) logWord(a v1alpha1.Ack, first bool) {
	text := "said " + string(a.Report) + " in " + string(a.State)
	attrs := []any{"turn", a.Turn, "state", string(a.State), "word", string(a.Report)}
	if first {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageTurnBegins, "its turn begins in "+string(a.State), "turn", a.Turn, "state", string(a.State))
	}
	switch a.Report {
	case v1alpha1.ReportCommitted:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageCommitted, text, attrs...)
	case v1alpha1.ReportDone:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageStageDone, text, attrs...)
	case v1alpha1.ReportRefused:
		systemd.LogEvent(h.log, slog.LevelWarn, v1alpha1.MessageRefused, text, append(attrs, systemd.ReasonAttr(a.Reason))...)
	case v1alpha1.ReportFailed:
		systemd.LogEvent(h.log, slog.LevelError, v1alpha1.MessageStageFailed, text, append(attrs, systemd.ReasonAttr(a.Reason))...)
	default:
		h.log.Info(text, attrs...)
	}
}
