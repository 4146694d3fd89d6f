package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile writes a secret to path, readable for its owner alone (0600). What
// was there before stays until the new file is complete: a coordinator that
// reads it meanwhile sees one or the other. The directory has to exist.
func WriteFile(path string, secret []byte) error {
	f, err := createFile(path)
	if err != nil {
		return err
	}
	defer f.drop()
	return f.commit(secret)
}

// secretFile is a new file that replaces the one at path. Nothing changes there
// before commit.
type secretFile struct {
	path string
	file *os.File // nil after commit
}

// createFile makes an empty file next to path. It fails if the directory is not
// writable. The name is always the same, so a process that is killed leaves at
// most one file behind, and the next process replaces it.
func createFile(path string) (*secretFile, error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	err := os.Remove(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return &secretFile{path: path, file: f}, nil
}

// commit writes the content and puts the file at its path.
func (s *secretFile) commit(secret []byte) error {
	_, err := s.file.Write(secret)
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

// drop removes the new file unless it was committed.
func (s *secretFile) drop() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.file.Name())
		s.file = nil
	}
}
