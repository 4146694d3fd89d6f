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

// Release is a Debian release by its code name: the operating system of a host.
type Release string

// These are the releases that hosts can run.
const (
	Bookworm Release = "bookworm" // Debian 12, systemd 252
	Trixie   Release = "trixie"   // Debian 13, systemd 257
)

// Releases lists all releases. The default comes first.
var Releases = []Release{Bookworm, Trixie}

// releaseEnv is the environment variable with the default release. Empty or unset means [Bookworm].
const releaseEnv = "LOCKKEEPER_RELEASE"

// DefaultRelease returns the release of hosts whose options name none. It fails if the environment variable
// LOCKKEEPER_RELEASE contains an unknown one.
func DefaultRelease() (Release, error) {
	r := cmp.Or(Release(os.Getenv(releaseEnv)), Releases[0])
	if !slices.Contains(Releases, r) {
		return "", fmt.Errorf("%s=%s: expected one of %q", releaseEnv, r, Releases)
	}
	return r, nil
}

// treePackages lists the packages that systemd needs to boot a minimal Debian as a complete system. With polkitd the
// user core may hold an inhibitor too, see treeHooks.
var treePackages = []string{"systemd", "systemd-sysv", "libpam-systemd", "dbus", "polkitd", "iproute2", "ca-certificates"}

// treeHooks finish the tree. Flatcar's D-Bus policy names a user core; here this user may hold block inhibitors, like a
// user with a local session. The hooks also disable timers that download or clean up, because they would disturb tests.
var treeHooks = []string{
	`chroot "$1" useradd --create-home --shell /bin/bash core`,
	`echo 'polkit.addRule(function(action, subject) { if (action.id == "org.freedesktop.login1.inhibit-block-shutdown" && subject.user == "core") return polkit.Result.YES; });' >"$1"/etc/polkit-1/rules.d/core.rules`,
	`systemctl --root="$1" enable systemd-networkd.service`,
	`systemctl --root="$1" mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer`,
	`rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log`,
}

// treeRoot is a subdirectory of the cache entry, because mmdebstrap creates its target directory itself.
const treeRoot = "root"

// parts are the components of a host apart from its operating system. Hosts have read-only access to them.
type parts struct {
	kubelet   string // path of the binary
	hostparts string // path of the binary
}

// Prepare builds the components of hosts with the default release, unless they are in the cache: the tree of the
// operating system (a minute, 220 MB), the kubelet (one more minute if the control plane was built before) and the
// command hostparts. [StartFleet] does the same, but a test can call Prepare before its timeout starts. log may be nil.
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

// Tree builds only the tree of a release, unless it is in the cache, and returns its root. The caller must not write to
// the tree, but can write to an overlay over it. Tree fails if the packages of the release cannot be downloaded. log
// may be nil.
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
		return "", fmt.Errorf("building the hosts' operating system, Debian %s: %w", release, err)
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
	fmt.Fprintf(log, "realhost: building the hosts' operating system (Debian %s): only once, about a minute\n", release)
	args := []string{"--variant=minbase", "--include=" + strings.Join(treePackages, ",")}
	for _, hook := range treeHooks {
		args = append(args, "--customize-hook="+hook)
	}
	root := filepath.Join(dir, treeRoot)
	if out, err := groupCommand(ctx, "mmdebstrap", append(args, string(release), root)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", cause(ctx, err), controlplane.LastLines(string(out), 30))
	}
	fmt.Fprintf(log, "realhost: built the hosts' operating system (Debian %s) in %s\n", release, time.Since(begin).Round(time.Second))
	return nil
}

// buildHostparts always calls go build, because Go's own cache detects changes.
func buildHostparts(ctx context.Context, c cache) (string, error) {
	tmp, err := os.MkdirTemp("", "hostparts-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	binary := filepath.Join(tmp, "hostparts")
	cmd := groupCommand(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "lockkeeper.dev/lockkeeper/testbed/cmd/hostparts")
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		cmd.Dir = filepath.Dir(file) // otherwise the working directory is in the module, as in tests
	}
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", cause(ctx, err), controlplane.LastLines(string(out), 30))
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

// groupCommand returns a command with its own process group. The whole group ends with ctx.
func groupCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// cause returns the reason why ctx has ended, or err if it has not.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
