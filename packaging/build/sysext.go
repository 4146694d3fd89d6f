package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// image is the name that a sysext image is published under.
func (b *build) image(arch architecture) string {
	return fmt.Sprintf("lockkeeper-%s-%s.raw", b.version, arch.systemd)
}

// sysext makes the image that systemd-sysext lays over a Flatcar host's /usr.
func (b *build) sysext(ctx context.Context, arch architecture, stage string, shared []file, made string) error {
	tree := filepath.Join(stage, "sysext")
	release := filepath.Join(stage, "extension-release")
	// Any Flatcar release with this level of the interface; the binary needs
	// nothing of it. systemd sees the units only after it has reloaded.
	text := "ID=flatcar\nSYSEXT_LEVEL=1.0\nARCHITECTURE=" + arch.systemd + "\nEXTENSION_RELOAD_MANAGER=1\n"
	if err := os.WriteFile(release, []byte(text), 0o644); err != nil {
		return err
	}
	files := append(forFormat(shared, "sysext"),
		file{Src: release, Dst: "/usr/lib/extension-release.d/extension-release.lockkeeper"})
	for _, f := range files {
		if err := install(f.Src, filepath.Join(tree, f.Dst), 0o644); err != nil {
			return err
		}
	}
	if err := install(filepath.Join(stage, "lockkeeper"), filepath.Join(tree, "/usr/bin/lockkeeper"), 0o755); err != nil {
		return err
	}
	// Whatever the umask was.
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
	if err != nil {
		return err
	}
	at := strconv.FormatInt(b.at.Unix(), 10)
	cmd := exec.CommandContext(ctx, "mksquashfs", tree, filepath.Join(made, b.image(arch)),
		"-noappend", "-quiet", "-no-progress", "-all-root", "-no-xattrs", "-mkfs-time", at, "-all-time", at, "-comp", "gzip", "-Xcompression-level", "6")
	cmd.Env = without(os.Environ(), "SOURCE_DATE_EPOCH") // it refuses the time in two places
	return quiet(cmd)
}

func install(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(to, data, mode); err != nil {
		return err
	}
	return os.Chmod(to, mode)
}
