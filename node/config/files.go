package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxFile  = 64 << 10 // bytes of one file
	maxFiles = 256      // drop-ins
)

// layout is where the host's file and its drop-ins are.
type layout struct {
	file     string
	optional bool // the file need not exist
	// dropIns are directories. A file in a later one replaces one of the same name.
	dropIns []string
}

func layoutOf(file string) layout {
	if file == "" || filepath.Clean(file) == DefaultFile {
		return layout{file: DefaultFile, optional: file == "", dropIns: []string{
			"/usr/lib/lockkeeper/config.d", "/etc/lockkeeper/config.d", "/run/lockkeeper/config.d",
		}}
	}
	return layout{file: file, dropIns: []string{filepath.Join(filepath.Dir(file), "config.d")}}
}

// file is a file that was read.
type file struct{ path, text string }

// read returns the files, in the order in which they count.
func (l layout) read() (files []file, warnings []Warning, errs Errors) {
	paths, warnings, wrong := l.findDropIns()
	for _, path := range append([]string{l.file}, paths...) {
		text, err := readFile(path)
		switch {
		case err == nil:
			files = append(files, file{path, text})
		case path == l.file && l.optional && errors.Is(err, fs.ErrNotExist):
		default:
			errs = append(errs, &Error{File: path, Err: err})
		}
	}
	return files, warnings, append(errs, wrong...)
}

// findDropIns returns the paths of the drop-ins, in the order of their names.
func (l layout) findDropIns() (paths []string, warnings []Warning, errs Errors) {
	byName := map[string]string{}
	for _, dir := range l.dropIns {
		entries, err := os.ReadDir(dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, &Error{File: dir, Err: fmt.Errorf("listing drop-ins: %w", cause(err))})
			}
			continue
		}
		for _, e := range entries {
			name := e.Name()
			switch {
			case strings.HasPrefix(name, "."): // a temporary file of an editor
			case filepath.Ext(name) != ".toml":
				warnings = append(warnings, Warning{filepath.Join(dir, name), "not read, because its name does not end in .toml"})
			default:
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if path := byName[name]; !masked(path) {
			paths = append(paths, path)
		}
	}
	if len(paths) > maxFiles {
		errs = append(errs, &Error{File: l.dropIns[len(l.dropIns)-1], Got: fmt.Sprintf("%d drop-ins", len(paths)), Expected: fmt.Sprintf("at most %d", maxFiles)})
		paths = paths[:maxFiles]
	}
	return paths, warnings, errs
}

// masked reports whether path is a link to /dev/null.
func masked(path string) bool {
	target, err := filepath.EvalSymlinks(path)
	return err == nil && target == os.DevNull
}

// readFile reads a regular file of bounded size. Reading any other kind of file might
// block indefinitely.
func readFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", cause(err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("not a regular file (%s)", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return "", cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", cause(err)
	}
	if len(data) > maxFile {
		return "", fmt.Errorf("larger than %d KiB", maxFile>>10)
	}
	return string(data), nil
}

// cause returns an error of package os without the path, which [Error] names already.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
