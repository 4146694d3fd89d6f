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
	maxFile  = 256 << 10 // bytes of one file
	maxFiles = 256       // drop-ins
)

// layout is where the host's file and its drop-ins are.
type layout struct {
	file     string
	optional bool // the file need not exist
	// dropIns are directories, the strongest last.
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

// document is a file's text.
type document struct {
	file string
	data []byte
}

// read returns what there is to parse, in order.
func (l layout) read() ([]document, []Warning, Errors) {
	var docs []document
	var errs Errors
	data, err := readFile(l.file)
	switch {
	case err == nil:
		docs = append(docs, document{l.file, data})
	case l.optional && errors.Is(err, fs.ErrNotExist):
	default:
		errs = append(errs, &Error{File: l.file, Err: err})
	}
	paths, warnings, wrong := l.findDropIns()
	errs = append(errs, wrong...)
	for _, path := range paths {
		data, err := readFile(path)
		if err != nil {
			errs = append(errs, &Error{File: path, Err: err})
			continue
		}
		docs = append(docs, document{path, data})
	}
	return docs, warnings, errs
}

// findDropIns lists the drop-ins that count, in the order of their names.
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
			case strings.HasPrefix(name, "."): // an editor's
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

// readFile reads a regular file of bounded size. What is no regular file might
// block indefinitely.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file (%s)", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d KiB", maxFile>>10)
	}
	return data, nil
}

// cause drops the path from an error of package os: it is named already.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
