package credential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile writes a secret to path, readable for its owner alone (0600). What
// was there before stays until the new file is whole: a coordinator that reads
// it meanwhile sees the one or the other. The folder has to exist.
func WriteFile(path string, secret []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	// CreateTemp makes it 0600, whatever the umask.
	_, err = f.Write(secret)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
