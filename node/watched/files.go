package watched

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

// The bounds of one watched path or unit.
const (
	// MaxFiles is how many files there may be below a path.
	MaxFiles = 10_000
	// MaxBytes is how much they may hold together.
	MaxBytes = 64 << 20

	maxFolders = 10_000
	blockSize  = 64 << 10
	maxTries   = 5 // at a file that is another each time it is opened
)

// entry is a file as it was read.
type entry struct {
	sum   string // of path, mode and content, or of path and a link's target; see hostKey
	stamp stamp
}

// stamp tells whether a file is still the one that was read. ctime is the
// kernel's own: nobody can set it back.
type stamp struct {
	dev, ino     uint64
	size         int64
	mode         uint32
	mtime, ctime syscall.Timespec
	link         string
	sure         bool // what changes from now on has another ctime
}

// tick is what no file system's clock is coarser than.
const tick = 2 * time.Second

func stampOf(info fs.FileInfo, link string) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	age := time.Since(time.Unix(st.Ctim.Unix()))
	return stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mode: uint32(st.Mode), mtime: st.Mtim, ctime: st.Ctim, link: link, sure: age > tick}
}

// same reports whether the file was not touched between two stamps.
func (s stamp) same(now stamp) bool {
	now.sure = s.sure
	return s.sure && s == now
}

func sameFile(a, b stamp) bool { return a.dev == b.dev && a.ino == b.ino }

// A scan reads what is at some paths.
type scan struct {
	ctx   context.Context
	host  hostfs.FS
	key   *hostKey
	old   map[string]entry // what was read before need not be read again
	found map[string]entry
	// What there may be yet.
	files, folders int
	bytes          int64
	buf            []byte
}

func newScan(ctx context.Context, h hostfs.FS, k *hostKey, old map[string]entry) *scan {
	return &scan{ctx: ctx, host: h, key: k, old: old, found: map[string]entry{},
		files: MaxFiles, folders: maxFolders, bytes: MaxBytes, buf: make([]byte, blockSize)}
}

// gone: there is nothing, not even a folder for it.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// path reads a path: a file, a link and the file or folder that it leads to,
// or a folder with all below it. It reports whether there is anything.
func (s *scan) path(path string) (there bool, err error) {
	info, err := s.host.Lstat(path)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	link := ""
	if info.Mode().Type() == fs.ModeSymlink {
		if link, err = s.host.Readlink(path); err != nil {
			return true, err
		}
		if info, err = s.host.Stat(path); gone(err) || errors.Is(err, syscall.ELOOP) {
			return true, s.put(path, entry{sum: s.linkSum(path, link)})
		} else if err != nil {
			return true, err
		}
	}
	switch {
	case info.Mode().IsRegular():
		return true, s.file(path, info, link)
	case info.IsDir():
		if link != "" {
			if err := s.put(path, entry{sum: s.linkSum(path, link)}); err != nil {
				return true, err
			}
		}
		return true, s.folder(path)
	case link != "": // to /dev/null, as of a masked unit
		return true, s.put(path, entry{sum: s.linkSum(path, link)})
	}
	return true, fmt.Errorf("%s is neither a file nor a folder: %v", path, info.Mode().Type())
}

