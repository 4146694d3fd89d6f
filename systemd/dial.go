package systemd

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	systemBusAddress = "unix:path=/run/dbus/system_bus_socket"
	writeTimeout     = 10 * time.Second
)

// dial connects to a message bus, and returns when the connection is ready for calls. ctx bounds the connecting, not the
// connection.
//
// godbus's own Dial is not used, because this process runs as root and other users of the bus are not trusted. Dial waits
// without a bound for a bus that accepts a connection and then sends nothing. It accepts file descriptors, with which any
// local user could fill this process. Its default signal handler starts a goroutine for each signal that is not read yet.
//
// The clients in go-systemd's dbus and login1 packages are not used either. They count a signal that any process sends, do
// not survive a restart of the bus, and let the bus keep a call for a service that starts later. login1 hides the errors of
// a reboot as well.
func (b *Bus) dial(ctx context.Context, signals dbus.SignalHandler) (*dbus.Conn, error) {
	open := b.Dial
	if open == nil {
		open = b.openSocket
	}
	socket, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to the bus: %w", err)
	}
	conn, err := dbus.NewConn(&stream{bufio.NewReader(socket), socket}, dbus.WithSignalHandler(signals))
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("connecting to the bus: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() }) // ends the reads in which Auth and Hello wait
	if err = conn.Auth(nil); err == nil {
		err = conn.Hello()
	}
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("authenticating to the bus: %w", err)
	}
	return conn, nil
}

// openSocket connects to the socket that the bus's address names.
func (b *Bus) openSocket(ctx context.Context) (net.Conn, error) {
	name, err := socketName(cmp.Or(b.Address, os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), systemBusAddress))
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "unix", name)
}

// socketName returns the name of the socket in a D-Bus address, which is a path or an abstract name: system buses have no
// others. It accepts one address, not a list.
func socketName(address string) (string, error) {
	pairs, unix := strings.CutPrefix(address, "unix:")
	for pair := range strings.SplitSeq(pairs, ",") {
		key, value, _ := strings.Cut(pair, "=")
		if prefix, ok := map[string]string{"path": "", "abstract": "@"}[key]; ok && unix {
			value, err := dbus.UnescapeBusAddressValue(value)
			return prefix + value, err
		}
	}
	return "", fmt.Errorf("bus address %q is not unix:path= or unix:abstract=", address)
}

// stream buffers reads, because godbus reads a message in many small pieces. It bounds writes, so that a bus that has
// stopped reading cannot hold a caller, or Close, indefinitely.
type stream struct {
	*bufio.Reader
	net.Conn
}

func (s *stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// Write writes at once what the socket takes, and that is all of it unless the bus has stopped reading. Only then it sets a
// deadline, whose timer would otherwise wake an idle process after each call.
func (s *stream) Write(p []byte) (n int, err error) {
	if n = writeNow(s.Conn, p); n == len(p) {
		return n, nil
	}
	if err := s.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return n, err
	}
	rest, err := s.Conn.Write(p[n:])
	_ = s.Conn.SetWriteDeadline(time.Time{}) // fails only if the connection is closed
	return n + rest, err
}

// writeNow writes as much as it can without waiting, and returns how much that was. It writes nothing to what is not a socket.
func writeNow(c net.Conn, p []byte) (n int) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Write(func(fd uintptr) bool {
			n, _ = syscall.Write(int(fd), p)
			return true
		})
	}
	if err != nil {
		return 0 // the caller's next write fails too
	}
	return max(n, 0)
}
