package local

import (
	"os"
	"path/filepath"
	"testing"
)

func acquired(t *testing.T, dir string) *Lock {
	t.Helper()
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Release() })
	return lock
}

// TestEpoch has what the next process knows of the epoch of the one before it.
func TestEpoch(t *testing.T) {
	const boot = "b1"
	for name, c := range map[string]struct {
		between func(t *testing.T, dir string) // after the end of the process, and before the next one
		boot    string
		want    string
	}{
		"the process died":       {want: "n1_a"},
		"the host booted":        {boot: "b2"},
		"a boot that is unknown": {boot: "-"},
		"the lock file was replaced": {between: func(t *testing.T, dir string) {
			// The old file is kept, as by a process that still has it open, so that its inode is not used again.
			must(t, os.Rename(filepath.Join(dir, lockFile), filepath.Join(dir, "old")))
		}},
		"no record":            {between: func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, epochFile))) }},
		"a record that is cut": {between: func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, epochFile), 20)) }},
		"a record that is too large": {between: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, epochFile), make([]byte, maxEpoch+1), 0o600))
		}},
		"a link in its place": {between: func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, epochFile), filepath.Join(dir, "x")))
			must(t, os.Symlink("x", filepath.Join(dir, epochFile)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := acquired(t, dir)
			if got := first.LastEpoch(boot); got != "" {
				t.Errorf("before any record: %q", got)
			}
			must(t, first.RecordEpoch(boot, "n1_0"))
			must(t, first.RecordEpoch(boot, "n1_a"))
			must(t, first.Release())
			if c.between != nil {
				c.between(t, dir)
			}
			next, now := acquired(t, dir), boot
			switch c.boot {
			case "":
			case "-":
				now = ""
			default:
				now = c.boot
			}
			if got := next.LastEpoch(now); got != c.want {
				t.Errorf("%q, expected %q", got, c.want)
			}
		})
	}
}

// A copy of the directory says nothing about the process that uses the original.
func TestEpochOfACopy(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	lock := acquired(t, dir)
	must(t, lock.RecordEpoch("b1", "n1_a"))
	must(t, os.CopyFS(filepath.Join(other, "copy"), os.DirFS(dir)))
	if got := acquired(t, filepath.Join(other, "copy")).LastEpoch("b1"); got != "" {
		t.Errorf("a process with a copy takes %q for dead", got)
	}
}

// After an error, no record is left: the one before it names a term of a process that lives.
func TestEpochNotRecorded(t *testing.T) {
	dir := t.TempDir()
	lock := acquired(t, dir)
	must(t, lock.RecordEpoch("b1", "n1_a"))
	must(t, lock.file.Close())
	if err := lock.RecordEpoch("b1", "n1_b"); err == nil {
		t.Error("no error without the lock")
	}
	if got := acquired(t, dir).LastEpoch("b1"); got != "" {
		t.Errorf("%q is left", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
