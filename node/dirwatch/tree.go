package dirwatch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// A Tree tells when something changes at paths or, where a folder is there, anywhere below it: a name that comes or
// goes, a file that is written, a mode. Paths come in sets under a key, and the key is what is told. As [Watch]'s, its
// word is a hint to look and no more, and a look now and then finds what no hint came for.
//
// Links on the way to a path are followed, as is the path itself if it is a link; links further below are not.
type Tree struct {
	poke func(key string)
	file *os.File // the inotify instance; closing it ends Run

	mu      sync.Mutex
	sets    map[string]set
	folders map[int32]*folder // by watch
}

// The bounds of one key: the kernel's watches are shared by everybody on the host.
const (
	maxFolders = 10_000
	maxEntries = 40_000 // that are looked at to find the folders among them
	maxLinks   = 8      // one leading to the next
)

// set is what is watched under a key.
type set struct {
	root  string
	paths []string
}

// folder is one that the kernel watches.
type folder struct {
	path string
	by   map[string]*interest // by key
}

// interest is what a key wants to know of a folder: everything, or some names.
type interest struct {
	all   bool
	names map[string]bool
}

// NewTree makes one that calls poke, which must not block, from Run's goroutine.
func NewTree(poke func(key string)) (*Tree, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &Tree{poke: poke, file: os.NewFile(uintptr(fd), "inotify"), sets: map[string]set{}, folders: map[int32]*folder{}}, nil
}

// Close ends the watching, and Run with it.
func (t *Tree) Close() { t.file.Close() }

// treeMask is what changes anything at or below a folder, what is only half written included.
const treeMask = watchMask | syscall.IN_MODIFY | syscall.IN_ATTRIB

// Watch watches these absolute paths below root, and no others, under the key; no paths give the key up. An error says
// what part of it is not watched; it is syscall.ENOSPC if the kernel has no watch left (fs.inotify.max_user_watches).
func (t *Tree) Watch(key, root string, paths []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(paths) == 0 {
		delete(t.sets, key)
	} else {
		t.sets[key] = set{root, paths}
	}
	return t.control(func(fd int) error { return t.rearm(fd, key) })
}

func (t *Tree) control(f func(fd int) error) (err error) {
	conn, connErr := t.file.SyscallConn()
	if connErr == nil {
		connErr = conn.Control(func(fd uintptr) { err = f(int(fd)) })
	}
	if connErr != nil {
		return fmt.Errorf("inotify: %w", connErr)
	}
	return err
}

// rearm watches for everything under the key anew, and gives up what is of no use any more.
func (t *Tree) rearm(fd int, key string) error {
	a := arming{fd: fd, tree: t, key: key, fresh: map[int32]*interest{}}
	var errs []error
	for _, path := range t.sets[key].paths {
		errs = append(errs, a.path(t.sets[key].root, path, 0))
	}
	errs = append(errs, a.closed)
	for wd, f := range t.folders {
		if f.by[key] = a.fresh[wd]; f.by[key] != nil {
			continue
		}
		if delete(f.by, key); len(f.by) == 0 {
			delete(t.folders, wd)
			// It may be gone with its folder already.
			_, _ = syscall.InotifyRmWatch(fd, uint32(wd))
		}
	}
	return errors.Join(errs...)
}

// arming is one walk over what a key wants watched.
type arming struct {
	fd      int
	tree    *Tree
	key     string
	fresh   map[int32]*interest // what it came by
	grows   bool                // it adds to what is watched
	entries int
	closed  error // the first folder that may not be watched
}

