package node

import (
	"context"
	"log/slog"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// eventAgain is the first pause after an Event could not be written; it doubles up
	// to eventLast. After eventFor the Event is dropped: Kubernetes keeps Events for an
	// hour, and nobody looks for an older one.
	eventAgain = 5 * time.Second
	eventLast  = 5 * time.Minute
	eventFor   = time.Hour
	// maxEvents is how many Events may wait to be written; more are dropped.
	maxEvents = 8
)

// hostEvent is an Event about the host's own Node.
type hostEvent struct {
	time      time.Time // when it happened
	node, uid string    // of the Node
	key       string    // the same for the same Event, also of another process
	doc       v1alpha1.EventDoc
	note      string
}

// eventWriter writes a host's Events, one after the other, and repeats what fails. The
// host's loop waits for none of it.
type eventWriter struct {
	log   *slog.Logger
	queue chan hostEvent
	// write writes an Event once. Of an Event that is there already it reports success.
	write func(context.Context, *hostEvent) error
}

func newEventWriter(log *slog.Logger, write func(context.Context, *hostEvent) error) *eventWriter {
	return &eventWriter{log: log, queue: make(chan hostEvent, maxEvents), write: write}
}

// add has an Event written. It does not block.
func (w *eventWriter) add(e hostEvent) {
	select {
	case w.queue <- e:
	default:
		w.log.Warn("an Event is not written, because others wait to be written", "reason", e.doc.Reason, "note", e.note)
	}
}

// run writes until ctx ends.
func (w *eventWriter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			w.writeOne(ctx, &e)
		}
	}
}

// writeOne writes an Event, or gives up after eventFor.
func (w *eventWriter) writeOne(ctx context.Context, e *hostEvent) {
	for pause := eventAgain; ; pause = min(2*pause, eventLast) {
		err := w.write(ctx, e)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case time.Since(e.time) >= eventFor:
			w.log.Warn("an Event is not written; it is too old by now", "reason", e.doc.Reason, "note", e.note, "err", err)
			return
		case pause == eventAgain:
			w.log.Warn("an Event cannot be written; the host tries again", "reason", e.doc.Reason, "err", err)
		}
		if wait(ctx, nil, jitter(pause)) != nil {
			return
		}
	}
}
