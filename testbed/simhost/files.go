package simhost

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Root returns the directory that lockkeeper uses as / on this host.
func (h *Host) Root() string { return h.dir.Join("root") }

// rootPath returns a path below the host's root. The root has no links that lead out of it.
func (h *Host) rootPath(name string) string { return filepath.Join(h.Root(), filepath.FromSlash(name)) }

func (h *Host) exists(name string) bool {
	_, err := os.Stat(h.rootPath(name))
	return err == nil
}

// WriteFile writes a file below the host's root and creates missing directories. Use it for a sentinel such as /run/reboot-required. The
// next boot deletes files in /run.
func (h *Host) WriteFile(name, text string) error {
	path := h.rootPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("creating the directory of %s on %s: %w", name, h.opts.Name, err)
	}
	// Rename the file into place, so that a reader never sees a partial file.
	tmp := path + ".new"
	err := os.WriteFile(tmp, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("writing %s on %s: %w", name, h.opts.Name, err)
	}
	return nil
}

// RemoveFile removes a file below the host's root. A missing file is not an error.
func (h *Host) RemoveFile(name string) error {
	if err := os.Remove(h.rootPath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing %s on %s: %w", name, h.opts.Name, err)
	}
	return nil
}

// writeBootFiles resets the root to the state of a fresh boot.
func (h *Host) writeBootFiles(bootID, version string) error {
	if err := os.RemoveAll(h.rootPath("run")); err != nil {
		return fmt.Errorf("emptying /run: %w", err)
	}
	if err := os.MkdirAll(h.rootPath("run"), 0o755); err != nil {
		return fmt.Errorf("creating /run: %w", err)
	}
	for name, text := range map[string]string{
		"proc/sys/kernel/random/boot_id": bootID + "\n",
		"etc/os-release": fmt.Sprintf("NAME=\"Flatcar Container Linux by Kinvolk\"\nID=flatcar\nID_LIKE=coreos\nVERSION=%s\nVERSION_ID=%s\n"+
			"PRETTY_NAME=\"Flatcar Container Linux by Kinvolk %s (Oklo)\"\n", version, version, version),
		"usr/share/flatcar/update.conf": "SERVER=https://public.update.flatcar-linux.net/v1/update/\nGROUP=stable\n",
	} {
		if err := h.WriteFile(name, text); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(h.rootPath("var/run")); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(h.rootPath("var"), 0o755); err != nil {
			return fmt.Errorf("creating /var: %w", err)
		}
		if err := os.Symlink("../run", h.rootPath("var/run")); err != nil {
			return fmt.Errorf("creating /var/run: %w", err)
		}
	}
	return nil
}

// writeUptime sets the uptime that the host reports.
func (h *Host) writeUptime(age time.Duration) error {
	return h.WriteFile("proc/uptime", fmt.Sprintf("%.2f %.2f\n", age.Seconds(), 2*age.Seconds()))
}

// newBootID returns a random UUID in the kernel's notation.
func newBootID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
