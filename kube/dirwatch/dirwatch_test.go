package dirwatch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// bench is a directory with a Watcher, whose reports it collects.
type bench struct {
	t    *testing.T
	root string
	w    *Watcher

	mu   sync.Mutex
	keys map[string]bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, root: t.TempDir(), keys: map[string]bool{}}
	b.w = New(func(key string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.keys[key] = true
	})
	t.Cleanup(b.w.Close)
	b.write("marker")
	b.watch("marker", "/marker")
	return b
}

func (b *bench) at(name string) string { return filepath.Join(b.root, name) }
func (b *bench) write(name string) {
	b.t.Helper()
	must(b.t, os.WriteFile(b.at(name), []byte(name), 0o600))
}
func (b *bench) mkdir(name string)       { b.t.Helper(); must(b.t, os.MkdirAll(b.at(name), 0o755)) }
func (b *bench) rename(from, to string)  { b.t.Helper(); must(b.t, os.Rename(b.at(from), b.at(to))) }
func (b *bench) remove(name string)      { b.t.Helper(); must(b.t, os.RemoveAll(b.at(name))) }
func (b *bench) symlink(to, name string) { b.t.Helper(); must(b.t, os.Symlink(to, b.at(name))) }
func (b *bench) chmod(name string, m uint) {
	b.t.Helper()
	must(b.t, os.Chmod(b.at(name), os.FileMode(m)))
}

func (b *bench) watch(key string, paths ...string) (grew bool) {
	b.t.Helper()
	grew, err := b.w.Watch(key, b.root, paths, true)
	must(b.t, err)
	return grew
}

// reported returns the keys that were reported since the last call. The kernel reports in order, so a report of the
// marker means that everything before it has been reported.
func (b *bench) reported() string {
	b.t.Helper()
	must(b.t, os.Chtimes(b.at("marker"), time.Now(), time.Now()))
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		if b.keys["marker"] {
			break
		}
		b.mu.Unlock()
		if time.Now().After(end) {
			b.t.Fatal("the marker is not reported")
		}
	}
	defer b.mu.Unlock()
	delete(b.keys, "marker")
	keys := slices.Sorted(maps.Keys(b.keys))
	clear(b.keys)
	return strings.Join(keys, " ")
}

// expect checks the reports, and watches again, like a caller after each report.
func (b *bench) expect(what, want string, paths ...string) {
	b.t.Helper()
	if got := b.reported(); got != want {
		b.t.Errorf("%s: reported %q, expected %q", what, got, want)
	}
	if len(paths) > 0 {
		b.watch("foo", paths...)
	}
}

// TestWatch checks that every change at a path, below it and at the directories above it is reported, however it
// happened, and that changes next to the path are not.
func TestWatch(t *testing.T) {
	b := newBench(t)
	b.mkdir("etc/beside")
	paths := []string{"/etc/foo", "/opt/linked"}
	b.watch("foo", paths...)
	b.reported() // drops the report of the directory above, which was created before
	step := func(what, want string) { t.Helper(); b.expect(what, want, paths...) }
	b.write("etc/beside/x")
	step("a file beside", "")
	b.mkdir("etc/foo/a/b")
	step("the directory", "foo")
	for _, what := range []string{"a file deep in new directories", "the same written again"} {
		b.write("etc/foo/a/b/f")
		step(what, "foo")
	}
	b.chmod("etc/foo/a/b/f", 0o640)
	step("a mode", "foo")
	b.rename("etc/foo/a/b/f", "etc/beside/f")
	step("a file moved away", "foo")
	b.write("etc/beside/f")
	step("the one that was moved away is written", "")
	b.rename("etc/foo/a", "etc/foo/c")
	b.expect("a directory moved within", "foo")
	b.mkdir("etc/foo/c/b/d")
	b.expect("a directory made in a moved one, before the next call", "foo", paths...)
	b.write("etc/foo/c/b/d/f")
	step("a file in that", "foo")
	b.rename("etc/foo/c/b", "etc/beside/b")
	step("a directory moved out", "foo")
	b.write("etc/beside/b/d/f")
	step("a file in what was moved out", "")
	b.remove("etc/foo")
	step("all of it removed", "foo")
	b.write("etc/foo")
	step("a file in its place", "foo")
	b.remove("etc/foo")
	b.mkdir("etc/foo")
	step("a directory in the file's place", "foo")
	b.write("etc/foo/f")
	step("a file in that directory", "foo")
	b.rename("etc", "old")
	step("the directory above moved away", "foo")
	b.write("old/foo/f")
	step("a file where it was moved to", "")
	b.rename("old", "etc")
	step("and moved back", "foo")

	b.mkdir("opt/real/v1")
	step("a directory on the way to a path", "foo")
	b.symlink("real/v1", "opt/linked")
	step("a link to a directory", "foo")
	b.write("opt/real/v1/f")
	step("a file where the link leads", "foo")
	b.mkdir("opt/real/v2")
	b.symlink("/opt/real/v2", "opt/next")
	b.rename("opt/next", "opt/linked")
	step("another link moved over it", "foo")
	b.write("opt/real/v2/f")
	step("a file where it leads now", "foo")
	b.remove("opt/linked")
	b.symlink("linked", "opt/linked")
	step("a link in a loop", "foo")

	b.watch("foo")
	b.reported()
	b.write("etc/foo/g")
	b.expect("a file of a key that is no longer watched", "")
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if len(b.w.keys) != 1 || len(b.w.keys["marker"]) != 1 {
		t.Errorf("%v is still watched, expected the marker", b.w.keys)
	}
}

