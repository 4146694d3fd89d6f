package local

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
)

// ReadJSON decodes a file of at most limit bytes into v.
func ReadJSON(path string, limit int64, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// WriteJSON replaces a file with v as JSON, as a whole or not at all, so that a reader never
// sees a part of it. It does not sync the file: no caller needs the content after a crash of the
// host. A file must have only one writer at a time.
func WriteJSON(path string, mode fs.FileMode, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	next := path + ".new"
	if err = os.WriteFile(next, append(data, '\n'), mode); err == nil {
		if err = os.Chmod(next, mode); err == nil { // WriteFile applies the umask
			err = os.Rename(next, path)
		}
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(next))
	}
	return err
}
