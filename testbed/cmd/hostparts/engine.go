package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// runEngine runs the engine's service on the bus until ctx ends or the bus is gone.
func runEngine(ctx context.Context, root, state string) error {
	if err := os.MkdirAll(state, 0o755); err != nil {
		return fmt.Errorf("creating the engine's directory: %w", err)
	}
	lost, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var e *engine.Engine
	e = engine.New(engine.Options{
		Root: root,
		Connect: func() (*dbus.Conn, error) {
			conn, err := dbus.ConnectSystemBus()
			if err != nil {
				return nil, err
			}
			context.AfterFunc(conn.Context(), func() { cancel(errors.New("the connection to the bus is lost")) })
			return conn, conn.Export(knob{e}, engine.KnobPath, engine.KnobInterface)
		},
		Staged: func(version string) error { return writeFile(filepath.Join(state, engine.StagedFile), version) },
	})
	if err := e.Start(); err != nil {
		return err
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		return fmt.Errorf("telling systemd: %w", err)
	}
	<-lost.Done()
	e.Stop()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(lost)
}

// writeFile replaces a file atomically, because the host may lose power at any moment.
func writeFile(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// knob is the additional D-Bus interface of the engine.
type knob struct{ e *engine.Engine }

// Stage makes the engine perform an update.
func (k knob) Stage(version string) *dbus.Error {
	if err := k.e.Stage(version); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}
