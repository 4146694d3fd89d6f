package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	unfinished = "building-" // prefix of a directory with a running build; the holder of the lock may delete any other such directory
	keepBuilds = 3           // number of finished directories that are kept, most recently used first; each has about 420 MB
	keepFor    = 24 * time.Hour
)

// complete reports whether a cache directory is complete. The directory is renamed into place with all its files, so a missing file means
// that a user has deleted it.
func (b builder) complete(dir string) bool {
	for _, t := range b.tools {
		if info, err := os.Stat(filepath.Join(dir, t.name)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// touch marks a directory as used, for pruneCache. If touch fails, the directory only looks older.
func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

// pruneCache removes what killed builds have left, and all finished directories except the three most recently used ones and those used in
// the last day: a running control plane must be able to restart its processes. The caller must hold the cache's lock.
func (b builder) pruneCache() {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return // a failure here must not prevent the build
	}
	type build struct {
		path string
		used time.Time
	}
	var builds []build
	for _, e := range entries {
		path := filepath.Join(b.cache, e.Name())
		switch info, err := e.Info(); {
		case err != nil || !e.IsDir():
		case strings.HasPrefix(e.Name(), unfinished) || !b.complete(path):
			_ = os.RemoveAll(path)
		default:
			builds = append(builds, build{path, info.ModTime()})
		}
	}
	slices.SortFunc(builds, func(a, b build) int { return b.used.Compare(a.used) })
	for i, old := range builds {
		// The build that is about to start counts as one of those that are kept.
		if i >= keepBuilds-1 && time.Since(old.used) > keepFor {
			_ = os.RemoveAll(old.path)
		}
	}
}

// lockFile takes an exclusive lock that the kernel releases when this process ends. It calls waiting once if another process holds the
// lock.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	// flock cannot block and be canceled too, so lockFile polls.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for said := false; ; said = true {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !said {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
