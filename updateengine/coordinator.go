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
)

// CoordinatorPath is where whoever coordinates the host's reboots says so, on hosts with Flatcar's update_engine: NAME,
// STRATEGY and STATE, a KEY=value on each line, under an exclusive lock (flock) that is held as long as it is true. As
// locksmith's package coordinatorconf has it, the file is replaced by renaming one that is locked already, and never
// removed, because others wait for the lock of the file that they have opened.
const CoordinatorPath = "/run/update-engine/coordinator.conf"

// CoordinatorState is what a coordinator says it is at; the words are locksmith's.
type CoordinatorState string

// The states that lockkeeper is in.
const (
	// CoordinatorDisabled: it runs and, as somebody wants it, reboots nothing.
	CoordinatorDisabled CoordinatorState = "disabled"
	// CoordinatorRunning: it would reboot, and there is no reason to.
	CoordinatorRunning CoordinatorState = "running"
	// CoordinatorRebootPlanned: it will reboot, once it may.
	CoordinatorRebootPlanned CoordinatorState = "reboot-planned"
	// CoordinatorRebooting: the reboot is called.
	CoordinatorRebooting CoordinatorState = "rebooting"
)

const (
	coordinatorName     = "lockkeeper"
	coordinatorStrategy = "cluster"
	maxCoordinatorFile  = 4 << 10 // bytes that are read of what others wrote
)

// ErrCoordinated means that somebody else coordinates this host's reboots: the file's lock is theirs.
var ErrCoordinated = errors.New("another coordinator holds the lock")

// CoordinatorFile is this process's part in [CoordinatorPath]. Its methods may be called from any goroutine; none of
// them waits for a lock.
type CoordinatorFile struct {
	path string

	mu   sync.Mutex
	file *os.File // locked by us, and at path when last looked at; nil while we do not coordinate
	said CoordinatorState
}

// NewCoordinatorFile is the file below root, "/" but in tests. It touches nothing.
func NewCoordinatorFile(root string) *CoordinatorFile {
	return &CoordinatorFile{path: filepath.Join(root, CoordinatorPath)}
}

// Say says that lockkeeper coordinates the host's reboots, and what it is at. Without the folder it says nothing, and
// that is no error, unless create is set: then it makes it. The error matches [ErrCoordinated] while somebody else does.
func (c *CoordinatorFile) Say(state CoordinatorState, create bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil && !c.ours() {
		c.drop() // somebody has put another file in its place
	}
	if c.file != nil && c.said == state {
		return nil
	}
	if create {
		if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
			return fmt.Errorf("saying who coordinates reboots: %w", err)
		}
	}
	if c.file == nil {
		err := c.lock()
		if errors.Is(err, os.ErrNotExist) {
			return nil // no folder, so nobody who would read it
		}
		if err != nil {
			return fmt.Errorf("saying who coordinates reboots: %w", err)
		}
	}
	text := fmt.Sprintf("NAME=%s\nSTRATEGY=%s\nSTATE=%s\n", coordinatorName, coordinatorStrategy, state)
	if err := c.replace(text); err != nil {
		return fmt.Errorf("saying who coordinates reboots: %w", err)
	}
	c.said = state
	return nil
}

// Leave says that lockkeeper does not coordinate the host's reboots any more, if it has said that it does: the file is
// empty then, and its lock free.
func (c *CoordinatorFile) Leave() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	defer c.drop()
	if !c.ours() {
		return nil
	}
	if err := c.replace(""); err != nil {
		return fmt.Errorf("saying that nobody coordinates reboots: %w", err)
	}
	return nil
}

// Said is what was said last, "" while lockkeeper does not coordinate.
func (c *CoordinatorFile) Said() CoordinatorState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return ""
	}
	return c.said
}

// Other names who else coordinates this host's reboots: the NAME in the file, while its lock is another's. "" is nobody.
func (c *CoordinatorFile) Other() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil && c.ours() {
		return "", nil
	}
	f, err := os.OpenFile(c.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("seeing who coordinates reboots: %w", err)
	}
	defer f.Close() // and with it the lock
	switch err := flock(f, syscall.LOCK_SH); {
	case err == nil:
		return "", nil
	case !errors.Is(err, ErrCoordinated):
		return "", fmt.Errorf("seeing who coordinates reboots: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCoordinatorFile))
	if err != nil {
		return "", fmt.Errorf("seeing who coordinates reboots: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "NAME="); ok && name != "" {
			return printable(name, maxOperation), nil
		}
	}
	return "somebody who does not say its name", nil
}

// ours reports whether the file that we have locked is the one at path.
func (c *CoordinatorFile) ours() bool {
	mine, err := c.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(c.path)
	return err == nil && os.SameFile(mine, there)
}

func (c *CoordinatorFile) drop() {
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.said = nil, ""
}

// lock opens the file, making it if need be, and takes its lock.
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
		c.drop() // it was replaced between the two
	}
	return errors.New("the file is replaced again and again")
}

// replace puts another file in the place of ours, locked before anybody can see it. Ours stays if that fails.
func (c *CoordinatorFile) replace(text string) error {
	path := c.path + ".lockkeeper"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	err = flock(f, syscall.LOCK_EX)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = os.Rename(path, c.path)
	}
	if err != nil {
		f.Close()
		return errors.Join(err, os.Remove(path))
	}
	c.file.Close()
	c.file = f
	return nil
}

func flock(f *os.File, how int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	err = conn.Control(func(fd uintptr) { lockErr = syscall.Flock(int(fd), how|syscall.LOCK_NB) })
	if errors.Is(lockErr, syscall.EWOULDBLOCK) {
		lockErr = ErrCoordinated
	}
	return errors.Join(err, lockErr)
}
