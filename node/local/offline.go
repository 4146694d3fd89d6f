package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const offlineFile = "offline.json"

// maxOffline bounds what is read of the file, in bytes; what is written is far below.
const maxOffline = 64 << 10

// ReadOffline returns what happened before this process while the API server could
// not be reached, as [WriteOffline] left it in dir; nil if nothing is there. dir is
// on a disk: the host may have rebooted meanwhile.
func ReadOffline(dir string) ([]v1alpha1.OfflineEvent, error) {
	f, err := os.Open(filepath.Join(dir, offlineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what happened while the API server was away: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOffline))
	if err != nil {
		return nil, fmt.Errorf("reading what happened while the API server was away: %w", err)
	}
	var all []v1alpha1.OfflineEvent
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading what happened while the API server was away: %w", err)
	}
	return all[max(0, len(all)-v1alpha1.MaxUpdateOffline):], nil
}

// WriteOffline keeps the events in dir, whole or not at all, and removes the file if
// there are none. The file is not synced: a record that a power cut loses is for
// people only.
func WriteOffline(dir string, all []v1alpha1.OfflineEvent) error {
	path := filepath.Join(dir, offlineFile)
	err := func() error {
		if len(all) == 0 {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		data, err := json.Marshal(all)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			return err
		}
		return os.Rename(path+".new", path)
	}()
	if err != nil {
		return fmt.Errorf("keeping what happens while the API server is away: %w", err)
	}
	return nil
}
