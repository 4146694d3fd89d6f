package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/updateengine"
)

// These tests run package updateengine over a real bus. They are in this package because it contains the test bus, and
// because they test both packages together: updateengine calls and watches an object, and this package has the only
// implementation.

// engine is a fake update_engine.
type engine struct {
	conn  *dbus.Conn
	calls atomic.Int64
	hang  sync.RWMutex // locked while the engine does not answer
	asked atomic.Value // unique name of the last caller, a dbus.Sender
	body  func() []any // overrides the five values when set; before Export only

	mu        sync.Mutex
	checked   int64
	progress  float64
	operation string
	version   string
	size      int64
}

func newEngine(t *testing.T, b *testBus, operation, version string) *engine {
	t.Helper()
	e := &engine{operation: operation, version: version, checked: 1700000000, size: 4096}
	e.export(t, b)
	return e
}

func (e *engine) export(t *testing.T, b *testBus) {
	t.Helper()
	e.conn = b.Connect()
	methods := map[string]any{"GetStatus": e.getStatus, "ResetStatus": e.resetStatus}
	if e.body != nil {
		methods["GetStatus"] = e.odd
	}
	if err := e.conn.ExportMethodTable(methods, updateengine.ObjectPath, engineIface); err != nil {
		t.Fatal(err)
	}
	e.own(t)
}

func (e *engine) own(t *testing.T) {
	t.Helper()
	reply, err := e.conn.RequestName(updateengine.BusName, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("owning %s: %v, %v", updateengine.BusName, reply, err)
	}
}

func (e *engine) getStatus(caller dbus.Sender) (int64, float64, string, string, int64, *dbus.Error) {
	e.calls.Add(1)
	e.asked.Store(caller)
	e.hang.RLock()
	defer e.hang.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checked, e.progress, e.operation, e.version, e.size, nil
}

// odd answers with the result of body, with its own types.
func (e *engine) odd() (dbus.Variant, *dbus.Error) {
	e.calls.Add(1)
	return dbus.MakeVariant(fmt.Sprint(e.body()...)), nil
}

// resetStatus sends no signal, like the real one.
func (e *engine) resetStatus() *dbus.Error {
	e.set("UPDATE_STATUS_IDLE", "0.0.0")
	return nil
}

func (e *engine) set(operation, version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.operation, e.version = operation, version
}

// announce sends StatusUpdate with the current values.
func (e *engine) announce(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.conn.Emit(updateengine.ObjectPath, engineIface+".StatusUpdate", e.checked, e.progress, e.operation, e.version, e.size)
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a source until the test ends.
func start(t *testing.T, b *testBus, poll time.Duration, change ...func(*updateengine.Options)) *updateengine.Source {
	t.Helper()
	s := newSource(t, b, append(change, func(o *updateengine.Options) { o.PollInterval = poll })...)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, func() {}); err == nil {
			t.Error("Run returned nil")
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

// newSource returns a source that does not run.
func newSource(t *testing.T, b *testBus, change ...func(*updateengine.Options)) *updateengine.Source {
	t.Helper()
	bus := &Bus{Address: b.Address}
	t.Cleanup(func() { bus.Close() })
	o := updateengine.Options{Object: bus.Object(updateengine.BusName, updateengine.ObjectPath), PollInterval: 5 * time.Second}
	for _, f := range change {
		f(&o)
	}
	return updateengine.New(o)
}

// impatient limits a call to a short time.
func impatient(o *updateengine.Options) {
	object := o.Object.(Object)
	object.limit = 300 * time.Millisecond
	o.Object = object
}

func waitFor(t *testing.T, s *updateengine.Source, what string, condition func(updateengine.Reading) bool) updateengine.Reading {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("latest: %+v", s.Latest())
		}
	}()
	var r updateengine.Reading
	eventually(t, what, func() bool { r = s.Latest(); return condition(r) })
	return r
}

func doing(op updateengine.Operation) func(updateengine.Reading) bool {
	return func(r updateengine.Reading) bool { return r.Presence == updateengine.Present && r.Operation == op }
}

func is(p updateengine.Presence) func(updateengine.Reading) bool {
	return func(r updateengine.Reading) bool { return r.Presence == p }
}

const engineIface = "com.coreos.update1.Manager"

const never = time.Hour // a poll interval that is longer than any test

func TestReadsStatusAtStart(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	s := start(t, b, never)
	r := waitFor(t, s, "a pending reboot", doing(updateengine.UpdatedNeedReboot))
	if pending, known := r.RebootPending(); !pending || !known {
		t.Errorf("pending, known = %v, %v", pending, known)
	}
	if r.Version != "4230.2.1" || r.VersionUnknown || r.LastChecked.Unix() != 1700000000 || r.Err != nil {
		t.Errorf("reading %+v", r)
	}
}

