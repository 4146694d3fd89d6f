package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	epochFile = "epoch.json"
	maxEpoch  = 4 << 10 // bytes
)

// lastEpoch is the record of the epoch under which a process campaigns. It counts only for the next
// process that holds the same lock in the same boot: then the one that wrote it is dead.
type lastEpoch struct {
	BootID string `json:"bootID"`
	// Device and Inode identify the file of the lock. A copy of the directory has another one.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Epoch  string `json:"epoch"`
}

// id returns the lock's device and inode.
func (l *Lock) id() (device, inode uint64, err error) {
	info, err := l.file.Stat()
	if err != nil {
		return 0, 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("the file has no inode")
	}
	return uint64(stat.Dev), stat.Ino, nil
}

// LastEpoch returns the epoch that the process before this one recorded last with [Lock.RecordEpoch],
// if it did so in the boot with this ID and held this lock; otherwise "". That process is dead,
// because this one holds its lock. Call it before RecordEpoch.
func (l *Lock) LastEpoch(bootID string) string {
	path := filepath.Join(l.dir, epochFile)
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxEpoch {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	device, inode, err := l.id()
	var e lastEpoch
	if err != nil || json.Unmarshal(text, &e) != nil || e.BootID == "" || e.BootID != bootID || e.Device != device || e.Inode != inode {
		return ""
	}
	return e.Epoch
}

// RecordEpoch records that this process campaigns under the epoch. It returns after the record is
// in place, so that no Lease can have an epoch that is not recorded. After an error no epoch is
// recorded.
func (l *Lock) RecordEpoch(bootID, epoch string) error {
	path := filepath.Join(l.dir, epochFile)
	// An old record must not stay: it names a term of this process that is over.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("recording the epoch: %w", err)
	}
	device, inode, err := l.id()
	if err != nil {
		return fmt.Errorf("recording the epoch: %w", err)
	}
	text := v1alpha1.FormatRecord(lastEpoch{bootID, device, inode, epoch})
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("recording the epoch: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}
