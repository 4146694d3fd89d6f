package hostfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The machine's own root is not confined: an absolute link such as /var/run leads where it says.
func TestMachinesOwnRoot(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "var"), 0o755))
	must(t, os.Symlink(filepath.Join(dir, "run"), filepath.Join(dir, "var/run")))
	must(t, os.WriteFile(filepath.Join(dir, "run/reboot-required"), []byte("linux"), 0o600))
	for _, root := range []string{"/", "//"} {
		f, err := New(root)
		must(t, err)
		path := filepath.Join(dir, "var/run/reboot-required")
		if _, err := f.Lstat(path); err != nil {
			t.Errorf("%s below %s: %v", path, root, err)
		}
		if text, err := f.Read(path); err != nil || text != "linux" {
			t.Errorf("%s below %s: %q, %v", path, root, text, err)
		}
		f.Close()
	}
	// Below any other root the same link leads out of it, and is not followed.
	f, err := New(dir)
	must(t, err)
	defer f.Close()
	if _, err := f.Lstat("/var/run/reboot-required"); err == nil || os.IsNotExist(err) {
		t.Errorf("a link that leads out: %v, want an error that is not about absence", err)
	}
	if _, err := f.Lstat("/run/reboot-required"); err != nil {
		t.Error(err)
	}
}

// Read reads whole files up to a size, and does not wait for a pipe.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "big"), []byte(strings.Repeat("x", MaxRead+1)), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte(strings.Repeat("x", MaxRead)), 0o600))
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, root := range []struct{ of, path string }{{dir, "/"}, {"/", dir}} {
		f, err := New(root.of)
		must(t, err)
		at := func(name string) string { return filepath.Join(root.path, name) }
		if text, err := f.Read(at("a")); err != nil || len(text) != MaxRead {
			t.Errorf("below %s: %d bytes, %v", root.of, len(text), err)
		}
		if text, err := f.Read(at("big")); text != "" || err == nil || !strings.HasSuffix(err.Error(), "/big is larger than 64 KiB") {
			t.Errorf("below %s: %d bytes, %v", root.of, len(text), err)
		}
		began := time.Now()
		if _, err := f.Read(at("pipe")); err == nil || time.Since(began) > time.Minute {
			t.Errorf("below %s: a pipe: %v", root.of, err)
		}
		if names, err := f.Names(at("")); err != nil || !slices.Equal(names, []string{"a", "big", "link", "pipe"}) {
			t.Errorf("below %s: %v, %v", root.of, names, err)
		}
		if names, err := f.Names(at("none")); err != nil || len(names) != 0 {
			t.Errorf("below %s: %v, %v", root.of, names, err)
		}
		if to, err := f.Readlink(at("link")); err != nil || to != "a" {
			t.Errorf("below %s: %q, %v", root.of, to, err)
		}
		if info, err := f.Stat(at("link")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("below %s: %v, %v", root.of, info, err)
		}
		if _, err := f.Stat(at("none")); !os.IsNotExist(err) {
			t.Errorf("below %s: %v", root.of, err)
		}
		f.Close()
	}
	if f, err := New(filepath.Join(dir, "none")); err == nil {
		f.Close()
		t.Error("there is no such root")
	}
}
