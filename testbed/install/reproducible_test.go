package install

import (
	"debug/elf"
	"debug/macho"
	"fmt"
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
	forTheirProcessors(t, first)
	compareReleases(t, first, buildElsewhere(t))
}

// forTheirProcessors fails the test unless the files of a release are what they say: each one's fields name its processor, and its
// binary is for that. `make test` does not build for arm64, so no other test reads those files.
func forTheirProcessors(t *testing.T, release string) {
	t.Helper()
	for _, p := range []struct {
		deb, rpm, raw string
		machine       elf.Machine
		cpu           macho.Cpu
	}{
		{"amd64", "x86_64", "x86-64", elf.EM_X86_64, macho.CpuAmd64},
		{"arm64", "aarch64", "arm64", elf.EM_AARCH64, macho.CpuArm64},
	} {
		file := func(form, arch string) string { return filepath.Join(release, fmt.Sprintf(form, v1, arch)) }
		deb, rpm, raw := file("lockkeeper_%s_%s.deb", p.deb), file("lockkeeper-%s-1.%s.rpm", p.rpm), file("lockkeeper-%s-%s.raw", p.raw)
		packages := filepath.Join(release, "dists/stable/main/binary-"+p.deb, "Packages")
		for _, c := range []struct{ want, got string }{
			{p.deb, mustRun(t, "dpkg-deb", "-f", deb, "Architecture")},
			{p.rpm, mustRun(t, "rpm", "-qp", "--qf", "%{ARCH}", rpm)},
			{"ARCHITECTURE=" + p.raw, mustRun(t, "sh", "-ec", `unsquashfs -cat "$1" "$2" | grep ^ARCHITECTURE=`, "sh", raw, "usr/lib/extension-release.d/extension-release.lockkeeper")},
			{"Architecture: " + p.deb + "\nFilename: " + filepath.Base(deb) + "\nSHA256: " + sumOf(t, deb), mustRun(t, "grep", "-E", "^(Architecture|Filename|SHA256): ", packages)},
			{"1", mustRun(t, "sh", "-ec", `zcat "$1"/repodata/*-primary.xml.gz | grep -c "<arch>$2</arch>"`, "sh", release, p.rpm)},
		} {
			if got := strings.TrimSpace(c.got); got != c.want {
				t.Errorf("%s: a file says %q, expected %q", p.deb, got, c.want)
			}
		}
		dir := t.TempDir()
		mustRun(t, "dpkg-deb", "-x", deb, filepath.Join(dir, "deb"))
		mustRun(t, "sh", "-ec", `mkdir "$2"; rpm2archive - <"$1" | tar -xzC "$2"`, "sh", rpm, filepath.Join(dir, "rpm"))
		mustRun(t, "unsquashfs", "-d", filepath.Join(dir, "raw"), raw)
		members(t, file("lockkeeper_%s_linux_%s.tar.gz", p.deb), filepath.Join(dir, "host"))
		members(t, file("lockkeeper-cli_%s_linux_%s.tar.gz", p.deb), filepath.Join(dir, "linux"))
		members(t, file("lockkeeper-cli_%s_darwin_%s.tar.gz", p.deb), filepath.Join(dir, "darwin"))
		for _, name := range []string{"deb/usr/bin", "rpm/usr/bin", "raw/usr/bin", "host", "linux"} {
			binary, err := elf.Open(filepath.Join(dir, name, "lockkeeper"))
			must(t, err)
			if binary.Machine != p.machine {
				t.Errorf("%s: the binary in %s is for %s", p.deb, name, binary.Machine)
			}
			must(t, binary.Close())
		}
		mac, err := macho.Open(filepath.Join(dir, "darwin", "lockkeeper"))
		must(t, err)
		if mac.Cpu != p.cpu {
			t.Errorf("%s: the binary for macOS is for %s", p.deb, mac.Cpu)
		}
		must(t, mac.Close())
	}
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
	said := mustRun(t, "env", append([]string{"SOURCE_DATE_EPOCH=" + epoch, "TZ=Asia/Kathmandu", "LC_ALL=C", "GOFLAGS=-buildvcs=false -trimpath", "TMPDIR=" + t.TempDir(),
		"sh", "-ec", script, "sh", src, out}, args...)...)
	if !strings.Contains(said, "NOT SIGNED") {
		t.Errorf("without a key: %s", said)
	}
	return out
}
