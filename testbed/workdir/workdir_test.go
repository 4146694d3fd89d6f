package workdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStale checks that a new directory removes those of dead owners, and keeps the one of an owner that lives or is just starting: two
// owners that start at the same time must not remove each other's.
func TestStale(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	for _, c := range []struct {
		name         string
		lock, locked bool
		age          time.Duration
		stays        bool
	}{
		{"lockkeeper-host-just-made", false, false, 0, true},
		{"lockkeeper-host-lock-just-made", true, false, 0, true},
		{"lockkeeper-host-lives", true, true, time.Hour, true},
		{"lockkeeper-host-killed", true, false, time.Hour, false},
		{"lockkeeper-host-killed-early", false, false, time.Hour, false},
		{"lockkeeper-control-plane-killed", true, false, time.Hour, true},
		{"elsewhere", false, false, time.Hour, true},
	} {
		path := filepath.Join(temp, c.name)
		must(t, os.Mkdir(path, 0o700))
		if c.lock {
			lock, err := lockDir(path)
			must(t, err)
			if !c.locked {
				lock.Close()
			}
			t.Cleanup(func() { lock.Close() })
		}
		then := time.Now().Add(-c.age)
		must(t, os.Chtimes(path, then, then))
		d, err := New("host", "")
		must(t, err)
		if _, err := os.Stat(path); (err == nil) != c.stays {
			t.Errorf("%s: exists %t, expected %t", c.name, err == nil, c.stays)
		}
		must(t, d.Remove())
		if _, err := os.Stat(d.Path()); err == nil {
			t.Errorf("%s exists after its removal", d.Path())
		}
	}
}

// TestLiving checks that the directory of a living owner stays, also an old one.
func TestLiving(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	living, err := New("host", "")
	must(t, err)
	long := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(living.Path(), long, long))
	next, err := New("host", "")
	must(t, err)
	info, err := os.Stat(living.Path())
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("others may read it: %v", info.Mode())
	}
	must(t, next.Remove())
	must(t, living.Remove())
}

// TestNamed checks that a directory that the caller named may exist, and stays.
func TestNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		d, err := New("host", path)
		must(t, err)
		must(t, os.WriteFile(d.Join("file"), nil, 0o600))
		must(t, d.Remove())
	}
	if _, err := os.Stat(filepath.Join(path, "file")); err != nil {
		t.Error(err)
	}
}

// TestSocket checks the longest path that a socket may have.
func TestSocket(t *testing.T) {
	d := &Dir{path: "/" + strings.Repeat("d", 99)}
	if path, err := d.Socket("1234567"); err == nil || path != "" {
		t.Errorf("a path of 108 bytes: %v", err)
	}
	if path, err := d.Socket("123456"); err != nil || len(path) != 107 {
		t.Errorf("a path of 107 bytes: %q, %v", path, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
