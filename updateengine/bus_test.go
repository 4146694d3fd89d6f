package updateengine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/systemd"
)

// A real dbus-daemon and a stand-in engine on it. Package systemd's tests have the same daemon: in a package of its own the
// binary could reach it.

const busConfig = `<busconfig>
  <type>session</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/>
  </policy>
</busconfig>`

type testBus struct {
	t       *testing.T
	dir     string
	Address string
	cmd     *exec.Cmd
}

func newBus(t *testing.T) *testBus {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // t.TempDir can be too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	b := &testBus{t: t, dir: dir, Address: "unix:path=" + filepath.Join(dir, "bus")}
	t.Cleanup(func() { b.Stop(); os.RemoveAll(dir) })
	config := fmt.Sprintf(busConfig, filepath.Join(dir, "bus"))
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Start()
	return b
}

// Start starts the daemon and returns when it answers.
func (b *testBus) Start() {
	b.t.Helper()
	b.cmd = exec.Command("dbus-daemon", "--config-file="+filepath.Join(b.dir, "conf"), "--nofork", "--nopidfile", "--nosyslog")
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatalf("starting dbus-daemon (Debian's package dbus-daemon is needed): %v", err)
	}
	eventually(b.t, "the bus answers", func() bool {
		conn, err := dbus.Connect(b.Address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// Stop kills the daemon, as a crash would.
func (b *testBus) Stop() {
	if b.cmd != nil {
		b.cmd.Process.Kill()
		b.cmd.Wait()
		b.cmd = nil
		os.Remove(filepath.Join(b.dir, "bus"))
	}
}

// Freeze stops the daemon's answers without closing anything; the returned function thaws it.
func (b *testBus) Freeze() func() {
	process := b.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		b.t.Fatal(err)
	}
	return func() { process.Signal(syscall.SIGCONT) }
}

func (b *testBus) Connect() *dbus.Conn {
	b.t.Helper()
	conn, err := dbus.Connect(b.Address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually waits for a condition, and fails the test after a minute.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.Millisecond; !condition(); tick = min(2*tick, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute in vain: %s", what)
		}
		time.Sleep(tick)
	}
}

// engine stands in for update_engine.
type engine struct {
	conn  *dbus.Conn
	calls atomic.Int64
	hang  atomic.Bool
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
	if err := e.conn.ExportMethodTable(methods, ObjectPath, Interface); err != nil {
		t.Fatal(err)
	}
	e.own(t)
}

func (e *engine) own(t *testing.T) {
	t.Helper()
	reply, err := e.conn.RequestName(BusName, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("owning %s: %v, %v", BusName, reply, err)
	}
}

func (e *engine) getStatus(caller dbus.Sender) (int64, float64, string, string, int64, *dbus.Error) {
	e.calls.Add(1)
	e.asked.Store(caller)
	for e.hang.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checked, e.progress, e.operation, e.version, e.size, nil
}

// odd answers with whatever body gives, packed the way its types say.
func (e *engine) odd() (dbus.Variant, *dbus.Error) {
	e.calls.Add(1)
	return dbus.MakeVariant(fmt.Sprint(e.body()...)), nil
}

// resetStatus is silent, as the real one is.
func (e *engine) resetStatus() *dbus.Error {
	e.set("UPDATE_STATUS_IDLE", "0.0.0")
	return nil
}

func (e *engine) set(operation, version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.operation, e.version = operation, version
}

// announce sends StatusUpdate with the present values.
func (e *engine) announce(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.conn.Emit(ObjectPath, Interface+".StatusUpdate", e.checked, e.progress, e.operation, e.version, e.size)
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a source until the test ends. Its poll interval may be shorter than New would allow.
func start(t *testing.T, b *testBus, poll time.Duration, change ...func(*Source)) *Source {
	t.Helper()
	s := newSource(t, b)
	s.opts.PollInterval = poll
	for _, f := range change {
		f(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, nil); err == nil {
			t.Error("Run returned nil")
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

// newSource returns a source that does not run.
func newSource(t *testing.T, b *testBus) *Source {
	t.Helper()
	bus := &systemd.Bus{Address: b.Address}
	t.Cleanup(func() { bus.Close() })
	s, err := New(Options{Object: bus.Object(BusName, ObjectPath), PollInterval: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// impatient is an Object whose calls take at most a moment.
type impatient struct {
	Object
	limit time.Duration
}

func (i impatient) Call(ctx context.Context, method string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, i.limit)
	defer cancel()
	return i.Object.Call(ctx, method, args...)
}

func waitFor(t *testing.T, s *Source, what string, condition func(Reading) bool) Reading {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("latest: %+v", s.Latest())
		}
	}()
	var r Reading
	eventually(t, what, func() bool { r = s.Latest(); return condition(r) })
	return r
}

func doing(op Operation) func(Reading) bool {
	return func(r Reading) bool { return r.Presence == Present && r.Operation == op }
}

func is(p Presence) func(Reading) bool { return func(r Reading) bool { return r.Presence == p } }
