package node

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostfs"
)

const bootID = "11111111-2222-3333-4444-555555555555"

// newRoot creates a host's root with these files, path to text. The files that every host has exist by default, unless
// their text is "-".
func newRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	all := map[string]string{
		"proc/sys/kernel/random/boot_id": bootID + "\n",
		"proc/uptime":                    "3600.25 7000.00\n",
		"etc/os-release":                 "NAME=x\nID=flatcar\nVERSION_ID=\"4.1.0\"\n",
	}
	maps.Copy(all, files)
	root := t.TempDir()
	for path, text := range all {
		if text == "-" {
			continue
		}
		path = filepath.Join(root, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadSelf(t *testing.T) {
	huge := strings.Repeat("X=1\n", hostfs.MaxRead) + "VERSION_ID=late\n"
	for name, c := range map[string]struct {
		files              map[string]string
		id, version, group string
		odd                int
		image              bool
	}{
		"flatcar": {files: map[string]string{"usr/share/flatcar/update.conf": "SERVER=x\nGROUP=stable\n"}, id: "flatcar", version: "4.1.0", group: "stable"},
		"the file in etc wins": {files: map[string]string{"etc/flatcar/update.conf": "GROUP=beta\n", "usr/share/flatcar/update.conf": "GROUP=stable\n"},
			id: "flatcar", version: "4.1.0", group: "beta"},
		"one in etc without a group": {files: map[string]string{"etc/flatcar/update.conf": "SERVER=mine\n", "usr/share/flatcar/update.conf": "GROUP=stable\n"},
			id: "flatcar", version: "4.1.0", group: "stable"},
		"os-release in usr alone": {files: map[string]string{"etc/os-release": "-", "usr/lib/os-release": "ID='debian'\nVERSION_ID='12'\n"}, id: "debian", version: "12"},
		"an image of ostree": {files: map[string]string{"etc/os-release": "ID=fedora\nVERSION_ID=43\nOSTREE_VERSION='43.20260110.3.0'\n"},
			id: "fedora", version: "43.20260110.3.0", image: true},
		"no os-release":         {files: map[string]string{"etc/os-release": "-"}},
		"an empty one":          {files: map[string]string{"etc/os-release": ""}},
		"comments and nonsense": {files: map[string]string{"etc/os-release": "#ID=no\n\n===\nID\n  ID=arch \n\x00\xff\n"}, id: "arch"},
		"one that is too large": {files: map[string]string{"etc/os-release": huge, "usr/lib/os-release": "ID=debian\n"}, id: "debian", odd: 1},
		"one long line":         {files: map[string]string{"etc/os-release": "ID=" + strings.Repeat("x", hostfs.MaxRead/2)}, id: strings.Repeat("x", 256)},
		"a folder in its place": {files: map[string]string{"etc/os-release": "-", "etc/os-release/x": "", "usr/lib/os-release": "ID=debian\n"},
			id: "debian", odd: 1},
	} {
		s, err := readSelf(newRoot(t, c.files))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s.osID != c.id || s.osVersion != c.version || s.group != c.group || len(s.unread) != c.odd || s.imageVersion != c.image {
			t.Errorf("%s: %.20q %q %q, %v; want %.20q %q %q, %d odd", name, s.osID, s.osVersion, s.group, s.unread, c.id, c.version, c.group, c.odd)
		}
		if s.bootID != bootID || (s.uptime()-3600250*time.Millisecond).Abs() > time.Minute {
			t.Errorf("%s: boot %q, uptime %v", name, s.bootID, s.uptime())
		}
		if s.booted == s.booted.Round(0) {
			t.Errorf("%s: the time of the boot has no monotonic reading, so the uptime changes when the clock is set", name)
		}
	}
}

// TestReadSelfNeedsBootAndUptime checks that the boot is unknown without these files.
func TestReadSelfNeedsBootAndUptime(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no boot id":            {"proc/sys/kernel/random/boot_id": "-"},
		"an empty boot id":      {"proc/sys/kernel/random/boot_id": "\n"},
		"a boot id with spaces": {"proc/sys/kernel/random/boot_id": "a b\n"},
		"a boot id of a slash":  {"proc/sys/kernel/random/boot_id": "t1/x\n"},
		"no uptime":             {"proc/uptime": "-"},
		"an empty uptime":       {"proc/uptime": ""},
		"no number":             {"proc/uptime": "soon 1.0\n"},
		"negative":              {"proc/uptime": "-5.0 1.0\n"},
		"not a number":          {"proc/uptime": "NaN 1.0\n"},
		"endless":               {"proc/uptime": "+Inf 1.0\n"},
		"longer than time":      {"proc/uptime": "1e300 1.0\n"},
	} {
		if s, err := readSelf(newRoot(t, files)); err == nil {
			t.Errorf("%s: %+v, expected an error", name, s)
		}
	}
	if _, err := readSelf(filepath.Join(t.TempDir(), "nowhere")); err == nil {
		t.Error("no error for a missing root")
	}
	if _, err := New(Options{Root: newRoot(t, map[string]string{"proc/uptime": "soon"})}); err == nil || !strings.Contains(err.Error(), "/proc/uptime") {
		t.Errorf("%v, expected an error that names the file", err)
	}
}

// TestOddFiles checks that a pipe in place of a file does not block, and that nothing outside the root is read.
func TestOddFiles(t *testing.T) {
	root := newRoot(t, map[string]string{"etc/os-release": "-", "usr/lib/os-release": "ID=debian\n"})
	must(t, os.MkdirAll(filepath.Join(root, "etc/flatcar"), 0o755))
	must(t, syscall.Mkfifo(filepath.Join(root, "etc/os-release"), 0o600))
	outside := filepath.Join(t.TempDir(), "update.conf")
	must(t, os.WriteFile(outside, []byte("GROUP=outside\n"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(root, "etc/flatcar/update.conf")))
	h, err := New(Options{Root: root, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	if h.self.osID != "debian" || h.self.group != "" || len(h.self.unread) != 2 {
		t.Errorf("%q %q %v", h.self.osID, h.self.group, h.self.unread)
	}
}

// TestOneProcessIsToldFromTheNext checks that two processes of one boot, one shortly after the other, have different
// records; see self.host.
func TestOneProcessIsToldFromTheNext(t *testing.T) {
	started := time.Date(2026, 1, 1, 12, 0, 0, 1_000_000, time.UTC)
	first := self{bootID: "b", booted: started.Add(-time.Hour), started: started}
	second := first
	second.started = started.Add(time.Millisecond)
	a, b := v1alpha1.FormatRecord(first.host("v")), v1alpha1.FormatRecord(second.host("v"))
	if a == b {
		t.Errorf("both records are %s", a)
	}
}
