package updateengine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// busOf answers calls with err, or with a staged update. The caller gives up during the call if giveUp is set.
type busOf struct {
	err    error
	giveUp func()
}

func (b *busOf) Call(ctx context.Context, _ string, _ ...any) ([]any, error) {
	if b.giveUp != nil {
		b.giveUp()
	}
	return []any{int64(0), 0.0, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4.2", int64(0)}, errors.Join(b.err, ctx.Err())
}

func (*busOf) Watch(context.Context, string, time.Duration, func(context.Context) error) error {
	return nil
}

// TestReadWithoutAnAnswer checks what a read says of the engine if there is no answer: only the bus can say that the engine is
// absent, and a caller that gives up says nothing.
func TestReadWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		gaveUp bool
		err    error
		want   Presence // of the latest reading
	}{
		"answered":       {false, nil, Present},
		"no such name":   {false, dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}, Absent},
		"its successor":  {false, dbus.Error{Name: "org.freedesktop.DBus.Error.ServiceUnknown"}, Absent},
		"denied":         {false, dbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied"}, Unknown},
		"no bus":         {false, errors.New("connection refused"), Unknown},
		"given up":       {true, nil, Present},
		"given up, away": {true, errors.New("connection refused"), Present},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		bus := &busOf{}
		s := New(Options{Object: bus})
		if _, err := s.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if bus.err = c.err; c.gaveUp {
			bus.giveUp = cancel
		}
		_, err := s.Read(ctx)
		if got := s.Latest().Presence; got != c.want || (err == nil) != (c.err == nil && !c.gaveUp || c.want == Absent) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
