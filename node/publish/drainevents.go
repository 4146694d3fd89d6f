package publish

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// drainToldAfter is how long something has to block a drain before there is an Event about it.
const drainToldAfter = 10 * time.Minute

// drainClearAfter is how long a drain has to run without a blocker before there is an Event about
// that. A drain that starts again has its blockers within seconds.
const drainClearAfter = time.Minute

// drainEvents returns the Events about a blocked drain: one when something has blocked it for a
// long time, and one when nothing blocks it any more.
type drainEvents struct {
	told  bool      // the last Event says that the drain is blocked
	turn  string    // which turn's drain that is
	clear time.Time // since when the drain has run and nothing has blocked it
	since time.Time // since when what the last Event says has been so
}

// next returns the reason and the note of the Event that is due, "" for none.
func (e *drainEvents) next(s *local.Host, now time.Time) (reason, note string) {
	var blocked []v1alpha1.Blocker
	for _, b := range s.Blockers {
		if b.Pod != "" {
			blocked = append(blocked, b)
		}
	}
	drains := s.State == v1alpha1.StateDraining && s.Turn == e.turn
	if runs := s.Drain != nil && len(blocked) == 0; !runs {
		e.clear = time.Time{}
	} else if e.clear.IsZero() {
		e.clear = now
	}
	switch over := !drains || !e.clear.IsZero() && now.Sub(e.clear) >= drainClearAfter; {
	case len(blocked) == 0 && e.told && over:
		e.told, e.since = false, now
		return v1alpha1.EventDrainUnblocked, "nothing blocks the drain any more; the node is " + s.State.String()
	case len(blocked) == 0 || e.told || now.Sub(blocked[0].Since.Time) < drainToldAfter:
		return "", ""
	}
	e.turn = s.Turn
	e.told = true
	b := blocked[0]
	e.since = b.Since.Time
	note = fmt.Sprintf("turn %s: %s %s has blocked pod %s since %s: %s", s.Turn, b.Kind, b.Name, b.Pod, b.Since.UTC().Format(time.RFC3339), b.Message)
	if more := len(blocked) - 1; more > 0 {
		note += fmt.Sprintf("; and %d more", more)
	}
	return v1alpha1.EventDrainBlocked, note
}

// Report passes the host's record, and queues the Event that is due.
func (w *Events) Report(s *local.Host) {
	now := time.Now()
	reason, note := w.drain.next(s, now)
	d, ok := v1alpha1.EventOf(reason)
	if !ok {
		return
	}
	w.log.Info("writing an Event", "reason", reason, "note", note)
	key := fmt.Sprintf("%s %s %d", s.Turn, reason, w.drain.since.Unix())
	w.add(event{time: now, node: s.Node, uid: s.UID, key: key, doc: d, note: note})
}
