package packagetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// What every test has: the artefacts of two versions for amd64, of which no test changes anything.
var (
	source string // the module's root
	dist   string // v1's artefacts
	next   string // v2's
)

const (
	v1, v2 = "1.2.3", "1.3.0~rc.1"
	epoch  = "1789000000" // of both builds, seconds
)

// tools are what the tests call, and the Debian packages that have them.
var tools = map[string]string{
	"dpkg-deb": "dpkg", "lintian": "lintian", "rpm": "rpm", "rpmlint": "rpmlint", "mksquashfs": "squashfs-tools", "unsquashfs": "squashfs-tools",
	"mandoc": "mandoc", "man": "man-db", "fish": "fish", "zsh": "zsh", "bash": "bash", "systemd-analyze": "systemd", "mmdebstrap": "mmdebstrap",
}

func TestMain(m *testing.M) {
	status, err := main(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "packagetest: %v\n", err)
		status = 1
	}
	os.Exit(status)
}

func main(m *testing.M) (int, error) {
	var missing []string
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		return 1, fmt.Errorf("programs are missing: apt-get install %s", strings.Join(missing, " "))
	}
	signalled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(signalled, 20*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "packagetest-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if source, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	dist, next = filepath.Join(dir, "v1"), filepath.Join(dir, "v2")
	for describe, out := range map[string]string{"v1.2.3": dist, "v1.3.0-rc.1": next} {
		if err := build(ctx, source, describe, out, nil); err != nil {
			return 1, err
		}
	}
	stop() // from here on a signal ends the process, and each command with it
	return m.Run(), nil
}

// build makes the artefacts for amd64 from the module at src.
func build(ctx context.Context, src, describe, out string, env []string) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./packaging/build", "-arch", "amd64", "-version", describe, "-out", out)
	cmd.Dir = src
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it removes what it made
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(append(os.Environ(), "SOURCE_DATE_EPOCH="+epoch, "GOFLAGS=-buildvcs=false"), env...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the packages: %w\n%s", err, said)
	}
	return nil
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

// must is run for a command that has to succeed.
func must(t *testing.T, name string, args ...string) string {
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

// must is run for a command that has to succeed.
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
