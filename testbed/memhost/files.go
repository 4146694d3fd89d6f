package memhost

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// WriteFile writes a file below the host's root, and creates missing directories. A reboot deletes files in /run.
func (h *Host) WriteFile(name, text string) error {
	path := filepath.Join(h.o.Root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("creating the directory of %s on %s: %w", name, h.o.Name, err)
	}
	// A reader never sees a part of the file.
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("writing %s on %s: %w", name, h.o.Name, err)
	}
	return nil
}

// RemoveFile removes a file below the host's root. It is not an error if the file does not exist.
func (h *Host) RemoveFile(name string) error {
	err := os.Remove(filepath.Join(h.o.Root, filepath.FromSlash(name)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing %s on %s: %w", name, h.o.Name, err)
	}
	return nil
}

// WriteUptime sets /proc/uptime to the age of the present boot. Boot does it too; the owner calls WriteUptime before it starts
// a process that reads the file.
func (h *Host) WriteUptime() error {
	b := h.current()
	if b == nil {
		return ErrDown
	}
	age := time.Since(b.began).Seconds()
	return h.WriteFile("proc/uptime", fmt.Sprintf("%.2f %.2f\n", age, 2*age))
}

// writeBootFiles makes the root that of a fresh boot.
func (h *Host) writeBootFiles(bootID, version string) error {
	run := filepath.Join(h.o.Root, "run")
	if err := os.RemoveAll(run); err != nil {
		return fmt.Errorf("emptying /run: %w", err)
	}
	for _, dir := range []string{run, filepath.Join(h.o.Root, "var")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{
		"proc/sys/kernel/random/boot_id": bootID + "\n",
		"proc/uptime":                    "0.00 0.00\n",
	}
	if h.o.CoreOS {
		files["etc/os-release"] = fmt.Sprintf("NAME=\"Fedora Linux\"\nID=fedora\nVERSION=\"44.%s (CoreOS)\"\nVERSION_ID=44\n"+
			"VARIANT_ID=coreos\nOSTREE_VERSION='%s'\n", version, version)
	} else {
		files["etc/os-release"] = fmt.Sprintf("NAME=\"Flatcar Container Linux by Kinvolk\"\nID=flatcar\nID_LIKE=coreos\nVERSION=%s\nVERSION_ID=%s\n"+
			"PRETTY_NAME=\"Flatcar Container Linux by Kinvolk %s (Oklo)\"\n", version, version, version)
		files["usr/share/flatcar/update.conf"] = "SERVER=https://public.update.flatcar-linux.net/v1/update/\nGROUP=stable\n"
	}
	for name, text := range files {
		if err := h.WriteFile(name, text); err != nil {
			return err
		}
	}
	if err := os.Symlink("../run", filepath.Join(h.o.Root, "var/run")); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("creating /var/run: %w", err)
	}
	return nil
}

// newBootID returns a UUID in the kernel's notation.
func (h *Host) newBootID() string {
	b := h.newID()
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// newID returns an ID that no other host has at any time. A run in a bubble has the same IDs when it is repeated.
func (h *Host) newID() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", h.o.Name, h.ids, time.Now().UnixNano()))
	return sum[:16]
}
