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

// maxOffline is how many bytes of the file are read. The file that lockkeeper writes is much
// smaller.
const maxOffline = 64 << 10

// ReadOffline returns the events that an earlier process wrote with [WriteOffline] while the API
// server could not be reached, or nil if there are none. dir is on a disk, so the events survive
// a reboot.
func ReadOffline(dir string) (all []v1alpha1.OfflineEvent, err error) {
	err = ReadJSON(filepath.Join(dir, offlineFile), maxOffline, &all)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the events from while the API server could not be reached: %w", err)
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
		return fmt.Errorf("writing the events from while the API server cannot be reached: %w", err)
	}
	return nil
}
