package simhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Terminal is a real pseudoterminal with a logged-in user, and everything that it has shown. It closes when the boot
// ends.
type Terminal struct {
	logind *Logind
	id     string
	link   string // below the host's root
	master *os.File
	slave  *os.File // held open, as a shell does

	mu      sync.Mutex
	text    string
	changed chan struct{}
	done    chan struct{}
	once    sync.Once
}

// Login logs a user in from remote on a new terminal, until [Terminal.Logout] or the end of the boot.
func (l *Logind) Login(id, user string) (*Terminal, error) {
	master, slave, number, err := openPTY()
	if err != nil {
		return nil, fmt.Errorf("creating a terminal for %s: %w", user, err)
	}
	name := fmt.Sprintf("pts/%d", number)
	t := &Terminal{logind: l, id: id, link: l.h.rootPath("dev/" + name), master: master, slave: slave,
		changed: make(chan struct{}), done: make(chan struct{})}
	err = os.MkdirAll(filepath.Dir(t.link), 0o755)
	if err == nil {
		_ = os.Remove(t.link) // left by a terminal that is gone
		err = os.Symlink(slave.Name(), t.link)
	}
	if err != nil {
		master.Close()
		slave.Close()
		return nil, fmt.Errorf("creating a terminal for %s: %w", user, err)
	}
	go t.read()
	s := Session{ID: id, User: user, UID: uint32(os.Getuid()), TTY: name, Remote: true, Since: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		err = errors.New("logind does not run")
	} else {
		err = exportSession(l.conn, s)
	}
	if err != nil {
		t.hangUp()
		return nil, err
	}
	l.sessions[id] = s
	l.terminals = append(l.terminals, t)
	return t, nil
}

// Logout ends the session and its terminal.
func (t *Terminal) Logout() error {
	l := t.logind
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, t.id)
	t.hangUp()
	if l.conn == nil {
		return nil
	}
	return l.conn.Export(nil, sessionPath(t.id), "org.freedesktop.DBus.Properties")
}

// hangUp closes the terminal. Text still returns what it has shown.
func (t *Terminal) hangUp() {
	t.once.Do(func() {
		_ = os.Remove(t.link)
		t.slave.Close()
		t.master.Close()
		<-t.done
	})
}

func (t *Terminal) read() {
	defer close(t.done)
	buf := make([]byte, 4<<10)
	for {
		n, err := t.master.Read(buf)
		t.mu.Lock()
		t.text += string(buf[:n])
		close(t.changed)
		t.changed = make(chan struct{})
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Text returns everything that the terminal has shown, without carriage returns.
func (t *Terminal) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(t.text, "\r", "")
}

// WaitText waits until the terminal has shown the text the given number of times.
func (t *Terminal) WaitText(ctx context.Context, text string, times int) error {
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		if strings.Count(t.Text(), text) >= times {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %q to be shown %d times: %w; the terminal shows:\n%s", text, times, context.Cause(ctx), t.Text())
		}
	}
}

// openPTY opens a pseudoterminal and returns the master, the slave and the slave's number.
func openPTY() (master, slave *os.File, number int32, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, 0, err
	}
	conn, err := master.SyscallConn()
	if err == nil {
		var unlock int32
		var errno syscall.Errno
		err = conn.Control(func(fd uintptr) {
			_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock)))
			if errno == 0 {
				_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
			}
		})
		if err == nil && errno != 0 {
			err = errno
		}
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, 0, err
	}
	return master, slave, number, nil
}
