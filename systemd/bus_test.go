package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// This file provides a real dbus-daemon for the tests.

const busConfig = `<busconfig>
  <type>session</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <servicedir>%s</servicedir>
  <policy context="default">
    <allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/>
  </policy>
</busconfig>`

type testBus struct {
	t       *testing.T
	dir     string
	Address string
	cmd     *exec.Cmd
}

func newBus(t *testing.T) *testBus {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // t.TempDir can be too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	b := &testBus{t: t, dir: dir, Address: "unix:path=" + filepath.Join(dir, "bus")}
	t.Cleanup(func() { b.Stop(); os.RemoveAll(dir) })
	must(t, os.Mkdir(filepath.Join(dir, "services"), 0o700))
	config := fmt.Sprintf(busConfig, filepath.Join(dir, "bus"), filepath.Join(dir, "services"))
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Start()
	return b
}

// Start starts the daemon and returns when the daemon answers.
func (b *testBus) Start() {
	b.t.Helper()
	b.cmd = exec.Command("dbus-daemon", "--config-file="+filepath.Join(b.dir, "conf"), "--nofork", "--nopidfile", "--nosyslog")
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatalf("starting dbus-daemon (Debian's package dbus-daemon is needed): %v", err)
	}
	eventually(b.t, "the bus to answer", func() bool {
		conn, err := dbus.Connect(b.Address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// Activatable configures the bus to start a command when a call arrives for a name without an owner. The change takes
// effect at the next Start.
func (b *testBus) Activatable(name, command string) {
	b.t.Helper()
	text := fmt.Sprintf("[D-BUS Service]\nName=%s\nExec=%s\n", name, command)
	must(b.t, os.WriteFile(filepath.Join(b.dir, "services", name+".service"), []byte(text), 0o600))
}

// Stop kills the daemon, as a crash would.
func (b *testBus) Stop() {
	if b.cmd != nil {
		b.cmd.Process.Kill()
		b.cmd.Wait()
		b.cmd = nil
		os.Remove(filepath.Join(b.dir, "bus"))
	}
}

// Freeze stops the daemon from answering without closing anything. The returned function ends that.
func (b *testBus) Freeze() func() {
	process := b.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		b.t.Fatal(err)
	}
	return func() { process.Signal(syscall.SIGCONT) }
}

func (b *testBus) Connect() *dbus.Conn {
	b.t.Helper()
	conn, err := dbus.Connect(b.Address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually polls until condition returns true. It fails the test after a minute.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.Millisecond; !condition(); tick = min(2*tick, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after a minute waiting for %s", what)
		}
		time.Sleep(tick)
	}
}
