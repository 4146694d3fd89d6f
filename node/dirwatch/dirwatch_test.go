package dirwatch

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition that nothing tells of.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.After(time.Minute); !cond(); {
		select {
		case <-time.After(time.Millisecond):
		case <-end:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// What comes and goes beside the paths is nobody's business, and what the kernel could not tell is looked at.
func TestHints(t *testing.T) {
	root := t.TempDir()
	var hints atomic.Int32
	w, err := New(func() { hints.Add(1) })
	must(t, err)
	done := make(chan error)
	go func() { done <- w.Run() }()
	must(t, w.Watch(root, []string{"/a"}))
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(root, fmt.Sprint("other", i)), nil, 0o600))
	}
	must(t, os.Symlink("nowhere", filepath.Join(root, "a"))) // the kernel keeps the order
	until(t, "the hint", func() bool { return hints.Load() > 0 })
	if n := hints.Load(); n != 1 {
		t.Errorf("%d hints for one link", n)
	}
	must(t, w.Watch(root, []string{"/b/c"})) // and no longer for a
	must(t, os.Remove(filepath.Join(root, "a")))
	must(t, os.Mkdir(filepath.Join(root, "b"), 0o755))
	until(t, "the folder's hint", func() bool { return hints.Load() == 2 })

	must(t, w.Watch(root, []string{"/other7"}))
	f, err := os.OpenFile(filepath.Join(root, "other7"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("a file that was there before")
	must(t, err)
	must(t, f.Close())
	until(t, "the hint that it was written", func() bool { return hints.Load() == 3 })

	overflow := make([]byte, 16)
	for i := range 4 {
		overflow[i] = 0xff // wd -1
	}
	overflow[5] = 0x40 // IN_Q_OVERFLOW, 0x4000, on a little-endian machine
	if !w.matters(overflow) {
		t.Error("an overflow of the queue is no hint")
	}
	for _, events := range [][]byte{nil, {1, 2, 3}, make([]byte, 16)} {
		if w.matters(events) {
			t.Errorf("%v is a hint", events)
		}
	}
	w.Close()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("it does not end when it is closed")
	}
}
