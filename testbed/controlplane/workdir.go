package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// dirPrefix begins the names of control planes' temporary directories. dirLock is a file in such a directory that is locked as long as the
// owner lives.
const (
	dirPrefix = "lockkeeper-testbed-"
	dirLock   = "owner.lock"
)

// workDir is the directory of one control plane.
type workDir struct {
	path string
	lock *os.File // held for the whole life of the directory; nil for a directory that the caller named
}

// newWorkDir creates a new directory. Only this user can read it, because it contains keys. A directory that the caller names must be new
// or empty, and remains when the control plane stops.
func newWorkDir(named string) (*workDir, error) {
	if named != "" {
		return useNamedDir(named)
	}
	removeStaleDirs(os.TempDir())
	path, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, fmt.Errorf("creating the control plane's directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, dirLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("locking the control plane's directory: %w", err)
	}
	return &workDir{path: path, lock: lock}, nil
}

func useNamedDir(path string) (*workDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("the control plane's directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("creating the control plane's directory: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("reading the control plane's directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("the control plane's directory %s is not empty", path)
	}
	return &workDir{path: path}, nil
}

func (d *workDir) join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// remove deletes the directory. It deletes the lock last, so that no other process deletes the directory at the same time.
func (d *workDir) remove() error {
	if d.lock == nil {
		return nil
	}
	err := os.RemoveAll(d.path)
	d.lock.Close()
	if err != nil {
		return fmt.Errorf("removing the control plane's directory: %w", err)
	}
	return nil
}

// removeStaleDirs removes the directories of control planes whose owner was killed. It skips directories that are less than a minute old,
// because a process that starts a control plane may not have created or locked its lock yet.
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
