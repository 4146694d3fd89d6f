package realhost

import (
	"context"
	"fmt"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// EngineUnit is the stand-in's unit; to stop, mask or freeze the engine is systemctl's to do.
const EngineUnit = "update-engine.service"

// StageUpdate has the host's engine go through a whole update: afterwards it says UPDATED_NEED_REBOOT, and the next boot boots the
// version, whatever it comes from. It fails when one is pending already, or the engine does not run.
func (h *Host) StageUpdate(ctx context.Context, version string) error {
	return h.callEngine(ctx, engine.KnobPath, engine.KnobInterface+".Stage", nil, version)
}

// ResetStatus is the engine's: it is IDLE afterwards, without a signal, and the next boot boots what was staged all the same.
func (h *Host) ResetStatus(ctx context.Context) error {
	return h.callEngine(ctx, engine.Path, engine.Interface+".ResetStatus", nil)
}

// EngineStatus is what the engine answers to GetStatus.
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

// StopEngine stops the engine: its name goes from the bus, the marker stays. StartEngine starts it again.
func (h *Host) StopEngine(ctx context.Context) error {
	_, err := h.Exec(ctx, "systemctl", "stop", EngineUnit)
	return err
}

// StartEngine starts the engine: with an update pending it has forgotten the version.
func (h *Host) StartEngine(ctx context.Context) error {
	_, err := h.Exec(ctx, "systemctl", "start", EngineUnit)
	return err
}
