package simhost

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/workdir"
)

const (
	busSocket    = "bus"
	notifySocket = "notify" // the longest socket name of a host

	busStartTimeout = time.Minute
)

// bus is one run of a host's dbus-daemon. Every process that can reach its socket may use it.
type bus struct {
	address string
	proc    *process
}

func startBus(ctx context.Context, dir *workdir.Dir) (*bus, error) {
	socket := dir.Join(busSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing the bus's old socket: %w", err)
	}
	address := "unix:path=" + dbus.EscapeBusAddressValue(socket)
	var listen strings.Builder
	if err := xml.EscapeText(&listen, []byte(address)); err != nil {
		return nil, fmt.Errorf("writing the bus's configuration: %w", err)
	}
	config := `<busconfig>
  <type>system</type>
  <listen>` + listen.String() + `</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/><allow send_type="signal"/><allow receive_sender="*"/><allow own="*"/>
  </policy>
</busconfig>
`
	if err := os.WriteFile(dir.Join("bus.conf"), []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("writing the bus's configuration: %w", err)
	}
	log, err := os.OpenFile(dir.Join("bus.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the bus's log: %w", err)
	}
	defer log.Close() // the child process has its own copy
	ready, said, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting dbus-daemon: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command("dbus-daemon", "--config-file="+dir.Join("bus.conf"), "--nofork", "--nopidfile", "--nosyslog", "--print-address")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = said, log
	p, err := startProcess(cmd)
	said.Close()
	if err != nil {
		return nil, fmt.Errorf("starting dbus-daemon (Debian's package dbus-daemon is needed): %w", err)
	}
	// dbus-daemon prints its address once it listens.
	if err := ready.SetReadDeadline(time.Now().Add(busStartTimeout)); err != nil {
		p.end(0, nil)
		return nil, fmt.Errorf("starting dbus-daemon: %w", err)
	}
	defer context.AfterFunc(ctx, func() { ready.Close() })()
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		p.end(0, nil)
		text, _ := os.ReadFile(dir.Join("bus.log"))
		return nil, fmt.Errorf("waiting for dbus-daemon to listen: %w (output: %s)", err, controlplane.LastLines(string(text), 5))
	}
	return &bus{address: address, proc: p}, nil
}

// connect returns a new connection without handlers.
func (b *bus) connect(opts ...dbus.ConnOption) (*dbus.Conn, error) {
	conn, err := dbus.Connect(b.address, opts...)
	if err != nil {
		return nil, fmt.Errorf("connecting to the host's bus: %w", err)
	}
	return conn, nil
}

func (b *bus) stop(grace time.Duration) { b.proc.end(grace, nil) }
