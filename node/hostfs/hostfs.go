// Package hostfs reads a host's files below a root, and never outside of it: a link in a
// test's root reads nothing of the machine that the test runs on. The machine's own root is
// not confined: an absolute link in it (/var/run, or /etc/os-release on NixOS) leads where
// it says.
//
// Nothing here writes. This package must not know what the files are for.
package hostfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MaxRead bounds what [FS.Read] reads of a file, in bytes.
const MaxRead = 64 << 10

// FS reads a host's files. Make it with [New], and close it. All paths are absolute; errors
// are those of package os.
type FS struct{ files }

// files is an *os.Root, or the machine's own files.
type files interface {
	Lstat(name string) (fs.FileInfo, error)
	Stat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	OpenFile(name string, flag int, perm os.FileMode) (*os.File, error)
	Close() error
}

// machine has the methods of an os.Root for the machine's own root.
type machine struct{}

func (machine) Lstat(name string) (fs.FileInfo, error) { return os.Lstat("/" + name) }
func (machine) Stat(name string) (fs.FileInfo, error)  { return os.Stat("/" + name) }
func (machine) Readlink(name string) (string, error)   { return os.Readlink("/" + name) }
func (machine) Close() error                           { return nil }
func (machine) OpenFile(name string, flag int, perm os.FileMode) (*os.File, error) {
	return os.OpenFile("/"+name, flag, perm)
}

// New opens the files of a root, an absolute path: "/" is the machine's own.
func New(root string) (FS, error) {
	if filepath.Clean(root) == "/" {
		return FS{machine{}}, nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return FS{}, fmt.Errorf("opening the host's root: %w", err)
	}
	return FS{r}, nil
}

// below turns an absolute path into one below the root.
func below(path string) string {
	if path = strings.TrimLeft(path, "/"); path != "" {
		return path
	}
	return "."
}

// Lstat describes what is at a path, and does not follow a link there.
func (f FS) Lstat(path string) (fs.FileInfo, error) { return f.files.Lstat(below(path)) }

// Stat describes what is at a path, or where a link there leads.
func (f FS) Stat(path string) (fs.FileInfo, error) { return f.files.Stat(below(path)) }

// Readlink returns where a link leads.
func (f FS) Readlink(path string) (string, error) { return f.files.Readlink(below(path)) }

// Open opens a file or a directory for reading. It does not wait for the writer of a pipe.
func (f FS) Open(path string) (*os.File, error) {
	return f.OpenFile(below(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Read reads the beginning of a regular file, MaxRead bytes at most.
func (f FS) Read(path string) (string, error) {
	file, err := f.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file: %v", path, info.Mode().Type())
	}
	text, err := io.ReadAll(io.LimitReader(file, MaxRead))
	return string(text), err
}

// Names lists a directory, sorted. One that does not exist is empty.
func (f FS) Names(path string) ([]string, error) {
	dir, err := f.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
