package node

import (
	"cmp"
	"log/slog"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/publish"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// reportDecision logs what the host does or waits for, once for each change, and passes it to
// everything that shows or publishes the host's status. If the decision asks for a read or a
// write, reportDecision only stores the observation.
func (h *Host) reportDecision(o step.Observation, d step.Decision, apiErr error) {
	n := &o.Node
	rests := d.Read == step.ReadNothing && d.Write == nil
	var resumed time.Time
	if rests {
		resumed = h.resume(&o, d.Waits)
	}
	h.observed = h.record(&o, d)
	if !rests {
		return
	}
	s, last := h.observed, &h.rested
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
	if s.Since = resumed; s.Since.IsZero() {
		if s.Since = last.Since; s.State != last.State || s.Turn != last.Turn || s.Waits != last.Waits || s.Since.IsZero() {
			s.Since = time.Now()
		}
	}
	h.report(s)
	if h.events != nil {
		h.events.Report(&s)
	}
	if h.fleetLock != nil {
		h.fleetLock.Explain(s.Text())
	}
	h.logChanges(n, &s)
	h.rested = s
}

// resume takes over the times that the previous process published, so that the host's wait
// and its blockers keep their start times over a restart. It does so once: when this process
// has read the published HostUpdate, and has either read every source or tried to for
// [publish.FirstReads]. From then on the host publishes. resume ignores the times of another
// boot.
//
// It returns since when the host has waited for the reason waits, or zero if the previous
// process did not publish that wait.
func (h *Host) resume(o *step.Observation, waits v1alpha1.Reason) (since time.Time) {
	n := &o.Node
	if h.settled || h.hostUpdate == nil || n.UID == "" {
		return since
	}
	prev, known := h.hostUpdate.Published()
	if known.IsZero() || !h.readAll(o) && time.Since(known) < publish.FirstReads {
		return since
	}
	h.settled = true
	if prev == nil || string(prev.BootID) != h.self.bootID {
		return since
	}
	turnID := ""
	if prev.Turn != nil {
		turnID = string(prev.Turn.ID)
	}
	if turnID != n.Turn {
		return since
	}
	now := time.Now()
	h.blockers.resume(prev.Blockers, now)
	if string(prev.State) == n.State.String() && string(prev.Waits) == string(waits) && prev.Since != nil && prev.Since.Time.Before(now) {
		since = prev.Since.Time
	}
	return since
}

// readAll reports whether this process has tried to read every source of changes, and knows
// its role in the election.
func (h *Host) readAll(o *step.Observation) bool {
	_, hooks := h.hookUnits.Stages()
	engine := h.Engine == nil || !h.Engine.Latest().At.IsZero()
	return o.Sources.Complete && engine && hooks && h.Coordinator().Role != ""
}

// record returns the host's record for an observation and its decision.
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
	s.Withdrawn, s.Left = o.Released(), o.Left()
	s.Engine, s.EngineError = h.engineStatus()
	return s
}

// describe copies the facts that the Node holds to s.
func (h *Host) describe(s *local.Host, n *turn.Node) {
	s.UID, s.State, s.Cordoned, s.Last = n.UID, n.State, n.Unschedulable, n.Last
	s.Cleared = n.Last != nil && n.Retry == n.Last.Turn
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

// logChanges logs one entry for each transition since the last decision without a read or a
// write.
func (h *Host) logChanges(n *turn.Node, now *local.Host) {
	was := &h.rested
	if was.UID == "" {
		if now.UID == "" {
			return // the Node has not been seen yet
		}
		was = &local.Host{}
	}
	first := was.UID == ""
	var attrs []any
	if now.Turn != "" {
		attrs = append(attrs, "turn", now.Turn)
	}
	if was.Turn != "" && was.Turn != now.Turn {
		h.logTurnEnd(n, was.Turn)
	}
	if now.State != was.State || first {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageStateEntered, "the node is in "+now.State.String(), append(attrs, systemd.StateAttr(now.State))...)
	}
	attrs = append(attrs, "state", now.State.String())
	if now.Wants != was.Wants {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageWants, "wants "+cmp.Or(string(now.Wants), "unknown: not every source has been read yet"), append(attrs, "wants", string(now.Wants))...)
	}
	same := now.State == was.State && now.Turn == was.Turn
	switch {
	case now.Waits != "" && (now.Waits != was.Waits || !same):
		text := "waits: " + string(now.Waits)
		if now.Detail != "" {
			text += " (" + now.Detail + ")"
		}
		systemd.LogEvent(h.log, systemd.HeldLevel(now.Waits), v1alpha1.MessageHeld, text, append(attrs, systemd.ReasonAttr(now.Waits))...)
	case now.Waits == "" && was.Waits != "" && same:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageHeldNoMore, "no longer waits: "+string(was.Waits)+" is over", attrs...)
	}
}

