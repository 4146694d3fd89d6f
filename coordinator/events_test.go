package coordinator

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// written is what an API server was asked for.
type written struct {
	event *eventsv1.Event
	patch string // "" for a new Event
}

// fakeSink keeps what it is given.
type fakeSink chan written

func (s fakeSink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), ""}
	return e, nil
}

func (s fakeSink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), "update"}
	return e, nil
}

func (s fakeSink) Patch(_ context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), string(data)}
	return e, nil
}

func (s fakeSink) next(t *testing.T) written {
	t.Helper()
	select {
	case w := <-s:
		return w
	case <-time.After(time.Minute):
		t.Fatal("no Event was written")
		return written{}
	}
}

// Another turn's Event, or another cause's, is one of its own; the same note again is counted.
func TestSeriesAreOfOneNote(t *testing.T) {
	sink := make(fakeSink, 10)
	e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a", UID: "uid-a"}
	for _, note := range []string{"turn 1 begins", "turn 2 begins", strings.Repeat("x", maxNote+100)} {
		e.tell(about, v1alpha1.EventGranted, note)
		w := sink.next(t)
		if w.patch != "" || len(note) <= maxNote && w.event.Note != note || len(w.event.Note) > 1024 {
			t.Errorf("%q is told as %q, patch %q", note, w.event.Note, w.patch)
		}
		if w.event.Related != nil || w.event.Regarding != *about || w.event.Namespace != "default" || w.event.Reason != "Granted" || w.event.Action != "Grant" {
			t.Errorf("the Event is %v", w.event)
		}
	}
	e.tell(about, v1alpha1.EventGranted, "turn 1 begins")
	if w := sink.next(t); w.event.Note != "turn 1 begins" || !strings.HasPrefix(w.patch, `{"series":{"count":2,`) {
		t.Errorf("the repetition is told as %q, patch %q", w.event.Note, w.patch)
	}
}
