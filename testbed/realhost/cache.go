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
	unfinished = "unfinished-" // prefix of what is being made; under the lock any other such folder is rubbish
	keepFor    = 14 * 24 * time.Hour
)

// A cache is a directory of things that are made once for each key. Whoever finds one missing makes it; others wait.
type cache struct{ dir string }

func openCache() (cache, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return cache{}, fmt.Errorf("finding the cache for real hosts: %w", err)
	}
	c := cache{filepath.Join(root, "lockkeeper-realhost")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return cache{}, fmt.Errorf("making the cache for real hosts: %w", err)
	}
	return c, nil
}

// keyOf names everything that a thing depends on.
func keyOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// get returns the thing with the name, which makes fills an empty directory with, if need be. What no one has asked for in two weeks
// goes when something new is made.
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
		return "", fmt.Errorf("waiting for another process to make %s: %w", name, err)
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

// there also marks the thing as used.
func (c cache) there(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

func (c cache) prune() {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return // nothing to prune is no reason not to continue
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && (strings.HasPrefix(e.Name(), unfinished) || time.Since(info.ModTime()) > keepFor) {
			_ = os.RemoveAll(filepath.Join(c.dir, e.Name()))
		}
	}
}

// waitLock waits for a file's lock. flock cannot wait and be cancelled at once, so it is tried again and again.
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

// tryLock takes the lock unless someone has it.
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
