package realhost

import (
	"context"
	"fmt"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// EngineUnit is the unit of the simulated update_engine. Use systemctl to stop, mask or freeze it.
const EngineUnit = "update-engine.service"

// StageUpdate makes the host's engine perform a whole update. Afterwards its status is UPDATED_NEED_REBOOT, and the
// next boot boots the version, whatever causes that boot. StageUpdate fails if an update is already pending, or if the
// engine does not run.
func (h *Host) StageUpdate(ctx context.Context, version string) error {
	return h.callEngine(ctx, engine.KnobPath, engine.KnobInterface+".Stage", nil, version)
}

// ResetStatus calls ResetStatus of the engine. Afterwards the engine is IDLE and has sent no signal, and the next boot
// still boots the staged version.
func (h *Host) ResetStatus(ctx context.Context) error {
	return h.callEngine(ctx, engine.Path, engine.Interface+".ResetStatus", nil)
}

// EngineStatus returns the engine's answer to GetStatus.
func (h *Host) EngineStatus(ctx context.Context) (s engine.Status, err error) {
	err = h.callEngine(ctx, engine.Path, engine.Interface+".GetStatus",
		[]any{&s.LastChecked, &s.Progress, &s.Operation, &s.NewVersion, &s.NewSize})
	return s, err
}

func (h *Host) callEngine(ctx context.Context, path dbus.ObjectPath, method string, into []any, args ...any) error {
	conn, err := h.Bus()
	if err != nil {
		return err
	}
	defer conn.Close()
	call := conn.Object(engine.BusName, path).CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...)
	if err := call.Store(into...); err != nil {
		return fmt.Errorf("calling %s on %s: %w", method, h.opts.Name, err)
	}
	return nil
}

// StopEngine stops the engine: its name disappears from the bus, and the marker stays. StartEngine starts it again.
func (h *Host) StopEngine(ctx context.Context) error {
	_, err := h.Exec(ctx, "systemctl", "stop", EngineUnit)
	return err
}

// StartEngine starts the engine. If an update is pending, the engine has forgotten its version.
func (h *Host) StartEngine(ctx context.Context) error {
	_, err := h.Exec(ctx, "systemctl", "start", EngineUnit)
	return err
}
