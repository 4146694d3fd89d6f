package updateengine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

const never = time.Hour // a poll interval that plays no part in a test

func TestReadsStatusAtStart(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	s := start(t, b, never)
	r := waitFor(t, s, "a reboot is pending", doing(UpdatedNeedReboot))
	if pending, known := r.RebootPending(); !pending || !known {
		t.Errorf("pending, known = %v, %v", pending, known)
	}
	if r.Version != "4230.2.1" || r.VersionUnknown || r.Size != 4096 || r.LastChecked.Unix() != 1700000000 || r.Err != nil {
		t.Errorf("reading %+v", r)
	}
}

func TestSilentResetIsSeenByPolling(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	s := start(t, b, 100*time.Millisecond)
	waitFor(t, s, "a reboot is pending", doing(UpdatedNeedReboot))
	if err := b.Connect().Object(BusName, ObjectPath).Call(Interface+".ResetStatus", 0).Err; err != nil {
		t.Fatal(err)
	}
	r := waitFor(t, s, "idle after a silent reset", doing(Idle))
	if pending, known := r.RebootPending(); pending || !known || r.Version != "" || r.VersionUnknown {
		t.Errorf("pending %v, known %v, %+v", pending, known, r)
	}
}

func TestSignalIsAHint(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(Idle))
	e.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	e.announce(t)
	waitFor(t, s, "the signal led to a look", doing(UpdatedNeedReboot))

	// Only a hint: a body that lies changes nothing.
	before := e.calls.Load()
	err := e.conn.Emit(ObjectPath, Interface+".StatusUpdate", int64(0), 0.0, "UPDATE_STATUS_IDLE", "0.0.0", int64(0))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hint is followed", func() bool { return e.calls.Load() > before })
	if r, err := s.Read(t.Context()); err != nil || r.Operation != UpdatedNeedReboot {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFloodOfSignalsIsNotAFloodOfCalls(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_DOWNLOADING", "4230.2.1")
	const spacing = 200 * time.Millisecond // systemd.Object's
	s := start(t, b, never)
	waitFor(t, s, "downloading", doing("DOWNLOADING"))
	began, before := time.Now(), e.calls.Load()
	for range 5000 {
		e.announce(t)
	}
	e.set("UPDATE_STATUS_FINALIZING", "4230.2.1")
	e.announce(t)
	waitFor(t, s, "the last signal leads to a look", doing("FINALIZING"))
	if calls, most := e.calls.Load()-before, int64(time.Since(began)/spacing)+2; calls > most {
		t.Errorf("%d calls in %v, at most %d expected", calls, time.Since(began), most)
	}
}

// Forged signals, broadcast, sent to the source alone, or laden with file descriptors, lead to nothing.
func TestForgedSignals(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(Idle))
	before := e.calls.Load()
	forger := b.Connect()
	victim := string(e.asked.Load().(dbus.Sender))
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	descriptors := openFiles(t)
	send := func(dest string, body ...any) {
		t.Helper()
		msg := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath(ObjectPath)), dbus.FieldInterface: dbus.MakeVariant(Interface),
			dbus.FieldMember: dbus.MakeVariant("StatusUpdate"), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(body...)),
		}, Body: body}
		if dest != "" {
			msg.Headers[dbus.FieldDestination] = dbus.MakeVariant(dest)
		}
		if call := forger.Send(msg, nil); call.Err != nil {
			t.Fatal(call.Err)
		}
	}
	for range 50 {
		for _, dest := range []string{"", victim} {
			send(dest, int64(0), 0.0, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "6.6.6", int64(0))
			send(dest, dbus.UnixFD(null.Fd()))
		}
	}
	// The bus keeps the order of one sender: when the forger's last call is answered, the signals are through.
	if err := forger.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err; err != nil {
		t.Fatal(err)
	}
	if r, err := s.Read(t.Context()); err != nil || r.Operation != Idle {
		t.Errorf("after forged signals: %+v, %v", r, err)
	}
	if calls := e.calls.Load() - before; calls != 1 { // that Read's own
		t.Errorf("%d calls, 1 expected", calls)
	}
	if now := openFiles(t); now > descriptors {
		t.Errorf("%d open descriptors, %d before the forged signals", now, descriptors)
	}
	if string(e.asked.Load().(dbus.Sender)) != victim {
		t.Error("a forged signal broke the connection")
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestEngineGoesAndComesBack(t *testing.T) {
	b := newBus(t)
	s := start(t, b, never)
	waitFor(t, s, "absent at first", is(Absent))
	e := newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	waitFor(t, s, "the engine came", doing(UpdatedNeedReboot))
	e.conn.Close()
	r := waitFor(t, s, "the engine went", is(Absent))
	if pending, known := r.RebootPending(); pending || known {
		t.Errorf("absent: pending %v, known %v", pending, known)
	}

	// Restarted, it no longer knows the version: not a new change.
	e2 := newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "0.0.0")
	r = waitFor(t, s, "the engine came back", doing(UpdatedNeedReboot))
	if r.Version != "4230.2.1" || r.VersionUnknown {
		t.Errorf("after the engine's restart: %+v", r)
	}

	// Cancelled meanwhile, the old version is forgotten.
	e2.set("UPDATE_STATUS_IDLE", "0.0.0")
	e2.announce(t)
	waitFor(t, s, "idle", doing(Idle))
	e2.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "0.0.0")
	e2.announce(t)
	r = waitFor(t, s, "pending again", doing(UpdatedNeedReboot))
	if r.Version != "" || !r.VersionUnknown {
		t.Errorf("pending again without a version: %+v", r)
	}
}