// TestTwoPathsToOneDirectory checks that a directory with two paths is reported for both, and stays watched for one
// when the other is no longer watched. fsnotify fails this test.
func TestTwoPathsToOneDirectory(t *testing.T) {
	b := newBench(t)
	b.mkdir("real")
	b.symlink("real", "link")
	b.watch("foo", "/real")
	b.watch("bar", "/link")
	b.write("real/x")
	b.expect("a file in both", "bar foo")
	b.watch("foo")
	b.expect("that the first is given up", "")
	b.write("link/y")
	b.expect("a file in the other", "bar")
	b.mkdir("a/b")
	b.watch("foo", "/a")
	b.rename("a", "c")
	b.watch("bar", "/c")
	b.reported()
	b.watch("foo")
	b.write("c/b/f")
	b.expect("a file in what was moved from one to the other", "bar")
}

// TestLinksThroughLinks checks that each link is watched that a path leads through, also one that only another link leads
// through, and that ".." in a link's target is relative to where the kernel finds the link.
func TestLinksThroughLinks(t *testing.T) {
	b := newBench(t)
	b.mkdir("etc")
	b.mkdir("opt/releases/1/conf")
	b.mkdir("opt/releases/2/conf")
	b.write("opt/releases/1/conf/foo")
	b.write("opt/releases/2/conf/foo")
	b.mkdir("opt/releases/2/keys")
	b.write("opt/releases/2/keys/bar")
	b.symlink("../keys/bar", "opt/releases/2/conf/bar")
	b.symlink("releases/1", "opt/current")
	b.symlink("../opt/current/conf", "etc/app")
	paths := []string{"/etc/app/foo", "/etc/app/bar"}
	b.watch("foo", paths...)
	b.reported() // drops the reports of what was created before
	b.symlink("releases/2", "opt/next")
	b.rename("opt/next", "opt/current")
	b.expect("another release", "foo", paths...)
	b.write("opt/releases/2/keys/bar")
	b.expect("a file where a link of the release leads", "foo", paths...)
	b.write("opt/releases/1/conf/foo")
	b.expect("a file of the release before", "")
}

// TestGrew checks that the caller learns of directories that are new since its last call, because changes in them were
// not reported.
func TestGrew(t *testing.T) {
	b := newBench(t)
	b.mkdir("etc/foo")
	for _, c := range []struct {
		what string
		do   func()
		grew bool
	}{
		{"the first call", func() {}, true},
		{"the same again", func() {}, false},
		{"a file", func() { b.write("etc/foo/f") }, false},
		{"directories", func() { b.mkdir("etc/foo/a/b") }, true},
		{"the same again", func() {}, false},
		{"a directory is moved", func() { b.rename("etc/foo/a", "etc/foo/c") }, false},
		{"one is removed", func() { b.remove("etc/foo/c/b") }, false},
		{"it is made again", func() { b.mkdir("etc/foo/c/b") }, true},
	} {
		c.do()
		if grew := b.watch("foo", "/etc/foo"); grew != c.grew {
			t.Errorf("%s: grew %t", c.what, grew)
		}
	}
}

