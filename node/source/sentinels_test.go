package source

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// runSentinels runs sentinels whose poll interval is an hour, and returns which of them exist.
func runSentinels(t *testing.T, paths ...string) (root string, present func() []string) {
	t.Helper()
	root = t.TempDir()
	s := NewSentinels(Options{Root: root, PollInterval: time.Hour, Log: slog.New(slog.DiscardHandler), Changed: func() {}}, paths)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	until(t, "the first read", func() bool { _, read := s.Present(); return read })
	return root, func() []string { paths, _ := s.Present(); return paths }
}

// TestSentinelsAreWatched: a sentinel that comes or goes is reported at once, whatever
// happens to the directories above it.
func TestSentinelsAreWatched(t *testing.T) {
	const path = "/run/deep/down/reboot-required"
	root, present := runSentinels(t, path, "/run/other", "/var/run/linked")
	at := func(name string) string { return filepath.Join(root, name) }
	file := at(path)
	there := func(n int) func() bool { return func() bool { return len(present()) == n } }
	mkdir := func() { must(t, os.MkdirAll(filepath.Dir(file), 0o755)) }
	write := func(file string) { must(t, os.WriteFile(file, nil, 0o600)) }

	mkdir() // none of them was there
	write(file)
	until(t, "the sentinel in new directories", there(1))
	must(t, os.Remove(file))
	until(t, "its end", there(0))

	write(file + ".new")
	must(t, os.Rename(file+".new", file))
	until(t, "a sentinel moved to its place", there(1))

	must(t, os.Rename(at("run/deep/down"), at("run/deep/away")))
	until(t, "the directory moved away", there(0))
	mkdir()
	write(file)
	until(t, "the sentinel in another directory of the same name", there(1))
	must(t, os.RemoveAll(at("run/deep")))
	until(t, "the directories removed", there(0))
	mkdir()
	write(at("run/other"))
	write(file)
	until(t, "both", there(2))

	// A link to the directory, as /var/run is one to /run.
	must(t, os.MkdirAll(at("var"), 0o755))
	must(t, os.Symlink("../run", at("var/run")))
	write(at("run/linked"))
	until(t, "the one behind a link", there(3))
	must(t, os.Remove(at("run/linked")))
	must(t, os.Remove(at("run/other")))
	until(t, "one left", there(1))

	// A file in the place of a directory does no harm.
	must(t, os.RemoveAll(at("run/deep")))
	write(at("run/deep"))
	until(t, "none left", there(0))
	must(t, os.Remove(at("run/deep")))
	mkdir()
	write(file)
	until(t, "the sentinel once more", there(1))
}

// TestSentinelThatCannotBeRead checks that a sentinel that cannot be read is neither present nor absent: the last report
// remains valid.
func TestSentinelThatCannotBeRead(t *testing.T) {
	root := t.TempDir()
	s := NewSentinels(Options{Root: root, Log: slog.New(slog.DiscardHandler), Changed: func() {}}, []string{"/run/a"})
	must(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "run/a"), nil, 0o600))
	must(t, s.Read())
	must(t, os.RemoveAll(filepath.Join(root, "run")))
	must(t, os.Symlink("run", filepath.Join(root, "run"))) // it leads to itself
	err := s.Read()
	if present, read := s.Present(); err == nil || len(present) != 1 || !read {
		t.Errorf("%v; %v are present, read %t", err, present, read)
	}
}
