package node

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

// maxFile bounds what is read of any file, in bytes.
const maxFile = 64 << 10

// files are the host's files, below a root that nothing leads out of. The
// machine's own root is not confined: an absolute link in it (/var/run, or
// NixOS' /etc/os-release) leads where it says.
type files struct{ root *os.Root } // nil: the machine's own

func openFiles(root string) (files, error) {
	if filepath.Clean(root) == "/" {
		return files{}, nil
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return files{}, fmt.Errorf("opening the host's root: %w", err)
	}
	return files{r}, nil
}

func (f files) close() {
	if f.root != nil {
		f.root.Close()
	}
}

func (f files) below(path string) string { return strings.TrimPrefix(path, "/") }

// lstat says whether there is something at an absolute path: nil, an error
// that is fs.ErrNotExist, or why that cannot be told.
func (f files) lstat(path string) (err error) {
	if f.root == nil {
		_, err = os.Lstat(path)
	} else {
		_, err = f.root.Lstat(f.below(path))
	}
	return err
}

// read reads the beginning of a regular file, maxFile bytes at most.
func (f files) read(path string) (string, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK // a pipe in its place must not hold anybody
	var file *os.File
	var err error
	if f.root == nil {
		file, err = os.OpenFile(path, flags, 0)
	} else {
		file, err = f.root.OpenFile(f.below(path), flags, 0)
	}
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
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	return string(text), err
}

// names lists a folder, sorted; one that is not there is empty.
func (f files) names(path string) ([]string, error) {
	var entries []fs.DirEntry
	var err error
	if f.root == nil {
		entries, err = os.ReadDir(path)
	} else {
		entries, err = fs.ReadDir(f.root.FS(), f.below(path))
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
