// Package engine simulates Flatcar's update_engine. On the bus it behaves like the real one, including its quirks, and
// it has additional methods for tests. Simulated hosts run it in the test's own process, real hosts as a service. It
// knows a bus and the directory that is a host's root, but nothing of lockkeeper.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// These are the names of update_engine on the bus.
const (
	BusName   = "com.coreos.update1"
	Path      = dbus.ObjectPath("/com/coreos/update1")
	Interface = "com.coreos.update1.Manager"

	// Marker is a file below the host's root. It means that an update waits for a reboot. A reboot empties /run.
	Marker = "run/update_engine_autoupdate_completed"

	// A service that runs an engine exports an interface for tests at KnobPath, with one method, Stage(s). It stores
	// the version for the next boot in a file of this name.
	KnobPath      = dbus.ObjectPath("/dev/lockkeeper/testbed/engine")
	KnobInterface = "dev.lockkeeper.testbed.Engine"
	StagedFile    = "staged"

	noVersion = "0.0.0"

	payloadSize   = int64(256 << 20) // bytes
	downloadSteps = 4
)

// These are the engine's operations, as GetStatus returns them.
const (
	OpIdle           = "UPDATE_STATUS_IDLE"
	OpChecking       = "UPDATE_STATUS_CHECKING_FOR_UPDATE"
	OpAvailable      = "UPDATE_STATUS_UPDATE_AVAILABLE"
	OpDownloading    = "UPDATE_STATUS_DOWNLOADING"
	OpFinalizing     = "UPDATE_STATUS_FINALIZING"
	OpNeedReboot     = "UPDATE_STATUS_UPDATED_NEED_REBOOT"
	OpReportingError = "UPDATE_STATUS_REPORTING_ERROR_EVENT"
)

// Status is the content of GetStatus and StatusUpdate (xdssx).
type Status struct {
	LastChecked int64   // seconds since 1970; 0 after a start
	Progress    float64 // 0 to 1
	Operation   string  // with the prefix
	NewVersion  string
	NewSize     int64 // bytes
}

// Options configure an engine.
type Options struct {
	// Connect opens a new connection to the host's bus that no other code uses.
	Connect func() (*dbus.Conn, error)
	// Root is the host's root directory, for the marker.
	Root string
	// Staged is called with the version for the next boot, which no later event changes.
	Staged func(version string) error
}

// Engine simulates a host's update_engine over all its boots. A setting of a test lasts until the next boot. Its
// methods are safe for concurrent use.
type Engine struct {
	o Options

	mu     sync.Mutex
	conn   *dbus.Conn // nil while the daemon does not run
	thaw   chan struct{}
	status Status
	calls  int
}

// New returns an engine, which does not run until [Engine.Start].
func New(o Options) *Engine { return &Engine{o: o} }

func (e *Engine) marker() string { return filepath.Join(e.o.Root, Marker) }

// errEngineDown is the error of an operation that needs a running daemon.
var errEngineDown = errors.New("update_engine does not run")

// Start starts the daemon. If the marker exists, the daemon reports UPDATED_NEED_REBOOT and has forgotten the version,
// otherwise it reports IDLE. It broadcasts its status. Start does nothing if the daemon runs.
func (e *Engine) Start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		return nil
	}
	conn, err := e.o.Connect()
	if err != nil {
		return fmt.Errorf("starting update_engine: %w", err)
	}
	e.status = Status{Operation: OpIdle, NewVersion: noVersion}
	if _, err := os.Stat(e.marker()); err == nil {
		e.status.Operation = OpNeedReboot
	}
	e.thaw = nil
	err = e.export(conn, e.getStatus)
	if err == nil {
		err = Own(conn, BusName)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("starting update_engine: %w", err)
	}
	e.conn = conn
	e.broadcast()
	return nil
}

// export sets the function that answers GetStatus.
func (e *Engine) export(conn *dbus.Conn, getStatus any) error {
	return conn.ExportMethodTable(map[string]any{
		"GetStatus": getStatus, "ResetStatus": e.resetStatus, "AttemptUpdate": e.attemptUpdate,
	}, Path, Interface)
}

// Stop ends the daemon: its name disappears from the bus, and the marker stays.
func (e *Engine) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		Drop(e.conn, BusName)
		e.conn = nil
	}
	e.release()
}

// release ends hanging calls.
func (e *Engine) release() {
	if e.thaw != nil {
		close(e.thaw)
		e.thaw = nil
	}
}

// Hang(true) keeps GetStatus from answering until Hang(false).
func (e *Engine) Hang(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !on:
		e.release()
	case e.thaw == nil:
		e.thaw = make(chan struct{})
	}
}

// Answer makes GetStatus answer with these values, of any number and type that D-Bus can encode, until AnswerTruth.
func (e *Engine) Answer(values ...any) error {
	types := make([]reflect.Type, 0, len(values)+1)
	results := make([]reflect.Value, 0, len(values)+1)
	for _, v := range values {
		types, results = append(types, reflect.TypeOf(v)), append(results, reflect.ValueOf(v))
	}
	var none *dbus.Error
	types, results = append(types, reflect.TypeFor[*dbus.Error]()), append(results, reflect.ValueOf(none))
	f := reflect.MakeFunc(reflect.FuncOf(nil, types, false), func([]reflect.Value) []reflect.Value {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls++
		return results
	})
	return e.reexport(f.Interface())
}