func TestSilentResetIsSeenByPolling(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	s := start(t, b, 100*time.Millisecond)
	waitFor(t, s, "a pending reboot", doing(updateengine.UpdatedNeedReboot))
	if err := b.Connect().Object(updateengine.BusName, updateengine.ObjectPath).Call(engineIface+".ResetStatus", 0).Err; err != nil {
		t.Fatal(err)
	}
	r := waitFor(t, s, "the engine to be idle after a silent reset", doing(updateengine.Idle))
	if pending, known := r.RebootPending(); pending || !known || r.Version != "" || r.VersionUnknown {
		t.Errorf("pending %v, known %v, %+v", pending, known, r)
	}
}

func TestSignalIsAHint(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(updateengine.Idle))
	e.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	e.announce(t)
	waitFor(t, s, "a read after the signal", doing(updateengine.UpdatedNeedReboot))

	// A signal is only a hint: a wrong body changes nothing.
	before := e.calls.Load()
	err := e.conn.Emit(updateengine.ObjectPath, engineIface+".StatusUpdate", int64(0), 0.0, "UPDATE_STATUS_IDLE", "0.0.0", int64(0))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a read after the hint", func() bool { return e.calls.Load() > before })
	if r, err := s.Read(t.Context()); err != nil || r.Operation != updateengine.UpdatedNeedReboot {
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
	waitFor(t, s, "a read after the last signal", doing("FINALIZING"))
	if calls, most := e.calls.Load()-before, int64(time.Since(began)/spacing)+2; calls > most {
		t.Errorf("%d calls in %v, at most %d expected", calls, time.Since(began), most)
	}
}

// TestForgedSignals checks that forged signals have no effect, whether broadcast, sent to the source alone, or with
// file descriptors.
func TestForgedSignals(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(updateengine.Idle))
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
			dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath(updateengine.ObjectPath)), dbus.FieldInterface: dbus.MakeVariant(engineIface),
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
	// The bus keeps the order of one sender, so it has processed the signals when it answers the forger's last call.
	if err := forger.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err; err != nil {
		t.Fatal(err)
	}
	if r, err := s.Read(t.Context()); err != nil || r.Operation != updateengine.Idle {
		t.Errorf("after forged signals: %+v, %v", r, err)
	}
	if calls := e.calls.Load() - before; calls != 1 { // from this Read
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
	waitFor(t, s, "the engine to be absent", is(updateengine.Absent))
	e := newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	waitFor(t, s, "the engine", doing(updateengine.UpdatedNeedReboot))
	e.conn.Close()
	r := waitFor(t, s, "the engine to be gone", is(updateengine.Absent))
	if pending, known := r.RebootPending(); pending || known {
		t.Errorf("absent: pending %v, known %v", pending, known)
	}

	// After its restart the engine no longer knows the version. That is not a new change.
	e2 := newEngine(t, b, "UPDATE_STATUS_UPDATED_NEED_REBOOT", "0.0.0")
	r = waitFor(t, s, "the restarted engine", doing(updateengine.UpdatedNeedReboot))
	if r.Version != "4230.2.1" || r.VersionUnknown {
		t.Errorf("after the engine's restart: %+v", r)
	}

	// A cancel in the meantime removes the old version.
	e2.set("UPDATE_STATUS_IDLE", "0.0.0")
	e2.announce(t)
	waitFor(t, s, "idle", doing(updateengine.Idle))
	e2.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "0.0.0")
	e2.announce(t)
	r = waitFor(t, s, "pending again", doing(updateengine.UpdatedNeedReboot))
	if r.Version != "" || !r.VersionUnknown {
		t.Errorf("pending again without a version: %+v", r)
	}
}

func TestBusGoesAndComesBack(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(updateengine.Idle))
	b.Stop()
	r := waitFor(t, s, "the bus to be gone", is(updateengine.Unknown))
	if r.Err == nil {
		t.Error("no reason given")
	}
	if _, err := s.Read(t.Context()); err == nil {
		t.Error("Read without a bus gave no error")
	}
	b.Start()
	waitFor(t, s, "the bus without an engine", is(updateengine.Absent))
	e := newEngine(t, b, "UPDATE_STATUS_DOWNLOADING", "4230.2.1")
	waitFor(t, s, "the engine on the new bus", doing("DOWNLOADING"))
	e.set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "4230.2.1")
	e.announce(t)
	waitFor(t, s, "a read after a signal on the new bus", doing(updateengine.UpdatedNeedReboot))
}

