package watched

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// The bounds of one watched path or unit.
const (
	// maxFiles is how many files there may be below a path.
	maxFiles = 10_000
	// maxBytes is the maximum size of these files together.
	maxBytes = 64 << 20

	maxDirs   = 10_000
	blockSize = 64 << 10
	maxTries  = 5 // at a path that is replaced while it is read
)

// entry is the result of reading one file.
type entry struct {
	digest string // of path, mode and content, or of path and a link's target; see hostKey
	stamp  stamp
	// final is whether any later change of the file gives it another stamp. It is false for
	// a file that was read so soon after a change that the next change may have the same
	// ctime.
	final bool
}

// stamp identifies the content of a file without reading it. The kernel sets ctime, and no user
// can set it to an earlier time.
type stamp struct {
	dev, ino     uint64
	size         int64
	mode         uint32
	mtime, ctime syscall.Timespec
	link         string
}

// clockTick is more than the resolution of any file system's clock.
const clockTick = 2 * time.Second

func stampOf(info fs.FileInfo, link string) (s stamp, final bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, false
	}
	s = stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mode: uint32(st.Mode), mtime: st.Mtim, ctime: st.Ctim, link: link}
	return s, time.Since(time.Unix(st.Ctim.Unix())) > clockTick
}

// scan reads the files of one root.
type scan struct {
	ctx   context.Context
	host  hostfs.FS
	key   *hostKey
	root  *root            // whose files are read
	old   map[string]entry // the previous result; unchanged files are not read again
	found map[string]entry
	// The number of files, directories and bytes that may still be read.
	files, dirs int
	bytes       int64
}

func newScan(ctx context.Context, host hostfs.FS, key *hostKey, r *root, old map[string]entry) *scan {
	return &scan{ctx: ctx, host: host, key: key, root: r, old: old, found: map[string]entry{},
		files: maxFiles, dirs: maxDirs, bytes: maxBytes}
}

// gone reports whether an error means that the path does not exist.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

var errReplaced = errors.New("another process replaces the file each time it is read")

// linked reports whether a path or one of its parent directories is a symbolic link.
func linked(host hostfs.FS, path string) bool {
	for ; path != "/"; path = filepath.Dir(path) {
		if info, err := host.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSymlink {
			return true
		}
	}
	return false
}

// visit reads a file, a link, or a directory with everything below it. top is true for a path
// that a rule names, and for a unit's file. In that case visit follows a link, and returns an
// error for a socket, a pipe or a device.
func (s *scan) visit(path string, top bool) (err error) {
	for range maxTries {
		if err = s.try(path, top); !errors.Is(err, errReplaced) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", path, err)
}

func (s *scan) try(path string, top bool) error {
	info, err := s.host.Lstat(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	link := ""
	if info.Mode().Type() == fs.ModeSymlink {
		link, err = s.host.Readlink(path)
		if gone(err) || errors.Is(err, syscall.EINVAL) {
			return errReplaced
		}
		if err != nil {
			return err
		}
		if top {
			target, err := s.host.Stat(path)
			if err == nil {
				info = target
			} else if !gone(err) && !errors.Is(err, syscall.ELOOP) {
				return err
			}
		}
	}
	switch {
	case info.Mode().IsRegular():
		return s.file(path, info, link)
	case info.IsDir() && link == "":
		return s.dir(path, "", false)
	case link != "":
		digest, _ := s.key.digest(path, link, func(io.Writer) error { return nil })
		if err := s.put(path, entry{digest: digest}); err != nil || !info.IsDir() {
			return err // a link may lead to a device: that of a masked unit leads to /dev/null
		}
		return s.dir(path, "", false)
	case top:
		return fmt.Errorf("%s is neither a file nor a directory: %v", path, info.Mode().Type())
	}
	return nil // skip sockets, pipes and devices: they have no content
}

// dir visits the files in a directory whose names end in a suffix.
func (s *scan) dir(dir, suffix string, top bool) error {
	if s.dirs--; s.dirs < 0 {
		return fmt.Errorf("%s: more than %d directories in all", dir, maxDirs)
	}
	d, err := s.host.Open(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		names, err := d.Readdirnames(512)
		for _, name := range names {
			if !strings.HasSuffix(name, suffix) {
				continue
			}
			if err := s.visit(filepath.Join(dir, name), top); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || gone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", dir, err)
		}
	}
}

// unit reads a unit's files: the first of the fragments that exists, and all drop-ins.
func (s *scan) unit(fragments, dropIns []string) error {
	for _, path := range fragments {
		if err := s.visit(path, true); err != nil {
			return err
		}
		if len(s.found) > 0 {
			break
		}
	}
	for _, path := range dropIns {
		var err error
		if info, statErr := s.host.Stat(path); statErr == nil && info.IsDir() {
			err = s.dir(path, ".conf", true)
		} else if statErr != nil && !gone(statErr) {
			err = statErr
		} else if statErr == nil {
			err = s.visit(path, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// put adds a file to the result.
func (s *scan) put(path string, e entry) error {
	if s.files--; s.files < 0 {
		return fmt.Errorf("more than %d files", maxFiles)
	}
	s.found[s.root.key(printable(path))] = e
	return nil
}

// file reads a regular file. link is the target if path is a symbolic link to it.
func (s *scan) file(path string, info fs.FileInfo, link string) error {
	now, _ := stampOf(info, link)
	if old := s.old[s.root.key(printable(path))]; old.final && old.stamp == now && now.size <= s.bytes {
		s.bytes -= now.size
		return s.put(path, old)
	}
	f, err := s.host.Open(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return err
	}
	// The stamp is taken before the file is read, so that a write during the read has a later
	// ctime.
	opened, final := stampOf(info, link)
	if opened.dev != now.dev || opened.ino != now.ino || !info.Mode().IsRegular() {
		return errReplaced
	}
	digest, err := s.key.digest(path, link, func(to io.Writer) error {
		fmt.Fprintf(to, "file %04o\n", opened.mode&0o7777)
		return s.copy(to, f, path, opened.size)
	})
	if err != nil {
		return err
	}
	return s.put(path, entry{digest, opened, final})
}

// copy copies a file of the given size. It checks the size before it reads, because a sparse
// file may be huge.
func (s *scan) copy(to io.Writer, f io.Reader, path string, size int64) error {
	for {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if s.bytes < size {
			return fmt.Errorf("%s: more than %d MiB in all", path, maxBytes>>20)
		}
		n, err := io.CopyN(to, f, blockSize)
		s.bytes -= n
		size = max(0, size-n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// printable returns a path as valid UTF-8 for JSON: each invalid byte becomes \xNN. All other
// bytes stay the same, so that the path remains below its root.
func printable(path string) string {
	var b strings.Builder
	for path != "" {
		r, n := utf8.DecodeRuneInString(path)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, path[0])
		} else {
			b.WriteString(path[:n])
		}
		path = path[n:]
	}
	return b.String()
}
