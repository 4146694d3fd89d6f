package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const offlineFile = "offline.json"

// maxOffline bounds what is read of the file, in bytes; what is written is far below.
const maxOffline = 64 << 10

// ReadOffline returns what happened before this process while the API server could not be
// reached, as [WriteOffline] wrote it; nil if nothing did. dir is on a disk: the host may
// have rebooted meanwhile.
func ReadOffline(dir string) (all []v1alpha1.OfflineEvent, err error) {
	err = ReadJSON(filepath.Join(dir, offlineFile), maxOffline, &all)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what happened while the API server was away: %w", err)
	}
	return all[max(0, len(all)-v1alpha1.MaxUpdateOffline):], nil
}

// WriteOffline replaces the events in dir, and removes the file if there are none.
func WriteOffline(dir string, all []v1alpha1.OfflineEvent) error {
	path := filepath.Join(dir, offlineFile)
	var err error
	if len(all) == 0 {
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else if err = os.MkdirAll(dir, 0o755); err == nil {
		err = WriteJSON(path, 0o600, all)
	}
	if err != nil {
		return fmt.Errorf("writing what happens while the API server is away: %w", err)
	}
	return nil
}
