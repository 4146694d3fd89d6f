package systemd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// The same small file stands in package updateengine: the two rooms may not import each other, and what they share
// is too little for a room of its own.

const (
	systemBusAddress = "unix:path=/run/dbus/system_bus_socket"
	writeTimeout     = 10 * time.Second
)

// dial connects to a message bus and is ready for calls when it returns; ctx bounds the connecting, not the
// connection. "" is the system bus (DBUS_SYSTEM_BUS_ADDRESS heeded).
//
// godbus's own Dial is not used for three reasons, all of them about a service that runs as root beside users it
// does not trust: it waits without bound for a bus that accepts and then says nothing; it agrees to take file
// descriptors, which any local user could then fill this process with by sending it signals; and its default
// signal handler starts a goroutine for each signal nobody has read yet.
func dial(ctx context.Context, address string, signals dbus.SignalHandler) (*dbus.Conn, error) {
	socket, err := dialSocket(ctx, busAddress(address))
	if err != nil {
		return nil, fmt.Errorf("connecting to the bus: %w", err)
	}
	conn, err := dbus.NewConn(&stream{bufio.NewReader(socket), socket}, dbus.WithSignalHandler(signals))
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("connecting to the bus: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() }) // ends the reads that Auth and Hello wait in
	if err = conn.Auth(nil); err == nil {
		err = conn.Hello()
	}
	if !stop() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("introducing ourselves to the bus: %w", err)
	}
	return conn, nil
}

func busAddress(address string) string {
	return cmp.Or(address, os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), systemBusAddress)
}

// dialSocket takes the first address of a D-Bus address list that answers. Only unix sockets named by path or
// abstract name are understood: there is no system bus elsewhere.
func dialSocket(ctx context.Context, addresses string) (net.Conn, error) {
	var errs []error
	for address := range strings.SplitSeq(addresses, ";") {
		name, err := socketName(address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", name)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func socketName(address string) (string, error) {
	if transport, pairs, _ := strings.Cut(address, ":"); transport == "unix" {
		for pair := range strings.SplitSeq(pairs, ",") {
			key, value, _ := strings.Cut(pair, "=")
			value, err := dbus.UnescapeBusAddressValue(value)
			if err != nil {
				return "", fmt.Errorf("bus address %q: %w", address, err)
			}
			switch key {
			case "path":
				return value, nil
			case "abstract":
				return "@" + value, nil
			}
		}
	}
	return "", fmt.Errorf("bus address %q is not unix:path= or unix:abstract=", address)
}

// stream buffers reads (godbus reads a message in many small pieces) and bounds writes, so that a bus that has
// stopped reading cannot hold a caller, or Close, for ever.
type stream struct {
	*bufio.Reader
	net.Conn
}

func (s *stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func (s *stream) Write(p []byte) (int, error) {
	if err := s.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}
