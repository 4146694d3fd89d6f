package realhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	unfinished = "unfinished-" // prefix of entries that are being built; the holder of the lock may remove all others
	keepFor    = 14 * 24 * time.Hour
)

// cache is a directory with entries that are built once for each key. The process that finds an entry missing builds
// it, while others wait.
type cache struct{ dir string }

func openCache() (cache, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return cache{}, fmt.Errorf("finding the cache for real hosts: %w", err)
	}
	c := cache{filepath.Join(root, "lockkeeper-realhost")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return cache{}, fmt.Errorf("creating the cache for real hosts: %w", err)
	}
	return c, nil
}

// keyOf returns a key for everything that an entry depends on.
func keyOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// get returns the path of the entry with the name. If the entry does not exist, makes fills an empty directory with it.
// When get builds a new entry, it also removes entries that were not used for two weeks.
func (c cache) get(ctx context.Context, name string, makes func(ctx context.Context, dir string) error) (string, error) {
	path := filepath.Join(c.dir, name)
	if c.there(path) {
		return path, nil
	}
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := waitLock(ctx, lock); err != nil {
		return "", fmt.Errorf("waiting for another process to build %s: %w", name, err)
	}
	if c.there(path) {
		return path, nil
	}
	c.prune()
	tmp, err := os.MkdirTemp(c.dir, unfinished)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := makes(ctx, tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// there reports whether the entry exists, and marks it as used.
func (c cache) there(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

func (c cache) prune() {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return // not being able to prune is not an error
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && (strings.HasPrefix(e.Name(), unfinished) || time.Since(info.ModTime()) > keepFor) {
			_ = os.RemoveAll(filepath.Join(c.dir, e.Name()))
		}
	}
}

// waitLock waits for the lock of a file. It polls, because a blocking flock cannot be canceled.
func waitLock(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		locked, err := tryLock(f)
		if locked || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// tryLock takes the lock unless another process holds it.
func tryLock(f *os.File) (bool, error) {
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return false, nil
	default:
		return false, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
}
