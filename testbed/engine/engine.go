// Package engine is the test bed's stand-in for Flatcar's update_engine: on the bus it keeps to what the real one does, odd
// as that may be, and for a test it has knobs. Simulated hosts run it in the test's own process, real hosts as a service. It
// knows a bus and the directory that is a host's root, nothing of lockkeeper's.
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

// update_engine as it is on the bus.
const (
	BusName   = "com.coreos.update1"
	Path      = dbus.ObjectPath("/com/coreos/update1")
	Interface = "com.coreos.update1.Manager"

	// Marker says, below the host's root, that an update waits for a reboot. /run is emptied by a reboot.
	Marker = "run/update_engine_autoupdate_completed"

	// A service that runs an engine has its knob for tests at a path and an interface of its own, with one method, Stage(s), and
	// keeps what the next boot boots in a file of this name.
	KnobPath      = dbus.ObjectPath("/dev/lockkeeper/testbed/engine")
	KnobInterface = "dev.lockkeeper.testbed.Engine"
	StagedFile    = "staged"

	noVersion = "0.0.0"

	payloadSize   = int64(256 << 20) // bytes
	downloadSteps = 4
)

// The engine's operations, as GetStatus says them.
const (
	OpIdle           = "UPDATE_STATUS_IDLE"
	OpChecking       = "UPDATE_STATUS_CHECKING_FOR_UPDATE"
	OpAvailable      = "UPDATE_STATUS_UPDATE_AVAILABLE"
	OpDownloading    = "UPDATE_STATUS_DOWNLOADING"
	OpFinalizing     = "UPDATE_STATUS_FINALIZING"
	OpNeedReboot     = "UPDATE_STATUS_UPDATED_NEED_REBOOT"
	OpReportingError = "UPDATE_STATUS_REPORTING_ERROR_EVENT"
)

// Status is what GetStatus answers and StatusUpdate carries (xdssx).
type Status struct {
	LastChecked int64   // seconds since 1970; 0 after a start
	Progress    float64 // 0 to 1
	Operation   string  // with its prefix
	NewVersion  string
	NewSize     int64 // bytes
}

// Options say where an engine is.
type Options struct {
	// Connect makes a connection to the host's bus, one that no one else uses.
	Connect func() (*dbus.Conn, error)
	// Root is the host's root directory, for the marker.
	Root string
	// Staged is called with the version that the next boot will boot from now on, whatever else happens.
	Staged func(version string) error
}

// Engine is a host's stand-in for update_engine, over all its boots. What a knob sets lasts until the next boot. Its methods
// may be called by several goroutines.
type Engine struct {
	o Options

	mu     sync.Mutex
	conn   *dbus.Conn // nil while the daemon does not run
	thaw   chan struct{}
	status Status
	calls  int
}

// New makes an engine, which does not run before [Engine.Start].
func New(o Options) *Engine { return &Engine{o: o} }

func (e *Engine) marker() string { return filepath.Join(e.o.Root, Marker) }

// errEngineDown is what comes of asking for something while the daemon does not run.
var errEngineDown = errors.New("update_engine does not run")

// Start starts the daemon: with the marker there it says UPDATED_NEED_REBOOT and has forgotten the version, else IDLE. It
// broadcasts its status. Starting one that runs is not an error.
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
		err = own(conn)
	}
	if err != nil {
		conn.Close()
		return fmt.Errorf("starting update_engine: %w", err)
	}
	e.conn = conn
	e.broadcast()
	return nil
}

// export says which function answers GetStatus.
func (e *Engine) export(conn *dbus.Conn, getStatus any) error {
	return conn.ExportMethodTable(map[string]any{
		"GetStatus": getStatus, "ResetStatus": e.resetStatus, "AttemptUpdate": e.attemptUpdate,
	}, Path, Interface)
}

// Stop ends the daemon: its name goes from the bus, the marker stays.
func (e *Engine) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		drop(e.conn)
		e.conn = nil
	}
	e.release()
}

// release lets hanging calls go.
func (e *Engine) release() {
	if e.thaw != nil {
		close(e.thaw)
		e.thaw = nil
	}
}

// Hang keeps GetStatus from answering, until it is called with false.
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

// Answer has GetStatus answer with these values, whatever their number and types; D-Bus must be able to carry them.
// AnswerTruth ends it.
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

// AnswerTruth has GetStatus answer with the status again.
func (e *Engine) AnswerTruth() error { return e.reexport(e.getStatus) }

func (e *Engine) reexport(getStatus any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	return e.export(e.conn, getStatus)
}

// Say makes the engine claim a status, with a signal or without, whatever it really does: an operation that no one knows,
// for one. The marker and what the next boot will boot stay as they are.
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

// Status is what GetStatus would answer, and whether the daemon runs.
func (e *Engine) Status() (s Status, running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status, e.conn != nil
}

// Calls is how often GetStatus was called since the host was made.
func (e *Engine) Calls() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}

// Forge sends StatusUpdate from a connection of its own, as `locksmithctl send-need-reboot` does.
func (e *Engine) Forge(s Status) error {
	conn, err := e.o.Connect()
	if err != nil {
		return fmt.Errorf("forging a signal: %w", err)
	}
	defer conn.Close()
	if err := conn.Emit(Path, Interface+".StatusUpdate", s.values()...); err != nil {
		return fmt.Errorf("forging a signal: %w", err)
	}
	// The bus has passed on what came before this call when it answers.
	return conn.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err
}

// Stage goes through a whole update with the signals of the real one: afterwards its status is UPDATED_NEED_REBOOT, and the
// next boot boots the version, whatever else happens. It fails when one is pending already.
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
	if err := e.o.Staged(version); err != nil { // from here on the next boot boots it, whatever else happens
		return fmt.Errorf("switching the next boot to %s: %w", version, err)
	}
	if err := os.WriteFile(e.marker(), nil, 0o644); err != nil {
		return fmt.Errorf("marking the update as completed: %w", err)
	}
	step(OpNeedReboot, 0)
	return nil
}

// Reset is ResetStatus: IDLE afterwards, without a signal; the partition switch stays.
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

// attemptUpdate is a check that finds nothing new: with an update staged the engine only repeats itself.
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

// broadcast sends StatusUpdate; mu is held. A bus that is going away hears nothing, and no one misses it.
func (e *Engine) broadcast() {
	if e.conn != nil {
		_ = e.conn.Emit(Path, Interface+".StatusUpdate", e.status.values()...)
	}
}

func (s Status) values() []any {
	return []any{s.LastChecked, s.Progress, s.Operation, s.NewVersion, s.NewSize}
}

// own has conn own the engine's name, and fails if another connection does.
func own(conn *dbus.Conn) error {
	reply, err := conn.RequestName(BusName, dbus.NameFlagDoNotQueue)
	if err == nil && reply != dbus.RequestNameReplyPrimaryOwner {
		err = fmt.Errorf("it has another owner (reply %d)", reply)
	}
	if err != nil {
		return fmt.Errorf("owning %s: %w", BusName, err)
	}
	return nil
}

// drop gives the name back and closes its owner's connection, so that the bus knows when drop returns; unless the bus is gone.
func drop(conn *dbus.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.ReleaseName", 0, BusName).Err // closing does the same, later
	conn.Close()
}
