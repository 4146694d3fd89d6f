package node

import (
	"os"
	"path/filepath"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// watchOn watches the sentinels of a host whose poll never comes, and tells which of them it has seen.
func watchOn(t *testing.T, paths ...string) (root string, seen func() []string) {
	t.Helper()
	h, _ := newTestHost(t, v1alpha1.StateIdle) // its poll interval is an hour
	h.Reload(Settings{Sentinels: paths})
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.watchSentinels(t.Context())
	}()
	t.Cleanup(func() { <-done })
	until(t, "a first look", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.looked
	})
	return h.Root, func() []string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.changed
	}
}

// A sentinel is seen to come and to go at once, whatever becomes of the folders that it lies in.
func TestSentinelsAreWatched(t *testing.T) {
	const path = "/run/deep/down/reboot-required"
	root, seen := watchOn(t, path, "/run/other", "/var/run/linked")
	at := func(name string) string { return filepath.Join(root, name) }
	file := at(path)
	there := func(n int) func() bool { return func() bool { return len(seen()) == n } }
	folders := func() { must(t, os.MkdirAll(filepath.Dir(file), 0o755)) }
	write := func(file string) { must(t, os.WriteFile(file, nil, 0o600)) }

	folders() // none of them was there
	write(file)
	until(t, "the sentinel in new folders", there(1))
	must(t, os.Remove(file))
	until(t, "its end", there(0))

	write(file + ".new")
	must(t, os.Rename(file+".new", file))
	until(t, "a sentinel moved to its place", there(1))

	must(t, os.Rename(at("run/deep/down"), at("run/deep/away")))
	until(t, "the folder moved away", there(0))
	folders()
	write(file)
	until(t, "the sentinel in another folder of the same name", there(1))
	must(t, os.RemoveAll(at("run/deep")))
	until(t, "the folders removed", there(0))
	folders()
	write(at("run/other"))
	write(file)
	until(t, "both", there(2))

	// A link to the folder, as /var/run is one to /run.
	must(t, os.MkdirAll(at("var"), 0o755))
	must(t, os.Symlink("../run", at("var/run")))
	write(at("run/linked"))
	until(t, "the one behind a link", there(3))
	must(t, os.Remove(at("run/linked")))
	must(t, os.Remove(at("run/other")))
	until(t, "one left", there(1))

	// A file where a folder should be is no folder, and no harm.
	must(t, os.RemoveAll(at("run/deep")))
	write(at("run/deep"))
	until(t, "none left", there(0))
	must(t, os.Remove(at("run/deep")))
	folders()
	write(file)
	until(t, "the sentinel once more", there(1))
}
