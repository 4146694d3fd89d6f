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
	unfinished = "building-" // prefix of a folder that is being built; under the lock any other such folder is rubbish
	keepBuilds = 3           // finished directories that stay, newest use first; about 420 MB each
	keepFor    = 24 * time.Hour
)

// complete says whether a cache directory is there. It is renamed into place with everything in it, so one look would do; a
// missing file means that someone tidied up by hand.
func (b builder) complete(dir string) bool {
	for _, t := range b.tools {
		if info, err := os.Stat(filepath.Join(dir, t.name)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// touch marks a directory as used, for pruneCache. Failure only makes it look older.
func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

// pruneCache removes what killed builds have left, and finished directories beyond the three used last unless they were used in
// the last day: a control plane that runs from one must be able to start its processes again. It needs the cache's lock.
func (b builder) pruneCache() {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return // nothing to prune is no reason not to build
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
		// The build that is about to be made counts as one of those that stay.
		if i >= keepBuilds-1 && time.Since(old.used) > keepFor {
			_ = os.RemoveAll(old.path)
		}
	}
}

// lockFile takes an exclusive lock that dies with this process; waiting is called once if someone else has it.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	// flock cannot wait and be cancelled at once, so it is tried again and again.
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
