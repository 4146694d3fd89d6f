// Package dirwatch tells when something comes to be, changes or ceases to be at
// one of a few paths of this host ([Watch]), or anywhere below them ([Tree]), by
// inotify. It must not know what the paths are to anybody.
package dirwatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// A Watch tells when something comes to be, was written, or ceases to be, at one of a few paths. It is a hint to look and
// no more: what is there, a look tells, and a look now and then finds what no hint came for (a mount over a folder, a
// folder moved together with the one above it, what a link points to, a kernel that has no watch left to give).
//
// It is inotify on the folders, by hand: the four calls are in the standard library, and what is asked of them is less
// than what a package for it would bring into the service.
type Watch struct {
	poke func()
	file *os.File // the inotify instance; closing it ends Run

	mu    sync.Mutex
	names map[int32]map[string]bool // by watch: what to look out for in that folder
}

// New makes one that calls poke, which must not block, from Run's goroutine.
func New(poke func()) (*Watch, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &Watch{poke: poke, file: os.NewFile(uintptr(fd), "inotify"), names: map[int32]map[string]bool{}}, nil
}

// Close ends the watch, and Run with it.
func (w *Watch) Close() { w.file.Close() }

// watchMask is all that changes what is there under a name, and what ends a watch. A file that is made anew is there
// before its content is: the end of its writing tells that.
const watchMask = syscall.IN_CREATE | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO |
	syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR

// Watch watches these absolute paths below root, and no others. Of a path whose folder is not there the nearest folder
// above it is watched, for the one that is missing. It is to be called again after each hint: a folder may have come.
func (w *Watch) Watch(root string, paths []string) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := map[int32]map[string]bool{}
	var errs []error
	controlErr := conn.Control(func(fd uintptr) {
		for _, path := range paths {
			if err := arm(int(fd), root, path, fresh); err != nil {
				errs = append(errs, err)
			}
		}
		for wd := range w.names {
			if fresh[wd] == nil {
				// It may be gone with its folder already.
				_, _ = syscall.InotifyRmWatch(int(fd), uint32(wd))
			}
		}
	})
	w.names = fresh
	return errors.Join(append(errs, controlErr)...)
}

// arm watches for one path, and notes under which watch for what name.
func arm(fd int, root, path string, names map[int32]map[string]bool) error {
	return walk(root, path, func(dir, name string) error {
		wd, err := syscall.InotifyAddWatch(fd, dir, watchMask)
		if err != nil {
			return err
		}
		if names[int32(wd)] == nil {
			names[int32(wd)] = map[string]bool{}
		}
		names[int32(wd)][name] = true
		return nil
	})
}

// walk has the folder watched in which the path lies, or the nearest one above it that is there, for the name in it
// that leads on.
func walk(root, path string, watch func(dir, name string) error) error {
	parts := strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	for depth := len(parts) - 1; depth >= 0; {
		dir := filepath.Join(root, filepath.Join(parts[:depth]...))
		switch err := watch(dir, parts[depth]); {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			depth--
			continue
		case err != nil:
			return fmt.Errorf("watching %s: %w", dir, err)
		}
		if depth == len(parts)-1 {
			return nil
		}
		// The next folder may have come before the watch stood.
		if info, err := os.Stat(filepath.Join(dir, parts[depth])); err != nil || !info.IsDir() {
			return nil
		}
		depth++
	}
	return nil // not even the root is there
}

// Run reads what the kernel tells, until the watch is closed.
func (w *Watch) Run() error {
	buf := make([]byte, 16<<10) // some hundred events; what does not fit comes with the next read
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		if w.matters(buf[:n]) {
			w.poke()
		}
	}
}

// matters reports whether one of the events is about a path that is watched for, or about the watching itself.
func (w *Watch) matters(events []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range parse(events) {
		if e.overflow() {
			return true // whatever it was that did not fit
		}
		names, known := w.names[e.wd]
		if known && (e.self() || names[e.name]) { // else of a watch that was given up, or of a neighbour
			return true
		}
	}
	return false
}

// event is what the kernel tells.
type event struct {
	wd   int32
	mask uint32
	name string // in the folder; "" for the folder itself
}

func (e event) overflow() bool { return e.mask&syscall.IN_Q_OVERFLOW != 0 }

// self: it is about the watched folder itself, or its watch has ended.
func (e event) self() bool {
	return e.mask&(syscall.IN_IGNORED|syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_UNMOUNT) != 0
}

// parse splits what was read of an inotify instance. What is not what the kernel does is an overflow.
func parse(events []byte) iter.Seq[event] {
	return func(yield func(event) bool) {
		for len(events) >= syscall.SizeofInotifyEvent {
			e := event{wd: int32(binary.NativeEndian.Uint32(events)), mask: binary.NativeEndian.Uint32(events[4:])}
			size := int(binary.NativeEndian.Uint32(events[12:]))
			events = events[syscall.SizeofInotifyEvent:]
			if size > len(events) {
				yield(event{mask: syscall.IN_Q_OVERFLOW})
				return
			}
			name, _, _ := bytes.Cut(events[:size], []byte{0})
			e.name, events = string(name), events[size:]
			if !yield(e) {
				return
			}
		}
	}
}
