//go:build linux

// Package dirwatch reports that something may have changed at or below paths of this
// host, by inotify. It must not know what the paths mean to its callers.
package dirwatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Watcher reports that something may have changed at one of the paths of a key, or
// anywhere below it: a name came or went, a file was written, a mode was changed. A
// report is a hint to read the paths, and nothing more.
// Callers also read them at intervals, because inotify does not report everything: not
// a mount over a directory, for example, and nothing once the kernel has no watch left.
//
// Links on the way to a path are followed, and so is a link at the path itself. Links
// below it are not.
//
// It does not use fsnotify, which knows a directory by the path that it was first added
// with. It reports a directory that has two paths, because of a link or a move, under the
// first path only, and stops watching it once that path is removed. Watched trees overlap,
// are linked and are moved. So this package identifies a directory by the kernel's watch
// descriptor.
type Watcher struct {
	changed func(key string)
	inotify *os.File // nil: err says why
	stopped chan struct{}

	mu   sync.Mutex
	err  error // why the kernel reports nothing
	keys map[string]map[int32]names
}

// names are the names that count in a watched directory. The empty name stands for all
// of them, and for the directory itself.
type names map[string]bool

// mask is everything that changes a name, a content or a mode, and what ends a watch.
const mask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_CLOSE_WRITE | syscall.IN_ATTRIB | syscall.IN_DELETE |
	syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR

// Off makes Watchers that are made from now on report nothing, as on a host without inotify.
// Tests in virtual time set it: the clock of testing/synctest stands still as long as a
// goroutine waits for the kernel.
var Off atomic.Bool

// New returns a Watcher that calls changed with the key of paths at which something may
// have changed. It calls it from one goroutine, which it starts; changed must neither
// block nor call Close. If there is no inotify, [Watcher.Watch] returns the reason.
func New(changed func(key string)) *Watcher {
	w := &Watcher{changed: changed, stopped: make(chan struct{}), keys: map[string]map[int32]names{}}
	fd, err := -1, error(syscall.ENOSYS)
	if !Off.Load() {
		fd, err = syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	}
	if err != nil {
		w.err = fmt.Errorf("inotify: %w", err)
		close(w.stopped)
		return w
	}
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	go w.run()
	return w
}

// Close ends the reports. No call of changed runs after Close has returned.
func (w *Watcher) Close() {
	if w.inotify != nil {
		w.inotify.Close()
	}
	<-w.stopped
}

// Watch watches these absolute paths below root, and no others, under the key; with below,
// also everything below those that are directories. Without paths it watches nothing under
// the key any more. Call it again after each report, and before reading the paths: a
// directory that has come is watched only from then on. grew reports that there is one:
// changes in it may have gone unreported until now.
//
// The error says which part is not watched. It matches syscall.ENOSPC if the kernel has
// no watch left (sysctl fs.inotify.max_user_watches).
func (w *Watcher) Watch(key, root string, paths []string, below bool) (grew bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return false, w.err
	}
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("inotify: %w", err)
	}
	s := search{dirs: map[int32]names{}, below: below}
	err = conn.Control(func(fd uintptr) {
		s.fd = int(fd)
		for _, path := range paths {
			s.path(root, path)
		}
		grew = w.replace(s.fd, key, s.dirs)
	})
	return grew, errors.Join(err, s.err)
}

// replace makes dirs the directories that are watched under the key, and gives up those
// that no key needs any more. It reports whether something is watched that was not.
func (w *Watcher) replace(fd int, key string, dirs map[int32]names) (grew bool) {
	before := w.keys[key]
	if w.keys[key] = dirs; len(dirs) == 0 {
		delete(w.keys, key)
	}
	for wd := range before {
		needed := false
		for _, watched := range w.keys {
			needed = needed || watched[wd] != nil
		}
		if !needed {
			_, _ = syscall.InotifyRmWatch(fd, uint32(wd)) // it fails if the directory is gone
		}
	}
	for wd, names := range dirs {
		for name := range names {
			grew = grew || !before[wd][name]
		}
	}
	return grew
}

func (w *Watcher) run() {
	defer close(w.stopped)
	buf := make([]byte, 4<<10) // on the stack, which stays this large; an event has 272 bytes at most
	for {
		n, err := w.inotify.Read(buf)
		if err != nil {
			w.mu.Lock()
			w.err = fmt.Errorf("inotify: %w", err)
			w.mu.Unlock()
			return
		}
		for key := range w.affected(buf[:n]) {
			w.changed(key)
		}
	}
}

// affected returns the keys that the kernel's events concern. If the kernel's queue was full
// and events were lost, it returns all keys.
func (w *Watcher) affected(events []byte) map[string]bool {
	const self = syscall.IN_IGNORED | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_UNMOUNT
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := map[string]bool{}
	for len(events) >= syscall.SizeofInotifyEvent {
		wd, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
		size := int(binary.NativeEndian.Uint32(events[12:]))
		events = events[syscall.SizeofInotifyEvent:]
		lost := mask&syscall.IN_Q_OVERFLOW != 0 || size > len(events)
		size = min(size, len(events))
		name, _, _ := bytes.Cut(events[:size], []byte{0})
		events = events[size:]
		for key, dirs := range w.keys {
			if names := dirs[wd]; lost || names != nil && (mask&self != 0 || names[""] || names[string(name)]) {
				keys[key] = true
			}
		}
	}
	return keys
}
