package realhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// logind as it is on the bus.
const (
	loginName  = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	loginIface = "org.freedesktop.login1.Manager"
)

// TestbedInhibitor is who holds the delay inhibitor that the test bed takes for itself on a host, see [RebootCalled].
const TestbedInhibitor = "testbed"

// Bus connects to the host's own system bus, as root. It fails while the host is down or has no bus (yet).
func (h *Host) Bus() (*dbus.Conn, error) {
	b := h.current()
	if b == nil {
		return nil, fmt.Errorf("connecting to the bus of %s: %w", h.opts.Name, errDown)
	}
	conn, err := b.bus()
	if err != nil {
		return nil, fmt.Errorf("connecting to the bus of %s: %w", h.opts.Name, err)
	}
	return conn, nil
}

func (b *boot) bus() (*dbus.Conn, error) {
	return dbus.Connect(fmt.Sprintf("unix:path=/proc/%d/root/run/dbus/system_bus_socket", b.pid))
}

// waitBus connects to the bus, which a boot has only after a while.
func (h *Host) waitBus(ctx context.Context) (*dbus.Conn, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := h.Bus()
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (last error: %v)", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (h *Host) callLogind(ctx context.Context, method string, args ...any) error {
	conn, err := h.waitBus(ctx)
	if err == nil {
		defer conn.Close()
		err = conn.Object(loginName, loginPath).CallWithContext(ctx, loginIface+"."+method, 0, args...).Err
	}
	if err != nil {
		return fmt.Errorf("asking logind on %s for %s: %w", h.opts.Name, method, err)
	}
	return nil
}

// An Inhibitor is one of logind's, as ListInhibitors tells it.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// Inhibitors are those that the host's logind knows; the test bed's own is left out.
func (h *Host) Inhibitors(ctx context.Context) ([]Inhibitor, error) {
	conn, err := h.Bus()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var all []Inhibitor
	if err := conn.Object(loginName, loginPath).CallWithContext(ctx, loginIface+".ListInhibitors", 0).Store(&all); err != nil {
		return nil, fmt.Errorf("listing the inhibitors of %s: %w", h.opts.Name, err)
	}
	var others []Inhibitor
	for _, i := range all {
		if i.Who != TestbedInhibitor {
			others = append(others, i)
		}
	}
	return others, nil
}

// watchLogind tells of shutdowns before they begin, as long as the boot lasts: also after the bus or logind were restarted.
func (h *Host) watchLogind(b *boot) {
	for b.ctx.Err() == nil {
		_ = h.watchOnce(b) // a bus that is not there yet, or no more
		select {
		case <-b.ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// errAgain ends a watch that has to be begun anew.
var errAgain = errors.New("the watch has to be begun anew")

func (h *Host) watchOnce(b *boot) error {
	conn, err := b.bus()
	if err != nil {
		return err
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(b.ctx, dbus.WithMatchInterface(loginIface), dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		return err
	}
	if err := conn.AddMatchSignalContext(b.ctx, dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"),
		dbus.WithMatchArg(0, loginName)); err != nil {
		return err
	}
	var fd dbus.UnixFD
	if err := conn.Object(loginName, loginPath).CallWithContext(b.ctx, loginIface+".Inhibit", 0,
		"shutdown", TestbedInhibitor, "tells the test of reboots", "delay").Store(&fd); err != nil {
		return err
	}
	inhibitor := os.NewFile(uintptr(fd), "inhibitor")
	defer inhibitor.Close()
	for {
		select {
		case <-b.ctx.Done():
			return nil
		case s, ok := <-signals:
			switch {
			case !ok:
				return errAgain
			case s.Name == loginIface+".PrepareForShutdown" && len(s.Body) == 1 && s.Body[0] == true:
				h.emit(RebootCalled, b.id, "")
				inhibitor.Close()
			case s.Name == loginIface+".PrepareForShutdown", s.Name == "org.freedesktop.DBus.NameOwnerChanged":
				return errAgain // called off, or another logind
			}
		}
	}
}
