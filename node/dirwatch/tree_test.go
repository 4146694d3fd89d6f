package dirwatch

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// told are the keys that were poked since they were last taken.
type told struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (k *told) poke(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[key] = true
}

func (k *told) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := slices.Sorted(maps.Keys(k.keys))
	clear(k.keys)
	return keys
}

func newTree(t *testing.T) (*Tree, *told) {
	t.Helper()
	k := &told{keys: map[string]bool{}}
	tree, err := NewTree(k.poke)
	must(t, err)
	done := make(chan error)
	go func() { done <- tree.Run() }()
	t.Cleanup(func() {
		tree.Close()
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(time.Minute):
			t.Error("it does not end when it is closed")
		}
	})
	return tree, k
}

// Whatever happens below a path is told under its key, how deep it is and however it came there; what happens beside
// it is not.
func TestTree(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	tree, told := newTree(t)
	must(t, os.MkdirAll(at("etc/beside"), 0o755))
	must(t, os.WriteFile(at("marker"), nil, 0o600))
	must(t, tree.Watch("marker", root, []string{"/marker"}))
	// One step at a time: the kernel keeps the order, and "marker" comes after "foo" in one reading.
	step := func(what string, want bool, f func()) {
		t.Helper()
		f()
		must(t, os.Chtimes(at("marker"), time.Now(), time.Now()))
		var keys []string
		until(t, "the marker after "+what, func() bool {
			keys = append(keys, told.take()...)
			return slices.Contains(keys, "marker")
		})
		if got := slices.Contains(keys, "foo"); got != want {
			t.Errorf("%s: told of %v, expected foo: %t", what, keys, want)
		}
	}
	write := func(name string) func() {
		return func() { must(t, os.WriteFile(at(name), []byte(name), 0o600)) }
	}
	mkdir := func(name string) func() { return func() { must(t, os.MkdirAll(at(name), 0o755)) } }
	rename := func(a, b string) func() { return func() { must(t, os.Rename(at(a), at(b))) } }

	must(t, tree.Watch("foo", root, []string{"/etc/foo", "/opt/linked"}))
	step("a file beside", false, write("etc/beside/x"))
	step("the folder", true, mkdir("etc/foo/a/b"))
	step("a file deep in new folders", true, write("etc/foo/a/b/f"))
	step("the same written again", true, write("etc/foo/a/b/f"))
	step("a mode", true, func() { must(t, os.Chmod(at("etc/foo/a/b/f"), 0o640)) })
	step("a file moved away", true, rename("etc/foo/a/b/f", "etc/beside/f"))
	step("the one moved away is written", false, write("etc/beside/f"))
	step("a folder moved within", true, rename("etc/foo/a", "etc/foo/c"))
	step("a folder made in a moved one", true, mkdir("etc/foo/c/b/d"))
	step("a file in that", true, write("etc/foo/c/b/d/f"))
	step("a folder moved out", true, rename("etc/foo/c/b", "etc/beside/b"))
	must(t, tree.Watch("foo", root, []string{"/etc/foo", "/opt/linked"}))
	told.take()
	step("a file in what was moved out", false, write("etc/beside/b/d/f"))
	step("all of it removed", true, func() { must(t, os.RemoveAll(at("etc/foo"))) })
	step("a file in its place", true, write("etc/foo"))
	step("a folder in the file's place", true, func() { must(t, os.Remove(at("etc/foo"))); mkdir("etc/foo")() })
	step("a file in that folder", true, write("etc/foo/f"))

	mkdir("opt/real/v1")()
	step("a link to a folder", true, func() { must(t, os.Symlink("real/v1", at("opt/linked"))) })
	step("a file where the link leads", true, write("opt/real/v1/f"))
	step("another link moved over it", true, func() {
		mkdir("opt/real/v2")()
		must(t, os.Symlink("/opt/real/v2", at("opt/next")))
		rename("opt/next", "opt/linked")()
	})
	step("a file where it leads now", true, write("opt/real/v2/f"))
	step("a link in a loop", true, func() {
		must(t, os.Remove(at("opt/linked")))
		must(t, os.Symlink("linked", at("opt/linked")))
	})

	must(t, tree.Watch("foo", root, nil))
	told.take()
	step("a file of a key that was given up", false, write("etc/foo/g"))
	tree.mu.Lock()
	defer tree.mu.Unlock()
	if len(tree.sets) != 1 || len(tree.folders) != 1 {
		t.Errorf("%d sets and %d folders are left, expected the marker's", len(tree.sets), len(tree.folders))
	}
}

// What did not fit into the kernel's queue may have been about anything.
func TestTreeOverflow(t *testing.T) {
	tree, err := NewTree(func(string) {})
	must(t, err)
	defer tree.Close()
	root := t.TempDir()
	must(t, tree.Watch("a", root, []string{"/a"}))
	must(t, tree.Watch("b", root, []string{"/b"}))
	overflow := make([]byte, 16)
	for i := range 4 {
		overflow[i] = 0xff // wd -1
	}
	overflow[5] = 0x40 // IN_Q_OVERFLOW, 0x4000, on a little-endian machine
	if keys := tree.told(overflow); len(keys) != 2 {
		t.Errorf("an overflow pokes %v", keys)
	}
	for _, events := range [][]byte{nil, {1, 2, 3}, make([]byte, 16)} {
		if keys := tree.told(events); len(keys) != 0 {
			t.Errorf("%v pokes %v", events, keys)
		}
	}
}
