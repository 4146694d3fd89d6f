package simhost

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestStaleDirs checks that a directory with an unlocked new lock is kept: it belongs to a host that is just starting. Two hosts that start
// at the same time must not remove each other's directories.
func TestStaleDirs(t *testing.T) {
	temp := t.TempDir()
	for _, c := range []struct {
		name         string
		lock, locked bool
		age          time.Duration
		stays        bool
	}{
		{"just-made", false, false, 0, true},
		{"lock-just-made", true, false, 0, true},
		{"lives", true, true, time.Hour, true},
		{"killed", true, false, time.Hour, false},
		{"killed-early", false, false, time.Hour, false},
	} {
		path := filepath.Join(temp, dirPrefix+c.name)
		must(t, os.Mkdir(path, 0o700))
		if c.locked {
			lock, err := lockDir(path)
			must(t, err)
			t.Cleanup(func() { lock.Close() })
		} else if c.lock {
			must(t, os.WriteFile(filepath.Join(path, dirLock), nil, 0o600))
		}
		then := time.Now().Add(-c.age)
		must(t, os.Chtimes(path, then, then))
		removeStaleDirs(temp)
		if _, err := os.Stat(path); (err == nil) != c.stays {
			t.Errorf("%s: exists %t, expected %t", c.name, err == nil, c.stays)
		}
	}
}
