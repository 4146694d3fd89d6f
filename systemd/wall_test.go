package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// terminal is a real pseudoterminal.
type terminal struct {
	t      *testing.T
	master *os.File
	name   string // below /dev
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { master.Close() })
	conn, err := master.SyscallConn()
	must(t, err)
	var unlock, number int32
	var errno syscall.Errno
	must(t, conn.Control(func(fd uintptr) {
		if _, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); errno == 0 {
			_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
		}
	}))
	if errno != 0 {
		t.Fatal(errno)
	}
	return &terminal{t, master, fmt.Sprintf("pts/%d", number)}
}

// shows returns what the terminal has shown since the last call. Nothing arrives later.
func (m *terminal) shows() string {
	m.t.Helper()
	must(m.t, m.master.SetReadDeadline(time.Now().Add(time.Second)))
	buf := make([]byte, 64<<10)
	n, _ := m.master.Read(buf) // after a timeout there is no text
	return string(buf[:n])
}

// hold keeps the other end open, like a shell.
func (m *terminal) hold() {
	m.t.Helper()
	f, err := os.OpenFile(filepath.Join("/dev", m.name), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(m.t, err)
	m.t.Cleanup(func() { f.Close() })
}

// dev creates a /dev directory with these terminals.
func dev(t *testing.T, terminals ...*terminal) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "pts"), 0o755))
	for _, m := range terminals {
		must(t, os.Symlink(filepath.Join("/dev", m.name), filepath.Join(dir, m.name)))
	}
	return dir
}

func TestWall(t *testing.T) {
	a, b, c := openTerminal(t), openTerminal(t), openTerminal(t)
	for _, m := range []*terminal{a, b, c} {
		m.hold()
	}
	d := dev(t, a, b, c)
	sessions := []Session{{ID: "1", User: "anna", UID: 4711, TTY: a.name}, {ID: "2", User: "anna", UID: 4711, TTY: a.name}, {ID: "3", User: "bert", UID: 4712, TTY: b.name}}
	reached, err := Wall(d, sessions, "It reboots at 12:00\nfor \x1b[31mOSUpdate\n")
	if reached != 2 || err != nil {
		t.Errorf("reached %d, %v", reached, err)
	}
	for _, m := range []*terminal{a, b} {
		if got := m.shows(); got != "\r\r\n\aIt reboots at 12:00\r\r\nfor  [31mOSUpdate\r\r\n\r\r\n" {
			t.Errorf("%s shows %q", m.name, got)
		}
	}
	if got := c.shows(); got != "" {
		t.Errorf("the terminal of no session shows %q", got)
	}
}

// TestWallFindsTheTerminalsOfAUser checks that a session without a terminal in logind gets the message on all terminals
// of its user.
func TestWallFindsTheTerminalsOfAUser(t *testing.T) {
	a := openTerminal(t)
	a.hold()
	d := dev(t, a)
	must(t, os.WriteFile(filepath.Join(d, "pts/ptmx"), nil, 0o600))
	reached, err := Wall(d, []Session{{ID: "1", User: "me", UID: uint32(os.Getuid())}}, "hello\n")
	if reached != 1 || err != nil || !strings.Contains(a.shows(), "hello") {
		t.Errorf("reached %d, %v", reached, err)
	}
	reached, err = Wall(d, []Session{{ID: "1", User: "other", UID: uint32(os.Getuid()) + 1}}, "hello\n")
	if reached != 0 || err != nil {
		t.Errorf("another's terminals: reached %d, %v", reached, err)
	}
}

// TestWallWritesToTerminalsOnly checks that Wall writes only to terminals, whatever logind reports as a terminal, and
// waits for none of them indefinitely.
func TestWallWritesToTerminalsOnly(t *testing.T) {
	full := openTerminal(t)
	full.hold()
	d := dev(t, full)
	must(t, os.WriteFile(filepath.Join(d, "file"), []byte("mine"), 0o600))
	must(t, os.Symlink("/dev/null", filepath.Join(d, "null")))
	must(t, syscall.Mkfifo(filepath.Join(d, "fifo"), 0o600))
	outside := filepath.Join(filepath.Dir(d), "outside")
	must(t, os.WriteFile(outside, nil, 0o600))
	for _, name := range []string{"file", "null", "fifo", "none"} {
		if reached, err := Wall(d, []Session{{TTY: name}}, "hello\n"); reached != 0 || err == nil {
			t.Errorf("%s: reached %d, %v", name, reached, err)
		}
	}
	for _, name := range []string{"../outside", "/dev/null", "pts/../../outside"} {
		if got := terminals(d, []Session{{TTY: name}}); len(got) > 0 {
			t.Errorf("%s leads to %v", name, got)
		}
	}
	if text, err := os.ReadFile(filepath.Join(d, "file")); string(text) != "mine" || err != nil {
		t.Errorf("Wall wrote to a file: %q, %v", text, err)
	}
	// No process reads from the terminal, and its buffer is full.
	began := time.Now()
	for range 2000 {
		if _, err := Wall(d, []Session{{TTY: full.name}}, strings.Repeat("x", 500)+"\n"); err != nil {
			if took := time.Since(began); took > time.Minute {
				t.Errorf("Wall took %v", took)
			}
			return
		}
	}
	t.Error("the terminal was never full: the test proves nothing")
}

func TestTerminalsAreBounded(t *testing.T) {
	var many []Session
	for i := range 1000 {
		many = append(many, Session{TTY: fmt.Sprintf("pts/%d", i)})
	}
	got := terminals(t.TempDir(), many)
	if len(got) != maxTerminals || !slices.Contains(got, "pts/0") {
		t.Errorf("%d terminals", len(got))
	}
}
