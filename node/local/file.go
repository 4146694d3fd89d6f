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

// WriteJSON replaces a file with v as JSON, as a whole or not at all: a reader never sees
// half of it. It does not sync: what is written this way is of no use after a crash of the
// host, or is for people only. A file has one writer at a time.
func WriteJSON(path string, mode fs.FileMode, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	next := path + ".new"
	if err = os.WriteFile(next, append(data, '\n'), mode); err == nil {
		if err = os.Chmod(next, mode); err == nil { // whatever the umask is
			err = os.Rename(next, path)
		}
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(next))
	}
	return err
}
