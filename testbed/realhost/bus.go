package realhost

import (
	"bufio"
	"context"
	"fmt"
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

// Bus connects to the host's own system bus, as root. It fails while the host is down or has no bus (yet). What wants to know
// the caller's process, as logind does for Inhibit, refuses one from outside the host.
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
	return dbus.Connect(b.busAddress())
}

func (b *boot) busAddress() string {
	return fmt.Sprintf("unix:path=/proc/%d/root/run/dbus/system_bus_socket", b.pid)
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

// watchLogind tells of shutdowns before they begin, as long as the boot lasts. What it needs for that runs in the host: logind
// gives no inhibitor to processes outside its PID namespace.
func (h *Host) watchLogind(b *boot) {
	cmd := command(b.ctx, "hostparts", "watch", TestbedInhibitor)
	answer, err := cmd.StdinPipe()
	if err != nil {
		return // no more files can be opened: more than this will go wrong
	}
	defer answer.Close()
	said, err := cmd.StdoutPipe()
	if err == nil {
		err = b.start(cmd)
	}
	if err != nil {
		h.lab.printf("%s: watching logind: %v", h.opts.Name, err)
		return
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		h.emit(RebootCalled, b.id, "")
		fmt.Fprintln(answer)
	}
	_ = cmd.Wait() // it ends with the host
}

// BusAddress is that of the host's system bus in its present boot, in D-Bus's notation; "" while it is down.
func (h *Host) BusAddress() string {
	b := h.current()
	if b == nil {
		return ""
	}
	return b.busAddress()
}
