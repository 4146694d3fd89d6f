package realhost

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// A Release of Debian, by its code name: the operating system of a host.
type Release string

// The releases that hosts can run.
const (
	Bookworm Release = "bookworm" // Debian 12, systemd 252
	Trixie   Release = "trixie"   // Debian 13, systemd 257
)

// Releases are all of them, the one that hosts run by default first.
var Releases = []Release{Bookworm, Trixie}

// releaseEnv names the release of hosts whose options name none; empty or unset is [Bookworm].
const releaseEnv = "LOCKKEEPER_RELEASE"

// DefaultRelease is what hosts run whose options name no release. It fails if the environment variable LOCKKEEPER_RELEASE
// names an unknown one.
func DefaultRelease() (Release, error) {
	r := cmp.Or(Release(os.Getenv(releaseEnv)), Releases[0])
	if !slices.Contains(Releases, r) {
		return "", fmt.Errorf("%s=%s: expected one of %q", releaseEnv, r, Releases)
	}
	return r, nil
}

// treePackages are what a minimal Debian needs for systemd to boot it as a complete system. With polkitd the user core may hold
// an inhibitor too, see treeHooks.
var treePackages = []string{"systemd", "systemd-sysv", "libpam-systemd", "dbus", "polkitd", "iproute2", "ca-certificates"}

// treeHooks end the making of the tree. Flatcar's D-Bus policy names a user core; here this user may hold block inhibitors as
// someone at a desk may. Timers that would fetch or tidy up have no business in a test.
var treeHooks = []string{
	`chroot "$1" useradd --create-home --shell /bin/bash core`,
	`echo 'polkit.addRule(function(action, subject) { if (action.id == "org.freedesktop.login1.inhibit-block-shutdown" && subject.user == "core") return polkit.Result.YES; });' >"$1"/etc/polkit-1/rules.d/core.rules`,
	`systemctl --root="$1" enable systemd-networkd.service`,
	`systemctl --root="$1" mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer`,
	`rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log`,
}

// treeRoot is below the cache's directory, because mmdebstrap wants one of its own making.
const treeRoot = "root"

// parts are what hosts are made of besides their operating system, read-only for them.
type parts struct {
	kubelet   string // path of the binary
	hostparts string // path of the binary
}

// Prepare makes what hosts of the default release are made of, unless it is in the cache: the operating system's tree (a
// minute, 220 MB), the kubelet (a minute more when the control plane was built before) and command hostparts. [StartFleet] does
// it too; here it can be done ahead of a test's timeout. log may be nil.
func Prepare(ctx context.Context, log io.Writer) error {
	release, err := DefaultRelease()
	if err != nil {
		return err
	}
	if _, err := Tree(ctx, log, release); err != nil {
		return err
	}
	_, err = prepareParts(ctx, log)
	return err
}

// Tree makes the tree of a release alone, unless it is in the cache, and returns its root. The caller must not write to it; an
// overlay over it can be written to. It fails where the release's packages cannot be fetched. log may be nil.
func Tree(ctx context.Context, log io.Writer, release Release) (string, error) {
	c, err := openCache()
	if err != nil {
		return "", err
	}
	if log == nil {
		log = io.Discard
	}
	name := "tree-" + string(release) + "-" + treeKey(release)
	tree, err := c.get(ctx, name, func(ctx context.Context, dir string) error { return makeTree(ctx, dir, log, release) })
	if err != nil {
		return "", fmt.Errorf("making the hosts' operating system, Debian %s: %w", release, err)
	}
	return filepath.Join(tree, treeRoot), nil
}

func prepareParts(ctx context.Context, log io.Writer) (p parts, err error) {
	c, err := openCache()
	if err != nil {
		return parts{}, err
	}
	if log == nil {
		log = io.Discard
	}
	if p.kubelet, err = controlplane.BuildKubelet(ctx, log); err != nil {
		return parts{}, err
	}
	if p.hostparts, err = buildHostparts(ctx, c); err != nil {
		return parts{}, fmt.Errorf("building hostparts: %w", err)
	}
	return p, nil
}

func treeKey(release Release) string {
	return keyOf(string(release), strings.Join(treePackages, " "), strings.Join(treeHooks, "\n"), runtime.GOARCH)
}

func makeTree(ctx context.Context, dir string, log io.Writer, release Release) error {
	begin := time.Now()
	fmt.Fprintf(log, "realhost: making the hosts' operating system (Debian %s): once, about a minute\n", release)
	args := []string{"--variant=minbase", "--include=" + strings.Join(treePackages, ",")}
	for _, hook := range treeHooks {
		args = append(args, "--customize-hook="+hook)
	}
	root := filepath.Join(dir, treeRoot)
	if out, err := groupCommand(ctx, "mmdebstrap", append(args, string(release), root)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", cause(ctx, err), lastLines(string(out), 30))
	}
	fmt.Fprintf(log, "realhost: made the hosts' operating system (Debian %s) in %s\n", release, time.Since(begin).Round(time.Second))
	return nil
}

// buildHostparts builds each time: Go's own cache knows best whether something has changed.
func buildHostparts(ctx context.Context, c cache) (string, error) {
	tmp, err := os.MkdirTemp("", "hostparts-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	binary := filepath.Join(tmp, "hostparts")
	cmd := groupCommand(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "lockkeeper.dev/lockkeeper/testbed/cmd/hostparts")
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		cmd.Dir = filepath.Dir(file) // else the working directory is in the module, as for tests
	}
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", cause(ctx, err), lastLines(string(out), 30))
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	dir, err := c.get(ctx, "hostparts-"+keyOf(string(data)), func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "hostparts"), data, 0o755)
	})
	return filepath.Join(dir, "hostparts"), err
}

// groupCommand is a command in a process group of its own, all of which ends with ctx.
func groupCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// cause is why ctx has ended, if it has, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// lastLines is the end of a command's output for an error message, at most n lines and 8 KiB.
func lastLines(text string, n int) string {
	const limit = 8 << 10
	text = strings.TrimRight(text, "\n")
	if len(text) > limit {
		text = text[len(text)-limit:]
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
