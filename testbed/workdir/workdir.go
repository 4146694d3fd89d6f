// Package workdir provides the directories of control planes and simulated hosts. A temporary one is removed with its owner. If the owner
// is killed, the next owner of the same kind removes it.
package workdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// lockName is a file in a temporary directory that is locked as long as the owner lives.
	lockName = "owner.lock"
	// maxSocketPath is the maximum length of a Unix socket's address in bytes, without the final zero byte.
	maxSocketPath = 107
)

// Dir is a directory that only this user can read, because it contains keys.
type Dir struct {
	path string
	lock *os.File // nil for a directory that the caller named
}

// New creates a temporary directory, and removes those of dead owners of the same kind, for example "host". If path is not empty, it names
// the directory instead. Such a directory may exist, and stays when it is removed.
func New(kind, path string) (*Dir, error) {
	if path != "" {
		path, err := filepath.Abs(path)
		if err == nil {
			err = os.MkdirAll(path, 0o700)
		}
		if err != nil {
			return nil, fmt.Errorf("creating the %s's directory: %w", kind, err)
		}
		return &Dir{path: path}, nil
	}
	RemoveStale(os.TempDir(), kind)
	path, err := os.MkdirTemp("", prefix(kind))
	if err != nil {
		return nil, fmt.Errorf("creating the %s's directory: %w", kind, err)
	}
	lock, err := lockDir(path)
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("locking the %s's directory: %w", kind, err)
	}
	return &Dir{path, lock}, nil
}

// Path returns the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// Join returns the path of a file in it.
func (d *Dir) Join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Socket returns the path of a Unix socket in it, or an error if it is too long for an address.
func (d *Dir) Socket(name string) (string, error) {
	path := d.Join(name)
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("the directory's path is too long: the socket %s would have a path of %d bytes, but at most %d are possible", path, len(path), maxSocketPath)
	}
	return path, nil
}

// Remove deletes a temporary directory. It deletes the lock last, so that no other process deletes the directory at the same time.
func (d *Dir) Remove() error {
	if d.lock == nil {
		return nil
	}
	err := os.RemoveAll(d.path)
	d.lock.Close()
	if err != nil {
		return fmt.Errorf("removing a temporary directory: %w", err)
	}
	return nil
}

// prefix returns how the names of temporary directories of this kind begin.
func prefix(kind string) string { return "lockkeeper-" + kind + "-" }

// lockDir locks a temporary directory while the returned file is open.
func lockDir(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// RemoveStale removes the directories in temp whose owner was killed, as [New] does in [os.TempDir]. It skips those that are less than a
// minute old, because an owner that is starting may not have created or locked its lock yet.
func RemoveStale(temp, kind string) {
	dirs, err := filepath.Glob(filepath.Join(temp, prefix(kind)+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
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
