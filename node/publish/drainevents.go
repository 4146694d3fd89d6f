package publish

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// drainEventAfter is how long a blocker has to block a drain before the host writes an Event.
const drainEventAfter = 10 * time.Minute

// drainClearAfter is how long a drain has to run without a blocker before the host writes an
// Event about that. A drain that starts again finds its blockers within seconds.
const drainClearAfter = time.Minute

// drainEvents determines the Events about a blocked drain: one when a blocker has blocked it for
// a long time, and one when nothing blocks it any more.
type drainEvents struct {
	blocked bool      // the last Event reported a blocked drain
	turn    string    // the turn of that drain
	clear   time.Time // since when the drain has run without a blocker
	since   time.Time // since when the drain has been blocked, or unblocked, as the last Event reported
}

// next returns the reason and the note of the Event that is due, or "" if none is.
func (e *drainEvents) next(s *local.Host, now time.Time) (reason, note string) {
	var blocked []v1alpha1.Blocker
	for _, b := range s.Blockers {
		if b.Pod != "" && s.Drain != nil { // before a turn, pods that block hold the grant, and no drain
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
	case len(blocked) == 0 && e.blocked && over:
		e.blocked, e.since = false, now
		return v1alpha1.EventDrainUnblocked, "nothing blocks the drain any more; the node is " + s.State.String()
	case len(blocked) == 0 || e.blocked || now.Sub(blocked[0].Since.Time) < drainEventAfter:
		return "", ""
	}
	e.turn = s.Turn
	e.blocked = true
	b := blocked[0]
	e.since = b.Since.Time
	note = fmt.Sprintf("turn %s: %s %s has blocked pod %s since %s: %s", s.Turn, b.Kind, b.Name, b.Pod, b.Since.UTC().Format(time.RFC3339), b.Message)
	if more := len(blocked) - 1; more > 0 {
		note += fmt.Sprintf("; and %d more", more)
	}
	return v1alpha1.EventDrainDelayed, note
}

// Report updates the host's record, and queues the Event that is due.
func (w *Events) Report(s *local.Host) {
	now := time.Now()
	reason, note := w.drain.next(s, now)
	d, ok := v1alpha1.EventOf(reason)
	if !ok {
		return
	}
	w.log.Info("writing an Event", "reason", reason, "note", note)
	key := fmt.Sprintf("%s %s %d", s.Turn, reason, w.drain.since.Unix())
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: types.UID(s.UID)}
	w.add(&event{time: now, about: node, key: key, doc: d, note: note})
}

// Deleted queues the Event about a pod of the node that a forced drain deleted, with the API server's refusal to evict
// it. It may be called from any goroutine.
func (w *Events) Deleted(turn string, pod corev1.ObjectReference, refusal string) {
	d, _ := v1alpha1.EventOf(v1alpha1.EventDrainForced)
	note := fmt.Sprintf("turn %s of node %s deleted the pod, because the drain is overdue and the eviction was refused: %s", turn, w.node, refusal)
	w.add(&event{time: time.Now(), about: pod, key: turn + " " + d.Reason, doc: d, note: note})
}
