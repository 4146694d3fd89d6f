// Package hostfs reads a host's files below a root, and never outside of it. A link in a test's
// root therefore cannot lead to a file of the machine that runs the test. The machine's own root
// is not confined: the kernel resolves absolute links in it, such as /var/run, or /etc/os-release
// on NixOS.
//
// The package writes nothing. It must not know what the files are for.
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

// MaxRead is the size of the largest file that [FS.Read] reads, in bytes.
const MaxRead = 64 << 10

// FS reads a host's files. Create it with [New], and close it after use. All paths are absolute.
// The errors are those of package os.
type FS struct{ root files }

// files has the methods of *os.Root that FS uses; their names are relative to the root. machine
// implements it for the machine's own root.
type files interface {
	Lstat(name string) (fs.FileInfo, error)
	Stat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	OpenFile(name string, flag int, perm os.FileMode) (*os.File, error)
	Close() error
}

// machine implements files for the machine's own root.
type machine struct{}

func (machine) Lstat(name string) (fs.FileInfo, error) { return os.Lstat("/" + name) }
func (machine) Stat(name string) (fs.FileInfo, error)  { return os.Stat("/" + name) }
func (machine) Readlink(name string) (string, error)   { return os.Readlink("/" + name) }
func (machine) Close() error                           { return nil }
func (machine) OpenFile(name string, flag int, perm os.FileMode) (*os.File, error) {
	return os.OpenFile("/"+name, flag, perm)
}

// New opens a root, which is an absolute path. "/" is the machine's own root.
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

// Close releases the root.
func (f FS) Close() error { return f.root.Close() }

// below converts an absolute path to one relative to the root.
func below(path string) string {
	if path = strings.TrimLeft(path, "/"); path != "" {
		return path
	}
	return "."
}

// Lstat describes the file at a path. If the file is a symbolic link, Lstat describes the link.
func (f FS) Lstat(path string) (fs.FileInfo, error) { return f.root.Lstat(below(path)) }

// Stat describes the file at a path. It follows symbolic links.
func (f FS) Stat(path string) (fs.FileInfo, error) { return f.root.Stat(below(path)) }

// Readlink returns the target of a symbolic link.
func (f FS) Readlink(path string) (string, error) { return f.root.Readlink(below(path)) }

// Open opens a file or a directory for reading. If the file is a pipe, Open does not wait for a
// writer.
func (f FS) Open(path string) (*os.File, error) {
	return f.root.OpenFile(below(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Read returns the content of a regular file. A file larger than MaxRead is an error: what its end says must not be overlooked.
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
	text, err := io.ReadAll(io.LimitReader(file, MaxRead+1))
	if err == nil && len(text) > MaxRead {
		err = fmt.Errorf("%s is larger than %d KiB", path, MaxRead>>10)
	}
	if err != nil {
		return "", err
	}
	return string(text), nil
}

// Names returns the sorted names in a directory, or none if the directory does not exist.
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
