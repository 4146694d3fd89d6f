package simhost

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBuildLockkeeper(t *testing.T) {
	path, err := BuildLockkeeper(t.Context(), nil)
	must(t, err)
	info, err := buildinfo.ReadFile(path)
	must(t, err)
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if info.Path != "lockkeeper.dev/lockkeeper" || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
		t.Errorf("built %s with %v", info.Path, settings)
	}
	var log bytes.Buffer
	if again, err := BuildLockkeeper(t.Context(), &log); again != path || err != nil || log.Len() > 0 {
		t.Errorf("second build: %s, %v; output %q", again, err, &log)
	}
}

// TestBuildMutant builds a binary that prints another version. It also checks that a text that does not occur, or
// occurs twice, is an error.
func TestBuildMutant(t *testing.T) {
	const file = "main.go"
	m := Mutation{File: file, Old: "var version string", New: `var version = "mutant"`}
	path, err := BuildMutant(t.Context(), nil, m)
	must(t, err)
	plain, err := BuildLockkeeper(t.Context(), nil)
	must(t, err)
	for binary, want := range map[string]bool{path: true, plain: false} {
		if out, err := exec.CommandContext(t.Context(), binary, "--version").CombinedOutput(); err != nil || strings.Contains(string(out), "mutant") != want {
			t.Errorf("%s prints %q (%v), expected a mutant: %t", binary, out, err, want)
		}
	}
	for _, old := range []string{"a text that does not occur", "func "} {
		if path, err := BuildMutant(t.Context(), nil, Mutation{File: file, Old: old, New: ""}); err == nil || !strings.Contains(err.Error(), "times, expected once") {
			t.Errorf("a mutation of %q built %s: %v", old, path, err)
		}
	}
}

func TestStoreKeepsWhatIsWanted(t *testing.T) {
	cache := t.TempDir()
	put := func(text string) string {
		t.Helper()
		tmp, err := os.MkdirTemp(cache, "unfinished-")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(tmp, "lockkeeper"), []byte(text), 0o755))
		path, err := store(cache, tmp)
		must(t, err)
		_ = os.RemoveAll(tmp)
		return path
	}
	a, b := put("a"), put("b")
	if a == b || put("a") != a {
		t.Errorf("paths %s and %s", a, b)
	}
	old := time.Now().Add(-3 * 24 * time.Hour)
	for _, path := range []string{a, b} {
		must(t, os.Chtimes(filepath.Dir(path), old, old))
	}
	put("a") // a second request for the same build
	if text, err := os.ReadFile(a); err != nil || string(text) != "a" {
		t.Errorf("requested binary: %q, %v", text, err)
	}
	if _, err := os.Stat(b); !os.IsNotExist(err) {
		t.Errorf("unused binary: %v", err)
	}
	entries, err := os.ReadDir(cache)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "unfinished-") {
			t.Errorf("left: %s", e.Name())
		}
	}
}
