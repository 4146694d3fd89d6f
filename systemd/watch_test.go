package systemd

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// TestOnlyTheOwnersSignalsCount checks that only signals from the owner of the service's name count, and that only the
// bus can tell who that is.
func TestOnlyTheOwnersSignalsCount(t *testing.T) {
	const signal = loginManager + ".PrepareForShutdown"
	const ownerChanged = dbusName + ".NameOwnerChanged"
	for _, c := range []struct {
		name, sender, signal string
		path                 dbus.ObjectPath
		body                 []any
		want                 int
	}{
		{"the owner", ":1.7", signal, loginPath, nil, 1},
		{"another process", ":1.8", signal, loginPath, nil, 0},
		{"no sender", "", signal, loginPath, nil, 0},
		{"another object", ":1.7", signal, "/", nil, 0},
		{"another signal", ":1.7", loginManager + ".SessionNew", loginPath, nil, 0},
		{"the bus", dbusName, ownerChanged, "/org/freedesktop/DBus", []any{loginName, ":1.7", ""}, 1},
		{"not the bus", ":1.8", ownerChanged, "/org/freedesktop/DBus", []any{loginName, ":1.7", ":1.8"}, 0},
		{"the owner, as if it were the bus", ":1.7", ownerChanged, "/org/freedesktop/DBus", []any{loginName, ":1.7", ":1.8"}, 0},
		{"another name", dbusName, ownerChanged, "/org/freedesktop/DBus", []any{"a.b", ":1.7", ""}, 0},
		{"malformed", dbusName, ownerChanged, "/org/freedesktop/DBus", []any{7}, 0},
	} {
		s := &subscription{object: Logind{}.manager(), signal: signal, hint: make(chan struct{}, 1), owner: ":1.7", ownerKnown: true}
		s.deliver(&dbus.Signal{Sender: c.sender, Path: c.path, Name: c.signal, Body: c.body})
		if len(s.hint) != c.want {
			t.Errorf("%s: %d hints, want %d", c.name, len(s.hint), c.want)
		}
		if c.want == 0 && s.owner != ":1.7" {
			t.Errorf("%s: the owner is now %q", c.name, s.owner)
		}
	}
	s := &subscription{object: Logind{}.manager(), signal: signal, hint: make(chan struct{}, 1)} // no process owns the name
	s.deliver(&dbus.Signal{Path: loginPath, Name: signal})
	if len(s.hint) != 0 {
		t.Error("a signal without a sender counts while no process owns the name")
	}
}

// answering exports a service with a method that hangs, a method that answers, and a signal.
func answering(t *testing.T, b *testBus, hang chan struct{}) *dbus.Conn {
	t.Helper()
	conn := b.Connect()
	must(t, conn.ExportMethodTable(map[string]any{
		"Hang":   func() *dbus.Error { <-hang; return nil },
		"Answer": func() (string, *dbus.Error) { return "yes", nil },
	}, "/test", "test.Service"))
	own(t, conn, "test.Service")
	return conn
}

// TestWatchFollowsTheService checks that a read follows, without a signal and before the next poll, when the service
// appears, disappears, and appears on another bus.
func TestWatchFollowsTheService(t *testing.T) {
	b := newBus(t)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	object := bus.Object("test.Service", "/test")
	ctx, cancel := context.WithCancelCause(t.Context())
	var answers, absent, failures atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- object.Watch(ctx, "test.Service.Changed", time.Hour, func(ctx context.Context) error {
			_, err := object.Call(ctx, "test.Service.Answer")
			switch {
			case err == nil:
				answers.Add(1)
			case errors.Is(err, ErrAbsent):
				absent.Add(1)
			default:
				failures.Add(1)
			}
			return err
		})
	}()
	grows := func(what string, n *atomic.Int32, do func()) {
		t.Helper()
		before := n.Load()
		do()
		eventually(t, what, func() bool { return n.Load() > before })
	}
	eventually(t, "the first read", func() bool { return absent.Load() == 1 })
	var service *dbus.Conn
	grows("a read when the service came", &answers, func() { service = answering(t, b, nil) })
	grows("a read after the signal", &answers, func() { must(t, service.Emit("/test", "test.Service.Changed")) })
	grows("a read when the service went", &absent, func() { service.Close() })
	grows("a read when the bus went", &failures, b.Stop)
	grows("a read when the bus is back", &absent, b.Start)
	grows("a read when the service is back", &answers, func() { service = answering(t, b, nil) })
	grows("a read after the signal on the new bus", &answers, func() { must(t, service.Emit("/test", "test.Service.Changed")) })
	over := errors.New("over")
	cancel(over)
	if err := <-done; err != over {
		t.Errorf("Watch returned %v", err)
	}
}

// TestNextRead checks that the pauses after failed reads grow up to a limit. An absent service is not a failure: it is
// read once per interval.
func TestNextRead(t *testing.T) {
	no := errors.New("no answer")
	for _, c := range []struct {
		err      error
		failures int
		interval time.Duration
		want     time.Duration // half of it to one and a half times; exactly it if failed is 0
		failed   int
	}{
		{nil, 7, time.Hour, time.Hour, 0},
		{&CallError{Name: dbusName + ".Error.NameHasNoOwner"}, 7, time.Hour, time.Hour, 0},
		{no, 0, time.Hour, 500 * time.Millisecond, 1},
		{no, 1, time.Hour, time.Second, 2},
		{no, 3, time.Hour, 4 * time.Second, 4},
		{no, 6, time.Hour, 30 * time.Second, 7},
		{no, 1000, time.Hour, 30 * time.Second, 1001},
		{no, 1000, time.Millisecond, time.Millisecond, 1001},
	} {
		for range 100 {
			wait, failed := nextRead(c.err, c.failures, c.interval)
			if wait < c.want/2 || wait > c.want*3/2 || c.failed == 0 && wait != c.want || failed != c.failed || wait > c.interval {
				t.Fatalf("after %v and %d failures: %v, %d failures; expected about %v, %d", c.err, c.failures, wait, failed, c.want, c.failed)
			}
		}
	}
}

// TestHungServiceKeepsTheConnection checks that a service that does not answer affects only the call to it: other calls
// on the shared connection get their answers, and signals still arrive.
func TestHungServiceKeepsTheConnection(t *testing.T) {
	b := newBus(t)
	hang := make(chan struct{})
	defer close(hang)
	answering(t, b, hang)
	bus := &Bus{Address: b.Address}
	defer bus.Close()
	object := bus.Object("test.Service", "/test")
	before, err := bus.connect(t.Context())
	must(t, err)
	object.limit = 300 * time.Millisecond
	_, err = object.Call(t.Context(), "test.Service.Hang")
	if e, ok := errors.AsType[*CallError](err); !ok || e.Refused() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, expected an unknown outcome", err)
	}
	if present(bus) != before {
		t.Error("the connection was closed although the bus answers")
	}
	if body, err := object.Call(t.Context(), "test.Service.Answer"); err != nil || !slices.Equal(body, []any{"yes"}) {
		t.Errorf("the next call: %v, %v", body, err)
	}
}
