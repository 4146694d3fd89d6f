package realhost

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// These are the names of logind on the bus.
const (
	loginName  = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	loginIface = "org.freedesktop.login1.Manager"
)

// TestbedInhibitor is the owner of the delay inhibitor that the testbed holds on a host, see [RebootCalled].
const TestbedInhibitor = "testbed"

// Bus connects to the host's own system bus as root. It fails while the host is down or its bus does not run. Methods
// that check the caller's process, like Inhibit of logind, refuse a process outside the host.
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

// waitBus connects to the bus, which becomes available only some time after the start of a boot.
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
		return fmt.Errorf("calling %s of logind on %s: %w", method, h.opts.Name, err)
	}
	return nil
}

// Inhibitor is an inhibitor as ListInhibitors of logind returns it.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// Inhibitors returns the inhibitors of the host's logind, except the one of the testbed.
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

// watchLogind reports shutdowns before they begin, until the boot ends. It runs a process in the host for that, because
// logind gives no inhibitor to processes outside its PID namespace.
func (h *Host) watchLogind(b *boot) {
	cmd := command(b.ctx, "hostparts", "watch", TestbedInhibitor)
	answer, err := cmd.StdinPipe()
	if err != nil {
		return // no more files can be opened, so other operations will fail too
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

// BusAddress returns the D-Bus address of the host's system bus in its current boot, or "" while the host is down.
func (h *Host) BusAddress() string {
	b := h.current()
	if b == nil {
		return ""
	}
	return b.busAddress()
}