func TestBusGoesAndComesBack(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(Idle))
	b.Stop()
	r := waitFor(t, s, "the bus is gone", is(Unknown))
	if r.Err == nil {
		t.Error("no reason given")
	}
	if _, err := s.Read(t.Context()); err == nil {
		t.Error("Read without a bus gave no error")
	}
	b.Start()
	waitFor(t, s, "the bus is back without an engine", is(Absent))
	e := newEngine(t, b, "UPDATE_STATUS_DOWNLOADING", "4230.2.1")
	waitFor(t, s, "the engine is back", doing("DOWNLOADING"))
	e.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	e.announce(t)
	waitFor(t, s, "signals are heard on the new bus", doing(UpdatedNeedReboot))
}

// A commit check right after the bus was restarted must not fail on the dead connection.
func TestReadReplacesADeadConnection(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := newSource(t, b)
	if r, err := s.Read(t.Context()); err != nil || r.Operation != Idle {
		t.Fatalf("%+v, %v", r, err)
	}
	b.Stop()
	b.Start()
	newEngine(t, b, "UPDATE_STATUS_DOWNLOADING", "4230.2.1")
	if r, err := s.Read(t.Context()); err != nil || r.Operation != "DOWNLOADING" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNoBusAtAll(t *testing.T) {
	s := newSource(t, &testBus{Address: "unix:path=/nonexistent/bus"})
	r, err := s.Read(t.Context())
	if err == nil || r.Presence != Unknown || s.Latest().Err == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCallThatNeverAnswers(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	e.hang.Store(true)
	defer e.hang.Store(false)
	s := start(t, b, 50*time.Millisecond, func(s *Source) { s.opts.Object = impatient{s.opts.Object, 300 * time.Millisecond} })
	r := waitFor(t, s, "the call was given up", func(r Reading) bool { return errors.Is(r.Err, context.DeadlineExceeded) })
	if r.Presence != Unknown {
		t.Errorf("%+v", r)
	}
	caller := e.asked.Load()
	e.hang.Store(false)
	waitFor(t, s, "idle once it answers", doing(Idle))
	if e.asked.Load() != caller {
		t.Error("the connection was given up although the bus answered")
	}
}

func TestFrozenBus(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, 50*time.Millisecond, func(s *Source) { s.opts.Object = impatient{s.opts.Object, 300 * time.Millisecond} })
	waitFor(t, s, "idle", doing(Idle))
	thaw := b.Freeze()
	defer thaw()
	waitFor(t, s, "the frozen bus is noticed", is(Unknown))
	thaw()
	waitFor(t, s, "idle after the thaw", doing(Idle))
}

func TestReadEndsWithItsContext(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(Idle))
	e.hang.Store(true)
	defer e.hang.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if r := s.Latest(); r.Operation != Idle {
		t.Errorf("the caller's impatience changed Latest to %+v", r)
	}
}

