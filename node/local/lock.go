package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrRunning means that another process holds the lock.
var ErrRunning = errors.New("another lockkeeper runs on this host")

// The commands of open file description locks. Such a lock belongs to the open file, as with
// flock, and the kernel releases it when the process ends. Unlike flock, it can be queried
// without taking it: if `lockkeeper status` took the lock for a moment, a service that starts at
// that moment would fail. Package syscall lacks the two numbers. They are the same on every
// Linux architecture. Other systems have no service, and no file to lock or query.
const (
	ofdGetLock = 36 // F_OFD_GETLK
	ofdSetLock = 37 // F_OFD_SETLK
)

// Lock is the lock of the one process of lockkeeper on this host.
type Lock struct {
	file *os.File
	dir  string
}

// Release releases the lock.
func (l *Lock) Release() error { return l.file.Close() }

// Acquire creates dir if necessary, and takes the lock in it. The process holds the lock until
// it calls Release or ends, even if it is killed. The error is [ErrRunning] while another
// process holds the lock.
func Acquire(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("taking the lock: %w", err)
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("taking the lock: %w", err)
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	err = syscall.FcntlFlock(f.Fd(), ofdSetLock, &lock)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		err = ErrRunning
		if pid := pidIn(f); pid != 0 {
			err = fmt.Errorf("%w (process %d)", ErrRunning, pid)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("taking the lock %s: %w", path, errors.Join(err, f.Close()))
	}
	_ = writePID(f) // a full disk must not prevent the start
	return &Lock{f, dir}, nil
}

// Running reports whether a process holds the lock in dir. It does not take the lock, and only
// needs read permission for the file.
func Running(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the lock: %w", err)
	}
	defer f.Close()
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(f.Fd(), ofdGetLock, &lock); err != nil {
		return false, fmt.Errorf("reading the lock: %w", err)
	}
	return lock.Type != syscall.F_UNLCK, nil
}

// writePID writes the process's ID to the file, for messages and for people. Only the lock
// decides whether a process runs.
func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func pidIn(f *os.File) int {
	buf := make([]byte, 16)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return 0
	}
	return pid
}
