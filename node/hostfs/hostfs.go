// Package hostfs reads a host's files below a root that nothing leads out of, so
// that a link in a test's root reads nothing of the machine that the test runs on.
// The machine's own root is not confined: an absolute link in it (/var/run, or
// NixOS' /etc/os-release) leads where it says.
//
// Nothing here writes. This room must not know what the files are for.
package hostfs

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

// MaxRead bounds what [FS.Read] reads of a file, in bytes.
const MaxRead = 64 << 10

// FS are a host's files. Make it with [New], and close it. All paths are
// absolute; errors are those of package os.
type FS struct{ root *os.Root } // nil: the machine's own

// New opens the files of a root, an absolute path: "/" is the machine's own.
func New(root string) (FS, error) {
	if filepath.Clean(root) == "/" {
		return FS{}, nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return FS{}, fmt.Errorf("opening the host's root: %w", err)
	}
	return FS{r}, nil
}

// Close lets go of the root.
func (f FS) Close() {
	if f.root != nil {
		f.root.Close()
	}
}

// below is an absolute path as one below the root.
func below(path string) string {
	if path = strings.TrimPrefix(path, "/"); path != "" {
		return path
	}
	return "."
}

// Lstat describes what is at a path, a link itself included.
func (f FS) Lstat(path string) (fs.FileInfo, error) {
	if f.root == nil {
		return os.Lstat(path)
	}
	return f.root.Lstat(below(path))
}

// Stat describes what is at a path, or where a link there leads.
func (f FS) Stat(path string) (fs.FileInfo, error) {
	if f.root == nil {
		return os.Stat(path)
	}
	return f.root.Stat(below(path))
}

// Readlink says where a link leads.
func (f FS) Readlink(path string) (string, error) {
	if f.root == nil {
		return os.Readlink(path)
	}
	return f.root.Readlink(below(path))
}

// Open opens a file or a folder to be read. A pipe in its place holds nobody.
func (f FS) Open(path string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	if f.root == nil {
		return os.OpenFile(path, flags, 0)
	}
	return f.root.OpenFile(below(path), flags, 0)
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
		return "", fmt.Errorf("%s is no file: %v", path, info.Mode().Type())
	}
	text, err := io.ReadAll(io.LimitReader(file, MaxRead))
	return string(text), err
}

// Names lists a folder, sorted; one that is not there is empty.
func (f FS) Names(path string) ([]string, error) {
	var entries []fs.DirEntry
	var err error
	if f.root == nil {
		entries, err = os.ReadDir(path)
	} else {
		entries, err = fs.ReadDir(f.root.FS(), below(path))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}