func TestMalformedAnswers(t *testing.T) {
	b := newBus(t)
	e := &engine{body: func() []any { return []any{"what?"} }}
	e.export(t, b)
	s := start(t, b, 50*time.Millisecond)
	r := waitFor(t, s, "the answer was refused", func(r Reading) bool { return errors.Is(r.Err, errMalformed) })
	if r.Presence != Unknown {
		t.Errorf("%+v", r)
	}
	e.conn.Close()
	waitFor(t, s, "absent", is(Absent))
	newEngine(t, b, "UPDATE_STATUS_IDLE", strings.Repeat("9", 1<<20))
	r = waitFor(t, s, "a sane engine took over", doing(Idle))
	if len(r.Version) != maxVersion {
		t.Errorf("version of %d bytes", len(r.Version))
	}
}

// An engine object that refuses is neither absent nor idle.
func TestRefusedCall(t *testing.T) {
	b := newBus(t)
	e := &engine{conn: b.Connect()}
	e.own(t) // the name without the object
	s := start(t, b, never)
	r := waitFor(t, s, "the refusal is reported", func(r Reading) bool {
		return r.Err != nil && strings.Contains(r.Err.Error(), "org.freedesktop.DBus.Error.")
	})
	if _, known := r.RebootPending(); r.Presence != Unknown || known {
		t.Errorf("%+v", r)
	}
}

func TestUnknownOperationIsReportedOnce(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_DISCO", "4230.2.1")
	var log safeBuffer
	s := start(t, b, 20*time.Millisecond, func(s *Source) { s.opts.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	r := waitFor(t, s, "the unknown operation is kept", doing("UPDATE_STATUS_DISCO"))
	if _, known := r.RebootPending(); known {
		t.Error("an unknown operation was taken for a word on the pending reboot")
	}
	before := e.calls.Load()
	eventually(t, "several more polls", func() bool { return e.calls.Load() > before+5 })
	if n := strings.Count(log.String(), "does not know"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
	e.set("UPDATE_STATUS_POLKA", "4230.2.1")
	waitFor(t, s, "the next", doing("UPDATE_STATUS_POLKA"))
	if n := strings.Count(log.String(), "does not know"); n != 2 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
}

func TestChangedAndAlive(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	var rounds, changes atomic.Int64
	s := newSource(t, b)
	s.opts.PollInterval, s.opts.Alive = 10*time.Millisecond, func() { rounds.Add(1) }
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, func() { changes.Add(1) }); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	defer wg.Wait()
	defer cancel()
	eventually(t, "rounds pass", func() bool { return rounds.Load() > 5 })
	if n := changes.Load(); n != 1 {
		t.Errorf("%d changes, 1 expected", n)
	}
	if err := s.Run(ctx, nil); err == nil || ctx.Err() != nil {
		t.Errorf("a second Run: %v", err)
	}
	e.set("UPDATE_STATUS_FINALIZING", "1.2.3")
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what Read found is reported", func() bool { return changes.Load() == 2 })
}

func TestPollIntervalIsBounded(t *testing.T) {
	for _, d := range []time.Duration{0, 100 * time.Millisecond, 61 * time.Minute, -time.Second} {
		if _, err := New(Options{PollInterval: d}); err == nil {
			t.Errorf("%v was accepted", d)
		}
	}
	for _, d := range []time.Duration{5 * time.Second, time.Hour} {
		if _, err := New(Options{PollInterval: d}); err != nil {
			t.Errorf("%v: %v", d, err)
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
