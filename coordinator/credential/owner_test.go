package credential

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// bare runs f as the shipped unit runs the service: as root without a capability.
func bare(t *testing.T, f func()) {
	t.Helper()
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		// linux/capability.h: version 3, this thread; effective, permitted, inheritable, twice 32 bits of each.
		header := struct {
			version uint32
			pid     int32
		}{version: 0x20080522}
		var none [6]uint32
		_, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0)
		if errno == 0 {
			f()
		}
		done <- errno
	}()
	if errno := <-done; errno != 0 {
		t.Fatalf("dropping the capabilities: %v", errno)
	}
}

// Nobody reads the renewed file who could not read the old one, and the mode and owner stay where they can.
func TestRenewKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root, to make files of other groups")
	}
	const others = 54321 // a group that the process is not in
	now := time.Now()
	for name, c := range map[string]struct {
		folder, group int // the folder's, which is setgid, or 0 for one that is not; the file's
		wantGroup     uint32
		wantMode      os.FileMode
		says          string
	}{
		"root's":                            {0, 0, 0, 0o640, ""},
		"another group's":                   {0, others, 0, 0o600, "owner and group 0:54321 cannot be kept, it is 0:0's with mode 0600 now"},
		"root's in a setgid folder":         {others, 0, 0, 0o640, ""},
		"another group's in its own folder": {others, others, others, 0o640, ""},
		"another group's in another's":      {others, others + 1, others, 0o600, "cannot be kept, it is 0:54321's with mode 0600 now"},
	} {
		r := newRenewer(t, now.Add(-50*time.Minute), now.Add(10*time.Minute))
		if c.folder != 0 {
			dir := filepath.Dir(r.path)
			if err := os.Chown(dir, 0, c.folder); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o755|os.ModeSetgid); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(r.path, 0, c.group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(r.path, 0o640); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		var err error
		bare(t, func() {
			_, err = Renew(t.Context(), r.path, "test", slog.New(slog.NewTextHandler(&log, nil)), nil)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		stat, err := os.Stat(r.path)
		if err != nil {
			t.Fatal(err)
		}
		if group := stat.Sys().(*syscall.Stat_t).Gid; group != c.wantGroup || stat.Mode() != c.wantMode {
			t.Errorf("%s: of group %d, mode %v, want %d, %v", name, group, stat.Mode(), c.wantGroup, c.wantMode)
		}
		if !strings.Contains(log.String(), c.says) || (log.Len() == 0) != (c.says == "") {
			t.Errorf("%s: logs %q, want %q", name, log.String(), c.says)
		}
	}
}
