// Package secret writes files with a credential, so that only their owner can read them,
// and finds files that other users can read or change. It must not know what is in them.
package secret

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile writes a secret to path, readable only for its owner (mode 0600). The file
// that was there before stays until the new one is complete: a process that reads it
// meanwhile reads one or the other. The directory has to exist.
func WriteFile(path string, content []byte) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	return f.Commit(content)
}

// File is a new file that is to replace the one at its path. Nothing changes there
// before [File.Commit].
type File struct {
	path string
	file *os.File // nil after Commit
}

// Create makes an empty file next to path. It fails if the directory is not
// writable. The name is always the same, so a process that is killed leaves at
// most one file behind, and the next process replaces it.
func Create(path string) (*File, error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	err := os.Remove(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return &File{path: path, file: f}, nil
}

// Commit writes the content and puts the file at its path.
func (s *File) Commit(content []byte) error {
	_, err := s.file.Write(content)
	if err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		err = os.Rename(s.file.Name(), s.path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", s.path, err)
	}
	s.file.Close()
	s.file = nil
	// The name is on the disk once its directory is. Not every file system can
	// sync a directory; then either the old or the new file is there after a crash.
	if dir, err := os.Open(filepath.Dir(s.path)); err == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}

// Discard removes the new file unless it was committed.
func (s *File) Discard() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name())
		s.file = nil
	}
}
