package simhost

import (
	"fmt"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// Engine is the simulated update_engine of a host. It exists over all boots. It cannot start while the host is down.
type Engine = engine.Engine

// EngineStatus is the content of GetStatus and StatusUpdate.
type EngineStatus = engine.Status

// The engine's operations, as GetStatus returns them.
const (
	OpIdle       = engine.OpIdle
	OpNeedReboot = engine.OpNeedReboot
)

func (h *Host) newEngine() *Engine {
	return engine.New(engine.Options{
		Root: h.Root(),
		Connect: func() (*dbus.Conn, error) {
			b := h.current()
			if b == nil {
				return nil, fmt.Errorf("connecting to the bus: %w", errDown)
			}
			return b.theBus().connect()
		},
		Staged: func(version string) error {
			h.update(func() { h.staged = version })
			return nil
		},
	})
}
