package simhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// dirPrefix is the prefix of the hosts' directories in the temporary directory. dirLock is a file in such a directory
// that is locked while the owner lives.
const (
	dirPrefix = "lockkeeper-host-"
	dirLock   = "owner.lock"
	// maxSocketPath is the maximum length of a Unix socket's address, without the final zero byte.
	maxSocketPath = 107
)

// workDir contains all files of one host.
type workDir struct {
	path string
	lock *os.File // nil for a directory that the caller named
}

// newWorkDir creates a new directory that only this user can read. It creates a named directory if necessary, and such a directory remains.
func newWorkDir(named string) (*workDir, error) {
	d := &workDir{}
	var err error
	if named == "" {
		removeStaleDirs(os.TempDir())
		d.path, err = os.MkdirTemp("", dirPrefix)
	} else if d.path, err = filepath.Abs(named); err == nil {
		err = os.MkdirAll(d.path, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the host's directory: %w", err)
	}
	if longest := d.join(notifySocket); len(longest) > maxSocketPath {
		err = fmt.Errorf("the path of the host's directory %s is too long: a socket in it would have a path of %d bytes, but at most %d are possible",
			d.path, len(longest), maxSocketPath)
	}
	if err == nil && named == "" {
		d.lock, err = lockDir(d.path)
	}
	if err != nil {
		if named == "" {
			os.RemoveAll(d.path)
		}
		return nil, err
	}
	return d, nil
}

func lockDir(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, dirLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the host's directory: %w", err)
	}
	return lock, nil
}

func (d *workDir) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// remove deletes a temporary directory. It deletes the lock last.
func (d *workDir) remove() error {
	if d.lock == nil {
		return nil
	}
	err := os.RemoveAll(d.path)
	d.lock.Close()
	if err != nil {
		return fmt.Errorf("removing the host's directory: %w", err)
	}
	return nil
}

// removeStaleDirs removes the directories of hosts whose owner was killed. It skips directories that are less than a
// minute old, because a starting host may not have created or locked its lock yet.
func removeStaleDirs(temp string) {
	dirs, err := filepath.Glob(filepath.Join(temp, dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, dirLock), os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			_ = os.RemoveAll(dir)
			continue
		}
		if err != nil {
			continue // belongs to another user
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		lock.Close()
	}
}
