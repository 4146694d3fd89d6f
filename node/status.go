package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// transition is what was last logged, so that there is one line for each
// change and none for the rest.
type transition struct {
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
func (h *Host) tell(o turn.Observation, d turn.Decision, apiErr error) {
	n := &o.Node
	if d.Read != turn.ReadNothing || d.Write != nil {
		return // not at rest yet
	}
	if now := (waiting{state: n.State, turn: n.Turn, reason: d.Waits}); h.since.state != now.state ||
		h.since.turn != now.turn || h.since.reason != now.reason || h.since.since.IsZero() {
		now.since = time.Now()
		h.since = now
	}
	s := Status{
		Node: h.name, BootID: h.self.bootID, State: n.State, Turn: n.Turn,
		Wants: o.Sources.Wants, Known: o.Sources.Complete, Changes: o.Sources.Changes,
		Waits: d.Waits, Detail: d.Detail, Since: h.since.since,
	}
	if !n.InTurn() {
		s.Turn = ""
	}
	if apiErr != nil {
		s.APIError = apiErr.Error()
	}
	verb := "waits for "
	if d.Do != turn.DoNothing {
		verb = "at work on "
	}
	s.Line = line(&s, verb)
	h.told, h.failing = s, time.Time{}
	h.report(s)

	now := transition{n.State, s.Turn, d.Waits, o.Sources.Wants}
	if now == h.logged || n.UID == "" {
		return
	}
	h.logged = now
	attrs := []any{"state", n.State.String(), "wants", string(o.Sources.Wants)}
	if s.Turn != "" {
		attrs = append(attrs, "turn", s.Turn)
	}
	if d.Waits != "" {
		attrs = append(attrs, "reason", string(d.Waits))
	}
	h.log.Info(s.Line, attrs...)
}

func (h *Host) report(s Status) {
	if s.Line == "" {
		s.Line = line(&s, "waits for ")
	}
	if h.Report != nil {
		h.Report(s)
	}
}

// hostError is a failure on this host, not at the API server.
type hostError struct{ error }

func (e hostError) Unwrap() error { return e.error }

// trouble reports a failure of the loop itself. What was known before stands,
// as far as the Node is still the same.
func (h *Host) trouble(reason v1alpha1.Reason, err error) {
	s := Status{Node: h.name, BootID: h.self.bootID, Waits: reason, Since: time.Now()}
	if n := h.facts(); n != nil {
		s.State = n.State
		if n.InTurn() {
			s.Turn = n.Turn
		}
	}
	if last := h.told; last.State == s.State && last.Turn == s.Turn {
		s.Wants, s.Known, s.Changes = last.Wants, last.Known, last.Changes
	}
	if _, own := errors.AsType[hostError](err); own {
		s.Detail = err.Error()
	} else {
		s.APIError = err.Error()
	}
	if h.failing.IsZero() {
		h.failing = s.Since
	}
	s.Since = h.failing
	s.Line = line(&s, "cannot go on for now: ")
	h.report(s)
}

// line is the status in one line, as `systemctl status` shows it. verb says
// what the detail is of a host that waits for no reason of the protocol's.
func line(s *Status, verb string) string {
	var b strings.Builder
	switch {
	case s.State == v1alpha1.StateAbsent && s.Node == "":
		b.WriteString("starting")
	case s.State == v1alpha1.StateAbsent:
		b.WriteString("not in any coordinator's care")
	case s.State.InTurn():
		fmt.Fprintf(&b, "%s (turn %s)", s.State, s.Turn)
	default:
		b.WriteString(s.State.String())
	}
	switch {
	case !s.Known:
	case s.Wants.Something():
		names := make([]string, 0, len(s.Changes))
		for _, c := range s.Changes {
			names = append(names, c.String())
		}
		fmt.Fprintf(&b, "; wants %s for %s", s.Wants, strings.Join(names, ", "))
	case !s.State.InTurn():
		b.WriteString("; up to date")
	}
	switch {
	case s.Waits != "" && s.Detail != "":
		fmt.Fprintf(&b, "; waits: %s (%s) since %s", s.Waits, s.Detail, s.Since.UTC().Format(time.TimeOnly))
	case s.Waits != "":
		fmt.Fprintf(&b, "; waits: %s since %s", s.Waits, s.Since.UTC().Format(time.TimeOnly))
	case s.Detail != "" && s.Detail != "waits for its turn":
		b.WriteString("; " + verb + s.Detail)
	case s.Detail != "":
		b.WriteString("; " + s.Detail)
	}
	if s.APIError != "" {
		fmt.Fprintf(&b, "; trouble with the API server: %s", s.APIError)
	}
	return b.String()
}

// logWrite logs what this host said.
func (h *Host) logWrite(n *turn.Node, w *turn.Write) {
	if w.Ack.Word != "" {
		attrs := []any{"turn", w.Ack.Turn, "state", string(w.Ack.State), "word", string(w.Ack.Word)}
		if w.Ack.Reason != "" {
			attrs = append(attrs, "reason", string(w.Ack.Reason))
		}
		h.log.Info("said "+string(w.Ack.Word)+" in "+string(w.Ack.State), attrs...)
	}
	if w.Unschedulable != nil {
		act := "uncordoned the node"
		if *w.Unschedulable {
			act = "cordoned the node"
		}
		h.log.Info(act, "turn", n.Turn)
	}
}