// TestNotBelow checks that without below only the paths themselves count.
func TestNotBelow(t *testing.T) {
	b := newBench(t)
	b.mkdir("run/dir")
	for _, paths := range [][]string{{"/run/a", "/run/dir", "/late/x"}, {"/run/a", "/run/dir", "/late/x"}} {
		_, err := b.w.Watch("foo", b.root, paths, false)
		must(t, err)
	}
	b.reported()
	b.write("run/dir/x")
	for i := range 100 {
		b.write(fmt.Sprint("run/other", i))
	}
	b.expect("what is below or beside", "")
	b.symlink("nowhere", "run/a")
	b.expect("a link", "foo")
	b.remove("run/dir")
	b.expect("a directory", "foo")
	b.mkdir("late")
	b.expect("the directory above", "foo")
}

// TestUnmount checks the unmount of a file system, which the kernel reports only for its own directory.
func TestUnmount(t *testing.T) {
	b := newBench(t)
	b.mkdir("etc")
	if err := syscall.Mount("tmpfs", b.at("etc"), "tmpfs", 0, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	b.write("etc/foo")
	b.watch("foo", "/etc/foo")
	b.reported()
	must(t, syscall.Unmount(b.at("etc"), 0))
	b.expect("the directory above is unmounted", "foo")
}

// TestLostEvents checks that events that did not fit into the kernel's queue count for every path.
func TestLostEvents(t *testing.T) {
	b := newBench(t)
	b.watch("a", "/a")
	b.watch("b", "/b")
	overflow := make([]byte, 16)
	for i := range 4 {
		overflow[i] = 0xff // wd -1
	}
	overflow[5] = 0x40 // IN_Q_OVERFLOW, 0x4000, on a little-endian machine
	cut := make([]byte, 16)
	cut[12] = 1 // a missing name
	for _, events := range [][]byte{overflow, cut} {
		if keys := b.w.affected(events); len(keys) != 3 {
			t.Errorf("%v is for %v", events, keys)
		}
	}
	for _, events := range [][]byte{nil, {1, 2, 3}, make([]byte, 16)} {
		if keys := b.w.affected(events); len(keys) != 0 {
			t.Errorf("%v is for %v", events, keys)
		}
	}
}

// TestErrors checks that a path that cannot be watched is an error of the call, which names it.
func TestErrors(t *testing.T) {
	b := newBench(t)
	b.mkdir("etc/foo")
	for i := range 3 {
		b.write(fmt.Sprint("etc/", i))
	}
	conn, err := b.w.inotify.SyscallConn()
	must(t, err)
	for _, c := range []struct {
		s    search
		want string
	}{
		{search{entries: maxEntries - 3}, "more than 40000 files in all"},
		{search{entries: maxEntries - 4}, ""},
		{search{fd: -1, entries: maxEntries}, "bad file descriptor"},
		{search{dirs: make(map[int32]names, maxDirs)}, "more than 10000 directories"},
	} {
		for i := range int32(maxDirs) {
			if c.s.dirs != nil {
				c.s.dirs[-i-1] = names{}
			}
		}
		if c.s.dirs == nil {
			c.s.dirs = map[int32]names{}
		}
		c.s.below = true
		must(t, conn.Control(func(fd uintptr) {
			if c.s.fd == 0 {
				c.s.fd = int(fd)
			}
			c.s.path(b.root, "/etc")
		}))
		if (c.want == "") != (c.s.err == nil) || c.want != "" && !strings.Contains(c.s.err.Error(), c.want) {
			t.Errorf("%v, expected %q", c.s.err, c.want)
		}
	}

	w := New(func(string) {})
	w.Close()
	if _, err := w.Watch("foo", b.root, []string{"/etc"}, true); err == nil {
		t.Error("the closed Watcher watches")
	}
	var none syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &none))
	few := none
	few.Cur = 0
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	w = New(func(string) {})
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	if _, err := w.Watch("foo", b.root, []string{"/etc"}, true); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("no inotify available: %v", err)
	}
	w.Close()
}
