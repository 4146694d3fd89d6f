package install

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onlySigned are the files of a release that is signed and not of one that is not, and directories of both.
var onlySigned = map[string]bool{
	"SHA256SUMS.gpg": true, "lockkeeper.asc": true, "lockkeeper.gpg": true, "lockkeeper.sources": true, "lockkeeper.repo": true,
	"dists/stable/InRelease": true, "dists/stable/Release.gpg": true, "repodata/repomd.xml.asc": true,
}

// TestReproducible builds once more and expects the same bytes. The second release is not signed: it has all files but the
// signatures and what clients need to check them.
func TestReproducible(t *testing.T) {
	t.Parallel()
	compareReleases(t, dist(t), buildElsewhere(t, "-arch", "amd64", "-platforms", sample))
}

// TestReproducibleInFull is TestReproducible for every processor and platform.
func TestReproducibleInFull(t *testing.T) {
	if os.Getenv("LOCKKEEPER_SOAK") == "" {
		t.Skip("`make soak` runs it")
	}
	must(t, keyring.make(t.Context()))
	first := t.TempDir()
	must(t, build(t.Context(), source, first, "-version", "v1.2.3", "-key", keyring.ours))
	compareReleases(t, first, buildElsewhere(t))
}

// compareReleases fails the test unless a release that is signed and one that is not have the same files otherwise.
func compareReleases(t *testing.T, signed, unsigned string) {
	t.Helper()
	seen := map[string]bool{}
	must(t, filepath.WalkDir(signed, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(signed, path)
		seen[name] = true
		switch _, missing := os.Stat(filepath.Join(unsigned, name)); {
		case onlySigned[name] && missing == nil:
			t.Errorf("%s is in the release without a signature", name)
		case onlySigned[name]:
		case missing != nil:
			t.Error(missing)
		case sumOf(t, path) != sumOf(t, filepath.Join(unsigned, name)):
			t.Errorf("%s differs", name)
		}
		return err
	}))
	must(t, filepath.WalkDir(unsigned, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(unsigned, path)
		if !seen[name] {
			t.Errorf("%s is only in the release without a signature", name)
		}
		return err
	}))
	for name := range onlySigned {
		if !seen[name] {
			t.Errorf("the signed release has no %s", name)
		}
	}
}

// buildElsewhere builds the first version once more, elsewhere, from files with other times, under another umask, in another time
// zone and language, and without a key.
func buildElsewhere(t *testing.T, args ...string) string {
	t.Helper()
	src, out := filepath.Join(t.TempDir(), "a", "longer", "path"), filepath.Join(t.TempDir(), "out")
	if err := os.MkdirAll(src, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	for name := range strings.SplitSeq(strings.Trim(mustRun(t, "git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		if strings.HasPrefix(name, "testbed/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(source, name))
		if os.IsNotExist(err) {
			continue // removed and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(to, long, long); err != nil {
			t.Fatal(err)
		}
	}
	// The umask is the whole process's, so a shell sets it.
	script := `umask 077; cd "$1"; out=$2; shift 2; exec go run ./packaging/build -release -url ` + publishedAt + ` -version 1.2.3 -out "$out" "$@"`
	said := mustRun(t, "env", append([]string{"SOURCE_DATE_EPOCH=" + epoch, "TZ=Asia/Kathmandu", "LC_ALL=C", "GOFLAGS=-buildvcs=false", "TMPDIR=" + t.TempDir(),
		"sh", "-ec", script, "sh", src, out}, args...)...)
	if !strings.Contains(said, "NOT SIGNED") {
		t.Errorf("without a key: %s", said)
	}
	return out
}