// logTurnEnd logs how a turn ended, if the Node records that.
func (h *Host) logTurnEnd(n *turn.Node, turnID string) {
	l := n.Last
	if l == nil || l.Turn != turnID {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageTurnEnded, "its turn ended; the Node does not record the result", "turn", turnID, "state", n.State.String(), "result", "Unknown")
		return
	}
	if h.TurnEnded != nil {
		h.TurnEnded(l.Result)
	}
	systemd.LogTurnEnd(h.log, "its turn", l, "state", n.State.String())
}

// report passes the host's record to everything that shows or publishes it. It sets the time
// since which requests to the API server have failed.
func (h *Host) report(s local.Host) {
	if s.API != nil {
		s.API.Since = time.Now().UTC()
		if was := h.reported.API; was != nil && was.Local == s.API.Local {
			s.API.Since = was.Since
		}
	}
	h.reported = s
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

// logBlockOff logs that Block is off for the host's next turn, and when it no longer is. The
// Node is in no turn.
func (h *Host) logBlockOff(o *step.Observation) {
	off := o.Blocking.Off && o.Sources.Complete
	switch since := o.Blocking.Since.Format(time.RFC3339); {
	case off && !h.blockOff:
		h.log.Warn("drain.blockTimeout is over, so the next turn evicts pods that block the drain, if the coordinator's policy says so too; until then "+o.Blocking.Pods, "blocked_since", since)
	case !off && h.blockOff:
		h.log.Info("the next turn no longer evicts pods that block the drain")
	}
	h.blockOff = off
}

// logWrite logs what this host has written to its Node.
func (h *Host) logWrite(n *turn.Node, w *step.Write) {
	if w.Ack.Report != "" {
		h.logAck(w.Ack, n.Ack.Turn != w.Ack.Turn)
		if w.Ack.Reason == v1alpha1.ReasonDrainBlocked && h.fresh != nil {
			h.log.Warn("pods that block the drain came after the host had last listed its pods: "+h.fresh.Blocked, "turn", w.Ack.Turn)
		}
	}
	attrs := []any{"turn", n.Turn, "state", n.State.String()}
	for _, x := range v1alpha1.AllExclusions() {
		if value, changed := w.Changes(&x); changed && value != nil {
			h.log.Info("set the "+string(x.Kind)+" "+x.Key+": "+x.Means, attrs...)
		} else if changed {
			h.log.Info("removed the "+string(x.Kind)+" "+x.Key, attrs...)
		}
	}
	switch {
	case w.Unschedulable == nil:
	case *w.Unschedulable:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageCordoned, "cordoned the node", attrs...)
	default:
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageUncordoned, "uncordoned the node", attrs...)
	}
}

// ackEntries holds the level and the kind of the log entry for each report. A report that is
// not in it gets an ordinary entry.
var ackEntries = map[v1alpha1.Report]struct {
	level slog.Level
	kind  v1alpha1.MessageID
}{
	v1alpha1.ReportCommitted: {slog.LevelInfo, v1alpha1.MessageCommitted},
	v1alpha1.ReportDone:      {slog.LevelInfo, v1alpha1.MessageStageDone},
	v1alpha1.ReportRefused:   {slog.LevelWarn, v1alpha1.MessageRefused},
	v1alpha1.ReportFailed:    {slog.LevelError, v1alpha1.MessageStageFailed},
}

// logAck logs an ack that the host has written. first is true for the turn's first ack.
func (h *Host) logAck(a v1alpha1.Ack, first bool) {
	attrs := []any{"turn", a.Turn, "state", string(a.State)}
	if first {
		systemd.LogEvent(h.log, slog.LevelInfo, v1alpha1.MessageTurnBegins, "its turn begins in "+string(a.State), attrs...)
	}
	attrs = append(attrs, "report", string(a.Report))
	if a.Report == v1alpha1.ReportRefused || a.Report == v1alpha1.ReportFailed {
		attrs = append(attrs, systemd.ReasonAttr(a.Reason))
	}
	text := "reported " + string(a.Report) + " in " + string(a.State)
	if e, ok := ackEntries[a.Report]; ok {
		systemd.LogEvent(h.log, e.level, e.kind, text, attrs...)
	} else {
		h.log.Info(text, attrs...)
	}
}