// add has a folder watched. It reports whether all of it was already in this walk.
func (a *arming) add(dir, name string, all bool) (known bool, err error) {
	if len(a.fresh) >= maxFolders || a.grows && len(a.tree.folders) >= maxFolders {
		return false, fmt.Errorf("more than %d folders", maxFolders)
	}
	wd, err := syscall.InotifyAddWatch(a.fd, dir, treeMask)
	if err != nil {
		return false, err
	}
	f := a.tree.folders[int32(wd)]
	if f == nil {
		f = &folder{by: map[string]*interest{}}
		a.tree.folders[int32(wd)] = f
	}
	in := a.fresh[int32(wd)]
	if in == nil && a.grows {
		in = f.by[a.key]
	}
	if in == nil {
		in = &interest{names: map[string]bool{}}
	}
	// The same folder may have been moved here.
	f.path, f.by[a.key], a.fresh[int32(wd)] = dir, in, in
	known = in.all
	if in.all = in.all || all; name != "" {
		in.names[name] = true
	}
	return known, nil
}

// path watches for one path, and for all below it.
func (a *arming) path(root, path string, links int) error {
	err := walk(root, path, func(dir, name string) error {
		_, err := a.add(dir, name, false)
		return err
	})
	if err != nil {
		return err
	}
	at := filepath.Join(root, path)
	info, err := os.Lstat(at)
	switch {
	case err != nil:
		return nil // the folder above it tells when there is something
	case info.IsDir():
		return a.below(at)
	case info.Mode().Type() == fs.ModeSymlink && links < maxLinks:
		to, err := os.Readlink(at)
		if err != nil {
			return nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		return a.path(root, to, links+1)
	}
	return nil
}

// below watches a folder and all below it. The watch stands before the folder is read: what comes later is told.
func (a *arming) below(dir string) error {
	known, err := a.add(dir, "", true)
	var d *os.File
	if err == nil && !known {
		d, err = os.Open(dir)
	}
	switch {
	case known || passing(err):
		return nil
	case errors.Is(err, fs.ErrPermission):
		if a.closed == nil {
			a.closed = fmt.Errorf("watching %s: %w", dir, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("watching %s: %w", dir, err)
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(512)
		for _, e := range entries {
			if a.entries++; a.entries > maxEntries {
				return fmt.Errorf("watching %s: more than %d files in all", dir, maxEntries)
			}
			if !e.IsDir() {
				continue
			}
			if err := a.below(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || passing(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching %s: %w", dir, err)
		}
	}
}

// passing: the folder is gone, or is none any more; the one above it tells.
func passing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// Run reads what the kernel tells, until the Tree is closed.
func (t *Tree) Run() error {
	buf := make([]byte, 16<<10)
	for {
		n, err := t.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		for _, key := range t.told(buf[:n]) {
			t.poke(key)
		}
	}
}

// told gives the keys that the events are about, in order. Folders that have come are watched at once: who was told of them may
// look much later, and is to hear what happens in them until then.
func (t *Tree) told(events []byte) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys, anew := map[string]bool{}, map[string]bool{}
	for e := range parse(events) {
		if e.overflow() {
			for key := range t.sets {
				keys[key], anew[key] = true, true
			}
			continue
		}
		f := t.folders[e.wd]
		if f == nil {
			continue // a watch that was given up
		}
		came := e.mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0
		for key, in := range f.by {
			named := in.names[e.name]
			if e.self() || named || in.all {
				keys[key] = true
			}
			folder := in.all && e.mask&syscall.IN_ISDIR != 0
			switch {
			case came && named, folder && e.mask&syscall.IN_MOVED_TO != 0:
				// A part of the way to a path; or a folder that may have watched ones in it, under other paths.
				anew[key] = true
			case folder && came:
				t.grow(key, filepath.Join(f.path, e.name))
			}
		}
		if e.mask&syscall.IN_IGNORED != 0 {
			delete(t.folders, e.wd)
		}
	}
	for key := range anew {
		// What cannot be watched is told when whoever looks calls Watch.
		_ = t.control(func(fd int) error { return t.rearm(fd, key) })
	}
	return slices.Sorted(maps.Keys(keys))
}

// grow watches a folder that has come below a path.
func (t *Tree) grow(key, dir string) {
	a := arming{tree: t, key: key, fresh: map[int32]*interest{}, grows: true}
	_ = t.control(func(fd int) error {
		a.fd = fd
		return a.below(dir)
	})
}