// TestReadReplacesADeadConnection checks that a read for a commit right after a restart of the bus does not fail
// because of the old connection.
func TestReadReplacesADeadConnection(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := newSource(t, b)
	if r, err := s.Read(t.Context()); err != nil || r.Operation != updateengine.Idle {
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
	if err == nil || r.Presence != updateengine.Unknown || s.Latest().Err == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCallThatNeverAnswers(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	e.hang.Lock()
	answer := sync.OnceFunc(e.hang.Unlock)
	defer answer()
	s := start(t, b, 50*time.Millisecond, impatient)
	r := waitFor(t, s, "the call to time out", func(r updateengine.Reading) bool { return errors.Is(r.Err, context.DeadlineExceeded) })
	if r.Presence != updateengine.Unknown {
		t.Errorf("%+v", r)
	}
	caller := e.asked.Load()
	answer()
	waitFor(t, s, "the engine to be idle", doing(updateengine.Idle))
	if e.asked.Load() != caller {
		t.Error("the connection was closed although the bus answered")
	}
}

func TestFrozenBus(t *testing.T) {
	b := newBus(t)
	newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, 50*time.Millisecond, impatient)
	waitFor(t, s, "idle", doing(updateengine.Idle))
	thaw := b.Freeze()
	defer thaw()
	waitFor(t, s, "the frozen bus to be noticed", is(updateengine.Unknown))
	thaw()
	waitFor(t, s, "the engine to be idle after the thaw", doing(updateengine.Idle))
}

func TestReadEndsWithItsContext(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	s := start(t, b, never)
	waitFor(t, s, "idle", doing(updateengine.Idle))
	e.hang.Lock()
	answer := sync.OnceFunc(e.hang.Unlock)
	defer answer()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if r := s.Latest(); r.Operation != updateengine.Idle {
		t.Errorf("the caller's impatience changed Latest to %+v", r)
	}
}

func TestMalformedAnswers(t *testing.T) {
	b := newBus(t)
	e := &engine{body: func() []any { return []any{"what?"} }}
	e.export(t, b)
	s := start(t, b, 50*time.Millisecond)
	r := waitFor(t, s, "the answer to be rejected", func(r updateengine.Reading) bool {
		return r.Err != nil && strings.Contains(r.Err.Error(), "malformed answer")
	})
	if r.Presence != updateengine.Unknown {
		t.Errorf("%+v", r)
	}
	e.conn.Close()
	waitFor(t, s, "absent", is(updateengine.Absent))
	newEngine(t, b, "UPDATE_STATUS_IDLE", strings.Repeat("9", 1<<20))
	r = waitFor(t, s, "the valid engine to take over", doing(updateengine.Idle))
	if len(r.Version) != 128 {
		t.Errorf("version of %d bytes", len(r.Version))
	}
}

// TestRefusedCall checks that an engine object that refuses a call is neither absent nor idle.
func TestRefusedCall(t *testing.T) {
	b := newBus(t)
	e := &engine{conn: b.Connect()}
	e.own(t) // the name without the object
	s := start(t, b, never)
	r := waitFor(t, s, "the refusal to be reported", func(r updateengine.Reading) bool {
		return r.Err != nil && strings.Contains(r.Err.Error(), "org.freedesktop.DBus.Error.")
	})
	if _, known := r.RebootPending(); r.Presence != updateengine.Unknown || known {
		t.Errorf("%+v", r)
	}
}

func TestUnknownOperationIsReportedOnce(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_DISCO", "4230.2.1")
	var log safeBuffer
	s := start(t, b, 20*time.Millisecond, func(o *updateengine.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	r := waitFor(t, s, "the unknown operation", doing("UPDATE_STATUS_DISCO"))
	if _, known := r.RebootPending(); known {
		t.Error("an unknown operation was taken for a report on the pending reboot")
	}
	before := e.calls.Load()
	eventually(t, "several more polls", func() bool { return e.calls.Load() > before+5 })
	if n := strings.Count(log.String(), "does not know"); n != 1 {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
	e.set("UPDATE_STATUS_POLKA", "4230.2.1")
	waitFor(t, s, "the next", doing("UPDATE_STATUS_POLKA"))
	eventually(t, "the next one to be reported", func() bool { return strings.Count(log.String(), "does not know") == 2 })
}

func TestChangedAndAlive(t *testing.T) {
	b := newBus(t)
	e := newEngine(t, b, "UPDATE_STATUS_IDLE", "0.0.0")
	var rounds, changes atomic.Int64
	s := newSource(t, b, func(o *updateengine.Options) { o.PollInterval, o.Alive = 10*time.Millisecond, func() { rounds.Add(1) } })
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
	e.set("UPDATE_STATUS_FINALIZING", "1.2.3")
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the result of Read to be reported", func() bool { return changes.Load() == 2 })
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
