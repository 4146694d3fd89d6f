//go:build linux

package dirwatch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The bounds of one key. All processes on the host share the kernel's watches.
const (
	maxDirs    = 10_000
	maxEntries = 40_000 // that are listed to find the directories among them
	maxLinks   = 40     // that are followed for one path, as in Linux
)

// search finds the directories of a key's paths, and watches them.
type search struct {
	fd      int
	dirs    map[int32]names
	below   bool // watch what is below the paths, too
	entries int
	err     error // the first that was met
}

// fail notes what cannot be watched. That a directory has just gone is not an error:
// the watch of the directory above reports it.
func (s *search) fail(dir string, err error) {
	if s.err == nil && err != nil && !gone(err) {
		s.err = fmt.Errorf("watching %s: %w", dir, err)
	}
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// watch watches a directory for a name in it; the empty name is for everything. It
// reports whether this search had not done that before.
func (s *search) watch(dir, name string) (first bool, err error) {
	if len(s.dirs) >= maxDirs {
		return false, fmt.Errorf("more than %d directories", maxDirs)
	}
	wd, err := syscall.InotifyAddWatch(s.fd, dir, mask)
	if err != nil {
		return false, err
	}
	watched := s.dirs[int32(wd)]
	if watched == nil {
		watched = names{}
		s.dirs[int32(wd)] = watched
	}
	first = !watched[name]
	watched[name] = true
	return first, nil
}

// path watches each directory on the way to a path for the name that leads on, as far
// as the way exists, and then what is there. Each is watched before the next is looked
// for, so that one that comes at the same time is either found or reported.
//
// It follows each link on the way itself. If the kernel followed it, a link that the first
// one leads through could be replaced without a report.
func (s *search) path(root, path string) {
	at, names, links := "/", strings.Split(filepath.Clean(path), "/"), 0
	dir := true // whether at is a directory
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." { // in a link's target
			at = filepath.Dir(at)
			continue
		}
		_, err := s.watch(filepath.Join(root, at), name)
		if gone(err) {
			return
		}
		s.fail(at, err)
		next := filepath.Join(at, name)
		info, err := os.Lstat(filepath.Join(root, next))
		if s.fail(next, err); err != nil {
			return
		}
		if info.Mode().Type() != fs.ModeSymlink {
			at, dir = next, info.IsDir()
			continue
		}
		target, err := os.Readlink(filepath.Join(root, next))
		if links++; err != nil || links > maxLinks {
			return
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		names = append(strings.Split(target, "/"), names...)
	}
	if dir && s.below {
		s.tree(filepath.Join(root, at))
	}
}

// tree watches a directory and all directories below it, each before it is listed.
func (s *search) tree(dir string) {
	first, err := s.watch(dir, "")
	if s.fail(dir, err); err != nil || !first {
		return
	}
	d, err := os.Open(dir)
	if s.fail(dir, err); err != nil {
		return
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(512)
		for _, e := range entries {
			if s.entries++; s.entries > maxEntries {
				s.fail(dir, fmt.Errorf("more than %d files in all", maxEntries))
				return
			}
			if e.IsDir() {
				s.tree(filepath.Join(dir, e.Name()))
			}
		}
		if err != nil {
			if err != io.EOF {
				s.fail(dir, err)
			}
			return
		}
	}
}