// AnswerTruth makes GetStatus answer with the status again.
func (e *Engine) AnswerTruth() error { return e.reexport(e.getStatus) }

func (e *Engine) reexport(getStatus any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	return e.export(e.conn, getStatus)
}

// Say makes the engine report any status, for example an unknown operation, with a signal or without. The marker and
// the version for the next boot do not change.
func (e *Engine) Say(s Status, signal bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	e.status = s
	if signal {
		e.broadcast()
	}
	return nil
}

// Status returns the status that GetStatus would return, and whether the daemon runs.
func (e *Engine) Status() (s Status, running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status, e.conn != nil
}

// Calls returns the number of calls of GetStatus since the creation of the host.
func (e *Engine) Calls() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}

// Forge sends StatusUpdate from another connection, like `locksmithctl send-need-reboot`.
func (e *Engine) Forge(s Status) error {
	conn, err := e.o.Connect()
	if err != nil {
		return fmt.Errorf("forging a signal: %w", err)
	}
	defer conn.Close()
	if err := conn.Emit(Path, Interface+".StatusUpdate", s.values()...); err != nil {
		return fmt.Errorf("forging a signal: %w", err)
	}
	// The bus processes messages in order, so it has forwarded the signal when it answers this call.
	return conn.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err
}

// Stage performs a whole update with the signals of the real engine. Afterwards the status is UPDATED_NEED_REBOOT, and
// the next boot boots the version in any case. Stage fails if an update is already pending.
func (e *Engine) Stage(version string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	if e.status.Operation == OpNeedReboot {
		return fmt.Errorf("an update is staged already (version %s); the engine looks for none before the next boot", e.status.NewVersion)
	}
	step := func(op string, progress float64) {
		e.status.Operation, e.status.Progress = op, progress
		e.broadcast()
	}
	step(OpChecking, 0)
	e.status.LastChecked = time.Now().Unix()
	e.status.NewVersion, e.status.NewSize = version, payloadSize
	step(OpAvailable, 0)
	for i := range downloadSteps + 1 {
		step(OpDownloading, float64(i)/downloadSteps)
	}
	step(OpFinalizing, 1)
	if err := e.o.Staged(version); err != nil { // from here on the next boot boots the version in any case
		return fmt.Errorf("switching the next boot to %s: %w", version, err)
	}
	if err := os.WriteFile(e.marker(), nil, 0o644); err != nil {
		return fmt.Errorf("marking the update as completed: %w", err)
	}
	step(OpNeedReboot, 0)
	return nil
}

// Reset implements ResetStatus: afterwards the engine is IDLE and has sent no signal, but the partition switch stays.
func (e *Engine) Reset() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	switch e.status.Operation {
	case OpIdle:
	case OpNeedReboot:
		if err := os.Remove(e.marker()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the marker: %w", err)
		}
		e.status.Operation = OpIdle
	default:
		return fmt.Errorf("reset not allowed in state %s", e.status.Operation)
	}
	return nil
}

func (e *Engine) resetStatus() *dbus.Error {
	if err := e.Reset(); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

// attemptUpdate is a check that finds nothing new. If an update is staged, the engine only repeats its status.
func (e *Engine) attemptUpdate() *dbus.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.status.Operation == OpIdle {
		e.status.Operation = OpChecking
		e.broadcast()
		e.status.Operation, e.status.LastChecked = OpIdle, time.Now().Unix()
	}
	e.broadcast()
	return nil
}

func (e *Engine) getStatus() (int64, float64, string, string, int64, *dbus.Error) {
	e.mu.Lock()
	e.calls++
	thaw := e.thaw
	e.mu.Unlock()
	if thaw != nil {
		<-thaw
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.status
	return s.LastChecked, s.Progress, s.Operation, s.NewVersion, s.NewSize, nil
}

// broadcast sends StatusUpdate. The caller must hold mu. A failure does not matter, because it means that the bus is
// gone.
func (e *Engine) broadcast() {
	if e.conn != nil {
		_ = e.conn.Emit(Path, Interface+".StatusUpdate", e.status.values()...)
	}
}

func (s Status) values() []any {
	return []any{s.LastChecked, s.Progress, s.Operation, s.NewVersion, s.NewSize}
}

// Own requests a well-known name for conn. It fails if another connection owns the name.
func Own(conn *dbus.Conn, name string) error {
	reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue)
	if err == nil && reply != dbus.RequestNameReplyPrimaryOwner {
		err = fmt.Errorf("another connection owns the name (reply %d)", reply)
	}
	if err != nil {
		return fmt.Errorf("owning %s: %w", name, err)
	}
	return nil
}

// Drop releases a name and closes its owner's connection. When it returns, the bus has released the name, unless the bus
// itself is gone.
func Drop(conn *dbus.Conn, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.ReleaseName", 0, name).Err // closing the connection would release the name too, but later
	conn.Close()
}
