package updateengine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// CoordinatorPath is where the process that coordinates the host's reboots reports that, on hosts with Flatcar's update_engine.
// The file has NAME, STRATEGY and STATE, a KEY=value on each line. An exclusive lock (flock) on the file is held as long as
// its content is true. locksmith replaces the file by renaming one that is locked already. Here it is written in place,
// and never removed, because other processes wait for the lock of the file that they have opened.
const CoordinatorPath = "/run/update-engine/coordinator.conf"

const (
	coordinatorName     = "lockkeeper"
	coordinatorStrategy = "cluster"
	maxCoordinatorFile  = 4 << 10 // bytes that are read of another process's file
	maxCoordinatorName  = 64      // bytes
)

// ErrCoordinated means that another process coordinates this host's reboots: it holds the file's lock.
var ErrCoordinated = errors.New("another coordinator holds the lock")

// CoordinatorFile writes and reads the file at [CoordinatorPath]. Its methods may be called from any goroutine; none of them
// waits for a lock.
type CoordinatorFile struct {
	path string

	mu    sync.Mutex
	file  *os.File // locked by this process, and at path when last checked; nil while lockkeeper does not coordinate
	state string   // in locksmith's terms
}

// NewCoordinatorFile returns the file below root, which is "/" except in tests. It touches nothing.
func NewCoordinatorFile(root string) *CoordinatorFile {
	return &CoordinatorFile{path: filepath.Join(root, CoordinatorPath)}
}

// Write writes that lockkeeper coordinates the host's reboots, and its state. If the directory does not exist, create makes
// Write create it; otherwise it writes nothing, and that is not an error. The error matches [ErrCoordinated] while another
// process coordinates.
func (c *CoordinatorFile) Write(state string, create bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil && !c.ours() {
		c.drop() // another process has replaced it
	}
	if c.file != nil && c.state == state {
		return nil
	}
	err := c.write(state, create)
	if err != nil {
		return fmt.Errorf("writing who coordinates reboots: %w", err)
	}
	return nil
}

func (c *CoordinatorFile) write(state string, create bool) error {
	if create {
		if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
			return err
		}
	}
	if c.file == nil {
		err := c.lock()
		if errors.Is(err, os.ErrNotExist) {
			return nil // without the directory, no process reads the file
		}
		if err != nil {
			return err
		}
	}
	c.state = "" // if the text is not written in full, the next call writes it
	if err := c.setText(fmt.Sprintf("NAME=%s\nSTRATEGY=%s\nSTATE=%s\n", coordinatorName, coordinatorStrategy, state)); err != nil {
		return err
	}
	c.state = state
	return nil
}

// Clear empties the file and releases its lock, if this process has written it: lockkeeper does not coordinate any more.
func (c *CoordinatorFile) Clear() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	defer c.drop()
	if err := c.setText(""); err != nil {
		return fmt.Errorf("writing that lockkeeper no longer coordinates reboots: %w", err)
	}
	return nil
}

// State returns what was written last, "" while lockkeeper does not coordinate.
func (c *CoordinatorFile) State() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Other returns the name of another process that coordinates this host's reboots: the NAME in the file, while another process
// holds its lock. "" means that there is none.
func (c *CoordinatorFile) Other() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil && c.ours() {
		return "", nil
	}
	name, err := c.other()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading who coordinates reboots: %w", err)
	}
	return name, nil
}

func (c *CoordinatorFile) other() (string, error) {
	f, err := os.OpenFile(c.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close() // this releases the lock too
	if err := flock(f, syscall.LOCK_SH); !errors.Is(err, ErrCoordinated) {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCoordinatorFile))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "NAME="); ok && name != "" {
			return v1alpha1.OneLine(name, maxCoordinatorName), nil
		}
	}
	return "a process that does not write its name", nil
}

// ours reports whether the file that this process has locked is the one at path.
func (c *CoordinatorFile) ours() bool {
	mine, err := c.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(c.path)
	return err == nil && os.SameFile(mine, there)
}

func (c *CoordinatorFile) drop() {
	c.file.Close()
	c.file, c.state = nil, ""
}

// lock opens the file, creates it if it does not exist, and takes its lock.
func (c *CoordinatorFile) lock() error {
	for range 3 {
		f, err := os.OpenFile(c.path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		if err := flock(f, syscall.LOCK_EX); err != nil {
			f.Close()
			return err
		}
		c.file = f
		if c.ours() {
			return nil
		}
		c.drop() // it was replaced between the open and the lock
	}
	return errors.New("another process replaces the file again and again")
}

// setText makes the text the content of the locked file. A reader never sees an empty file in between.
func (c *CoordinatorFile) setText(text string) error {
	if _, err := c.file.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return c.file.Truncate(int64(len(text)))
}

// flock takes a lock without waiting. The error is ErrCoordinated if another process holds it. It does not use File.Fd, which
// makes the file blocking: a pipe in its place must not hold a read.
func flock(f *os.File, how int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	err = conn.Control(func(fd uintptr) { lockErr = syscall.Flock(int(fd), how|syscall.LOCK_NB) })
	if errors.Is(lockErr, syscall.EWOULDBLOCK) {
		return ErrCoordinated
	}
	return errors.Join(err, lockErr)
}
