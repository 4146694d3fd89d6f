package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// source is the module's root.
const source = "../.."

const (
	v1, v2 = "1.2.3", "1.3.0~rc.1"
	epoch  = "1789000000" // of both builds, seconds
)

// tools are what the tests call, and the Debian packages that have them.
var tools = map[string]string{
	"dpkg-deb": "dpkg", "lintian": "lintian", "rpm": "rpm", "rpmlint": "rpmlint", "mksquashfs": "squashfs-tools", "unsquashfs": "squashfs-tools",
	"apt-ftparchive": "apt-utils", "createrepo_c": "createrepo-c", "dnf": "dnf", "gpg": "gnupg",
	"mandoc": "mandoc", "man": "man-db", "fish": "fish", "zsh": "zsh", "bash": "bash", "systemd-analyze": "systemd", "mmdebstrap": "mmdebstrap",
}

// buildWithin bounds the build of one version's artifacts, in a cold build cache.
const buildWithin = 20 * time.Minute

// artifacts are what `make release` makes of one version, for a sample of the platforms: made for the first test that needs them. No test changes any of them.
type artifacts struct {
	once sync.Once
	dir  string
	err  error
}

var version1, version2 artifacts

// sample are the platforms of the first version's command line alone: one that can run here, and one of the other system and the
// other processor. `make soak` makes all of them.
const sample = "linux/amd64,darwin/arm64"

func dist(t *testing.T) string { return version1.get(t, "v1.2.3", sample) }
func next(t *testing.T) string { return version2.get(t, "v1.3.0-rc.1", "linux/amd64") }

func (a *artifacts) get(t *testing.T, describe, platforms string) string {
	t.Helper()
	a.once.Do(func() {
		for tool, pkg := range tools {
			if _, err := exec.LookPath(tool); err != nil {
				a.err = errors.Join(a.err, fmt.Errorf("%s is missing: apt-get install %s", tool, pkg))
			}
		}
		if a.err != nil {
			return
		}
		// Not t.Context(): other tests use them too.
		ctx, cancel := context.WithTimeout(context.Background(), buildWithin)
		defer cancel()
		if a.dir, a.err = os.MkdirTemp("", "packages-"); a.err == nil {
			if a.err = keyring.make(ctx); a.err == nil {
				a.err = build(ctx, source, a.dir, "-arch", "amd64", "-version", describe, "-platforms", platforms, "-key", keyring.ours)
			}
		}
	})
	must(t, a.err)
	return a.dir
}

// remove removes what was built.
func (a *artifacts) remove() {
	if a.dir != "" {
		os.RemoveAll(a.dir)
	}
}

// build makes the artifacts of a release from the module at src.
func build(ctx context.Context, src, out string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./packaging/build", "-release", "-url", publishedAt, "-out", out}, args...)...)
	cmd.Dir = src
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it removes what it made
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+epoch, "GOFLAGS=-buildvcs=false -trimpath", "GNUPGHOME="+keyring.dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the release: %w\n%s", err, said)
	}
	return nil
}

// keyring is a keyring of gpg with two secret keys: the one that signs what is built here, and a stranger's.
var keyring keys

type keys struct {
	once                sync.Once
	dir, ours, stranger string // of the keys, the user IDs
	err                 error
}

func (k *keys) make(ctx context.Context) error {
	k.once.Do(func() {
		k.ours, k.stranger = "release@lockkeeper.test", "stranger@lockkeeper.test"
		if k.dir, k.err = os.MkdirTemp("", "gpg-"); k.err != nil { // short: gpg-agent's socket is in it
			return
		}
		for _, id := range []string{k.ours, k.stranger} {
			if out, err := k.gpg(ctx, "--passphrase", "", "--quick-gen-key", id, "ed25519", "sign", "never"); err != nil {
				k.err = fmt.Errorf("making the key of %s: %w\n%s", id, err, out)
				return
			}
		}
	})
	return k.err
}

// gpg runs gpg with the keyring.
func (k *keys) gpg(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "gpg", append([]string{"--batch", "--yes"}, args...)...)
	cmd.Env = append(os.Environ(), "GNUPGHOME="+k.dir)
	return cmd.CombinedOutput()
}

// remove ends the keyring's agent and removes the keys.
func (k *keys) remove() {
	if k.dir != "" {
		_ = exec.Command("gpgconf", "--homedir", k.dir, "--kill", "all").Run()
		os.RemoveAll(k.dir)
	}
}

// artefact is a file's path in dist or next; v is that one's version.
func artefact(dir, form, v string) string { return filepath.Join(dir, fmt.Sprintf(form, v)) }

const (
	debForm = "lockkeeper_%s_amd64.deb"
	rpmForm = "lockkeeper-%s-1.x86_64.rpm"
	rawForm = "lockkeeper-%s-x86-64.raw"
	ignForm = "lockkeeper-%s-x86-64.ign"
	bomForm = "lockkeeper_%s_amd64.cdx.json"
)

// run runs a command and returns all that it said.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mustRun is run for a command that has to succeed.
func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := run(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// A root is a minimal Debian that a test can do with what it likes. Each command has a mount namespace of its own, so nothing
// stays mounted whatever becomes of the test.
type root struct {
	t                       *testing.T
	lower, upper, work, dir string
}

func newRoot(t *testing.T) *root {
	t.Helper()
	if err := realhost.Missing(); err != nil {
		t.Skipf("left out: a root of its own takes what real hosts take: %v", err)
	}
	release, err := realhost.DefaultRelease()
	if err != nil {
		t.Fatal(err)
	}
	lower, err := realhost.Tree(t.Context(), os.Stderr, release)
	if err != nil {
		t.Fatal(err)
	}
	r := &root{t: t, lower: lower, upper: t.TempDir(), work: t.TempDir(), dir: t.TempDir()}
	if err := os.Chmod(r.upper, 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

const mountRoot = `mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4" && mount -t proc proc "$4/proc" && mount -t tmpfs tmpfs "$4/run" &&`

// run runs a command in the root; outside runs one of the machine's, for which the root is at r.dir.
func (r *root) run(args ...string) (string, error) {
	return r.in(mountRoot+` cd "$4" && root=$4 && shift 4 && exec chroot "$root" "$@"`, args)
}

func (r *root) outside(args ...string) (string, error) {
	return r.in(mountRoot+` shift 4 && exec "$@"`, args)
}

func (r *root) in(script string, args []string) (string, error) {
	r.t.Helper()
	return run(r.t, "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-ec", script, "sh", r.lower, r.upper, r.work, r.dir}, args...)...)
}

// mustRun is run for a command that has to succeed.
func (r *root) must(args ...string) string {
	r.t.Helper()
	out, err := r.run(args...)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// has reports whether there is something at a path.
func (r *root) has(path string) bool {
	_, err := r.run("test", "-e", path)
	return err == nil
}

// copyIn puts a file into the root's /root.
func (r *root) copyIn(from string) string {
	r.t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		r.t.Fatal(err)
	}
	dir := filepath.Join(r.upper, "root")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	name := filepath.Base(from)
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		r.t.Fatal(err)
	}
	return "/root/" + name
}
