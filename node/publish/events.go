package publish

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/timing"
)

const (
	// eventAgain is the first pause after a failed write of an Event. The pause doubles up to
	// eventLast. After eventFor the Event is dropped, because Kubernetes keeps Events only for
	// an hour.
	eventAgain = 5 * time.Second
	eventLast  = 5 * time.Minute
	eventFor   = time.Hour
	// maxEvents is how many Events may wait to be written: one for each pod of a large node.
	// Further Events are dropped.
	maxEvents = 500
)

// event is an Event about the host's own Node or about one of its pods.
type event struct {
	time  time.Time // when it happened
	about corev1.ObjectReference
	key   string // identifies the Event, also across processes
	doc   v1alpha1.EventDoc
	note  string
	// written, if set, is closed when all Events before this one have been written or dropped.
	// There is no Event then.
	written chan struct{}
}

// Events writes a host's Events one after the other, and repeats failed writes. The host's loop
// does not wait for it.
type Events struct {
	log   *slog.Logger
	node  string // the Node's name
	drain drainEvents
	queue chan *event
	// write tries to write an Event once. It succeeds if the Event exists already.
	write func(context.Context, *event) error
}

// NewEvents returns a writer of Events of the host of the Node of that name. It uses the host's client.
func NewEvents(log *slog.Logger, client *kube.Client, node string) *Events {
	return newEvents(log, node, func(ctx context.Context, e *event) error {
		return kube.WriteHostEvent(ctx, client, node, e.about, e.key, e.time, e.doc, e.note)
	})
}

func newEvents(log *slog.Logger, node string, write func(context.Context, *event) error) *Events {
	return &Events{log: log, node: node, queue: make(chan *event, maxEvents), write: write}
}

// add queues an Event. It does not block.
func (w *Events) add(e *event) {
	select {
	case w.queue <- e:
	default:
		w.log.Warn("dropped an Event, because too many others wait to be written", "reason", e.doc.Reason, "note", e.note)
	}
}

// Run writes until ctx ends.
func (w *Events) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			if e.written != nil {
				close(e.written)
				continue
			}
			w.writeOne(ctx, e)
		}
	}
}

// Flush returns when all queued Events have been written or dropped, or when ctx ends. It may be
// called from any goroutine.
func (w *Events) Flush(ctx context.Context) {
	written := make(chan struct{})
	select {
	case w.queue <- &event{written: written}:
	case <-ctx.Done():
		return
	}
	select {
	case <-written:
	case <-ctx.Done():
	}
}

// writeOne writes an Event, or gives up after eventFor, or if the API server will never accept it.
// The Events behind it would wait as long.
func (w *Events) writeOne(ctx context.Context, e *event) {
	for pause := eventAgain; ; pause = min(2*pause, eventLast) {
		err := w.write(ctx, e)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, kube.ErrEventRefused):
			w.log.Warn("dropped an Event that the API server does not accept", "reason", e.doc.Reason, "note", e.note, "err", err)
			return
		case time.Since(e.time) >= eventFor:
			w.log.Warn("dropped an Event that could not be written for an hour", "reason", e.doc.Reason, "note", e.note, "err", err)
			return
		case pause == eventAgain:
			w.log.Warn("an Event cannot be written; the host tries again", "reason", e.doc.Reason, "err", err)
		}
		if timing.Wait(ctx, nil, timing.Jitter(pause)) != nil {
			return
		}
	}
}