// folder reads all that is below a folder. Links in it are not followed.
func (s *scan) folder(dir string) error {
	if s.folders--; s.folders < 0 {
		return fmt.Errorf("%s: more than %d folders in all", dir, maxFolders)
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
		entries, err := d.ReadDir(512)
		for _, e := range entries {
			if err := s.child(filepath.Join(dir, e.Name()), e.Type()); err != nil {
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

func (s *scan) child(path string, kind fs.FileMode) error {
	switch kind {
	case fs.ModeDir:
		return s.folder(path)
	case fs.ModeSymlink:
		target, err := s.host.Readlink(path)
		if gone(err) || errors.Is(err, syscall.EINVAL) { // no link any more
			return nil
		}
		if err != nil {
			return err
		}
		return s.put(path, entry{sum: s.linkSum(path, target)})
	case 0:
		info, err := s.host.Lstat(path)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return s.child(path, info.Mode().Type())
		}
		return s.file(path, info, "")
	}
	return nil // sockets, pipes and devices have no content
}

// unit reads a unit's files: the first of the fragments that is there, and all
// drop-ins.
func (s *scan) unit(fragments, dropIns []string) error {
	for _, path := range fragments {
		if there, err := s.path(path); err != nil {
			return err
		} else if there {
			break
		}
	}
	for _, path := range dropIns {
		if err := s.dropIns(path); err != nil {
			return err
		}
	}
	return nil
}

// dropIns reads a folder of drop-ins, or one drop-in.
func (s *scan) dropIns(path string) error {
	info, err := s.host.Stat(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		_, err := s.path(path)
		return err
	}
	d, err := s.host.Open(path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(MaxFiles)
	if err != nil && err != io.EOF && !gone(err) {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".conf") {
			if _, err := s.path(filepath.Join(path, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// put notes what a file is.
func (s *scan) put(path string, e entry) error {
	if s.files--; s.files < 0 {
		return fmt.Errorf("more than %d files", MaxFiles)
	}
	s.found[sayable(path)] = e
	return nil
}

// file reads a regular file, at the end of a link if there is one.
func (s *scan) file(path string, info fs.FileInfo, link string) error {
	for range maxTries {
		now := stampOf(info, link)
		if now.size > s.bytes {
			return tooBig(path)
		}
		if old, ok := s.old[sayable(path)]; ok && old.stamp.same(now) {
			s.bytes -= now.size
			return s.put(path, old)
		}
		e, err := s.read(path, now)
		if err == nil {
			return s.put(path, e)
		}
		if gone(err) {
			return nil // its end will be told of
		}
		if !errors.Is(err, errAnother) {
			return err
		}
		stat := s.host.Lstat
		if link != "" {
			stat = s.host.Stat
		}
		if info, err = stat(path); gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		if !info.Mode().IsRegular() && link != "" {
			break
		}
		if !info.Mode().IsRegular() {
			return s.child(path, info.Mode().Type())
		}
	}
	return fmt.Errorf("%s is another file each time it is opened", path)
}

var errAnother = errors.New("another file in its place")

func tooBig(path string) error {
	return fmt.Errorf("%s: more than %d MiB in all", path, MaxBytes>>20)
}

func (s *scan) read(path string, want stamp) (entry, error) {
	f, err := s.host.Open(path)
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return entry{}, err
	}
	// Before it is read: what is written meanwhile has a later ctime.
	now := stampOf(info, want.link)
	if !sameFile(now, want) || !info.Mode().IsRegular() {
		return entry{}, errAnother
	}
	sum := s.key.digest(path)
	if want.link != "" {
		fmt.Fprintf(sum, "link %q\n", want.link)
	}
	fmt.Fprintf(sum, "file %04o\n", now.mode&0o7777)
	for {
		if err := s.ctx.Err(); err != nil {
			return entry{}, err
		}
		n, err := f.Read(s.buf)
		sum.Write(s.buf[:n])
		if s.bytes -= int64(n); s.bytes < 0 {
			return entry{}, tooBig(path)
		}
		if err == io.EOF {
			return entry{sum.String(), now}, nil
		}
		if err != nil {
			return entry{}, err
		}
	}
}

func (s *scan) linkSum(path, target string) string {
	sum := s.key.digest(path)
	fmt.Fprintf(sum, "link %q\n", target)
	return sum.String()
}

// sayable is a path as it stands in JSON: bytes that are no UTF-8 become \xNN.
func sayable(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); {
		r, n := utf8.DecodeRuneInString(path[i:])
		if r == utf8.RuneError && n == 1 {
			b.WriteString(`\x` + strconv.FormatUint(uint64(path[i])|0x100, 16)[1:])
		} else {
			b.WriteString(path[i : i+n])
		}
		i += n
	}
	return b.String()
}
