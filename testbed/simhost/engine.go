package simhost

import (
	"fmt"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// Engine is a host's stand-in for update_engine, over all its boots; on a host that is down it cannot be started.
type Engine = engine.Engine

// EngineStatus is what GetStatus answers and StatusUpdate carries.
type EngineStatus = engine.Status

// The engine's operations, as GetStatus says them.
const (
	OpIdle           = engine.OpIdle
	OpChecking       = engine.OpChecking
	OpAvailable      = engine.OpAvailable
	OpDownloading    = engine.OpDownloading
	OpFinalizing     = engine.OpFinalizing
	OpNeedReboot     = engine.OpNeedReboot
	OpReportingError = engine.OpReportingError
)

func (h *Host) newEngine() *Engine {
	return engine.New(engine.Options{
		Root: h.Root(),
		Connect: func() (*dbus.Conn, error) {
			b := h.current()
			if b == nil {
				return nil, fmt.Errorf("on its bus: %w", errDown)
			}
			return b.theBus().connect()
		},
		Staged: func(version string) error {
			h.update(func() { h.staged = version })
			return nil
		},
	})
}
