package simhost

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// update_engine as it is on the bus.
const (
	engineName  = "com.coreos.update1"
	enginePath  = dbus.ObjectPath("/com/coreos/update1")
	engineIface = "com.coreos.update1.Manager"

	// marker says, below the host's root, that an update waits for a reboot. /run is emptied by a reboot.
	marker = "run/update_engine_autoupdate_completed"

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

// EngineStatus is what GetStatus answers and StatusUpdate carries (xdssx).
type EngineStatus struct {
	LastChecked int64   // seconds since 1970; 0 after a start
	Progress    float64 // 0 to 1
	Operation   string  // with its prefix
	NewVersion  string
	NewSize     int64 // bytes
}

// Engine is a host's stand-in for update_engine, over all its boots. What a knob sets lasts until the next boot. Its methods
// may be called by several goroutines.
type Engine struct {
	h *Host

	mu     sync.Mutex
	conn   *dbus.Conn // nil while the daemon does not run
	thaw   chan struct{}
	status EngineStatus
	calls  int
}

// errEngineDown is what comes of asking for something while the daemon does not run.
var errEngineDown = errors.New("update_engine does not run")

// Start starts the daemon: with the marker there it says UPDATED_NEED_REBOOT and has forgotten the version, else IDLE. It
// broadcasts its status. Starting one that runs is no error; on a host that is down it is.
func (e *Engine) Start() error {
	b := e.h.current()
	if b == nil {
		return fmt.Errorf("starting update_engine: %w", errDown)
	}
	return e.start(b.theBus())
}

func (e *Engine) start(bus *bus) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		return nil
	}
	conn, err := bus.connect()
	if err != nil {
		return fmt.Errorf("starting update_engine: %w", err)
	}
	e.status = EngineStatus{Operation: OpIdle, NewVersion: noVersion}
	if e.h.exists(marker) {
		e.status.Operation = OpNeedReboot
	}
	e.thaw = nil
	err = e.export(conn, e.getStatus)
	if err == nil {
		err = own(conn, engineName)
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
	}, enginePath, engineIface)
}

// Stop ends the daemon: its name goes from the bus, the marker stays.
func (e *Engine) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		drop(e.conn, engineName)
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

// Say makes the engine claim a status, with a signal or without, whatever it really does: an operation that nobody knows,
// for one. The marker and what the next boot will boot stay as they are.
func (e *Engine) Say(s EngineStatus, signal bool) error {
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
func (e *Engine) Status() (s EngineStatus, running bool) {
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
func (e *Engine) Forge(s EngineStatus) error {
	b := e.h.current()
	if b == nil {
		return fmt.Errorf("forging a signal: %w", errDown)
	}
	conn, err := b.theBus().connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Emit(enginePath, engineIface+".StatusUpdate", s.values()...); err != nil {
		return fmt.Errorf("forging a signal: %w", err)
	}
	// The bus has passed on what came before this call when it answers.
	return conn.BusObject().Call("org.freedesktop.DBus.GetId", 0).Err
}

// stage goes through a whole update with the signals of the real one.
func (e *Engine) stage(version string) error {
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
	e.h.setStaged(version) // from here on the next boot boots it, whatever else happens
	if err := os.WriteFile(e.h.rootPath(marker), nil, 0o644); err != nil {
		return fmt.Errorf("marking the update as completed: %w", err)
	}
	step(OpNeedReboot, 0)
	return nil
}

// reset is ResetStatus: no signal, and the partition switch stays.
func (e *Engine) reset() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errEngineDown
	}
	switch e.status.Operation {
	case OpIdle:
	case OpNeedReboot:
		if err := os.Remove(e.h.rootPath(marker)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the marker: %w", err)
		}
		e.status.Operation = OpIdle
	default:
		return fmt.Errorf("reset not allowed in state %s", e.status.Operation)
	}
	return nil
}

func (e *Engine) resetStatus() *dbus.Error {
	if err := e.reset(); err != nil {
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

// broadcast sends StatusUpdate; mu is held. A bus that is going away hears nothing, and nobody misses it.
func (e *Engine) broadcast() {
	if e.conn != nil {
		_ = e.conn.Emit(enginePath, engineIface+".StatusUpdate", e.status.values()...)
	}
}

func (s EngineStatus) values() []any {
	return []any{s.LastChecked, s.Progress, s.Operation, s.NewVersion, s.NewSize}
}
