package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReproducible builds once more, elsewhere, from files with other times, under another umask, in another time zone and
// language, and expects the same bytes.
func TestReproducible(t *testing.T) {
	t.Parallel()
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
	script := `umask 077; cd "$1"; exec go run ./packaging/build -arch amd64 -version v1.2.3 -out "$2"`
	mustRun(t, "env", "SOURCE_DATE_EPOCH="+epoch, "TZ=Asia/Kathmandu", "LC_ALL=C", "GOFLAGS=-buildvcs=false", "TMPDIR="+t.TempDir(), "sh", "-ec", script, "sh", src, out)
	entries, err := os.ReadDir(dist(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if sumOf(t, filepath.Join(dist(t), e.Name())) != sumOf(t, filepath.Join(out, e.Name())) {
			t.Errorf("%s differs", e.Name())
		}
	}
}
