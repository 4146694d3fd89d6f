package updateengine

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// coordinatorRoot is a root with the engine's folder, and the file's path in it.
func coordinatorRoot(t *testing.T) (root, path string) {
	t.Helper()
	root = t.TempDir()
	path = filepath.Join(root, CoordinatorPath)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return root, path
}

func reads(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); string(got) != want || err != nil {
		t.Errorf("the file says %q, %v; want %q", got, err, want)
	}
}

// locksmith does what locksmithd does: it takes the lock of the file that is there, and replaces it.
func locksmith(t *testing.T, path string) (*os.File, error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	fresh, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fresh.Close() })
	if err := syscall.Flock(int(fresh.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.WriteString("STATE=running\nNAME=locksmithd\nSTRATEGY=reboot"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return fresh, nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCoordinatorFile(t *testing.T) {
	root, path := coordinatorRoot(t)
	c := NewCoordinatorFile(root)
	check(t, c.Clear())
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was not asked for: %v", err)
	}
	check(t, c.Write("running", false))
	reads(t, path, "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=running\n")
	if _, err := locksmith(t, path); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("its lock is free: %v", err)
	}
	check(t, c.Write("reboot-planned", false))
	reads(t, path, "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=reboot-planned\n")
	if _, err := locksmith(t, path); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("after another word its lock is free: %v", err)
	}
	if name, err := c.Other(); name != "" || err != nil || c.State() != "reboot-planned" {
		t.Errorf("it takes itself for %q, %v, and said %q", name, err, c.State())
	}
	check(t, c.Clear())
	reads(t, path, "")
	if c.State() != "" {
		t.Errorf("it still says %q", c.State())
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); len(entries) != 1 || err != nil {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestCoordinatorFileIsAnothers(t *testing.T) {
	root, path := coordinatorRoot(t)
	c := NewCoordinatorFile(root)
	theirs, err := locksmith(t, path)
	check(t, err)
	if name, err := c.Other(); name != "locksmithd" || err != nil {
		t.Errorf("the other is %q, %v", name, err)
	}
	if err := c.Write("running", true); !errors.Is(err, ErrCoordinated) {
		t.Errorf("it wrote although another process coordinates: %v", err)
	}
	check(t, c.Clear())
	reads(t, path, "STATE=running\nNAME=locksmithd\nSTRATEGY=reboot")
	theirs.Close() // it has ended, and left its words behind
	if name, err := c.Other(); name != "" || err != nil {
		t.Errorf("no other coordinator, but got %q, %v", name, err)
	}
	check(t, c.Write("running", false))
	reads(t, path, "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=running\n")
}

// Our file was removed, and another process has created its own: theirs stays.
func TestCoordinatorFileReplaced(t *testing.T) {
	root, path := coordinatorRoot(t)
	c := NewCoordinatorFile(root)
	check(t, c.Write("running", false))
	check(t, os.Remove(path))
	theirs, err := locksmith(t, path)
	check(t, err)
	if name, err := c.Other(); name != "locksmithd" || err != nil {
		t.Errorf("the other is %q, %v", name, err)
	}
	if err := c.Write("running", false); !errors.Is(err, ErrCoordinated) {
		t.Errorf("it wrote although another process coordinates: %v", err)
	}
	theirs.Close()
	check(t, c.Write("running", false))
	check(t, os.Remove(path))
	check(t, c.Write("running", false)) // written again, although it is the same state
	reads(t, path, "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=running\n")
	check(t, os.Remove(path))
	check(t, c.Clear())
}

func TestCoordinatorFileWithoutAFolder(t *testing.T) {
	root := t.TempDir()
	c := NewCoordinatorFile(root)
	check(t, c.Write("running", false))
	if _, err := os.Stat(filepath.Join(root, "run")); !errors.Is(err, os.ErrNotExist) || c.State() != "" {
		t.Errorf("a host without update_engine: %v, said %q", err, c.State())
	}
	if name, err := c.Other(); name != "" || err != nil {
		t.Errorf("no other coordinator, but got %q, %v", name, err)
	}
	check(t, c.Write("disabled", true))
	reads(t, filepath.Join(root, CoordinatorPath), "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=disabled\n")
	// A link in its place leads nowhere.
	root, path := coordinatorRoot(t)
	check(t, os.Symlink("/dev/null", path))
	if err := NewCoordinatorFile(root).Write("running", false); err == nil {
		t.Error("it followed a link")
	}
}
