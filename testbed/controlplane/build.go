package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// versionFlag sets the release in Kubernetes' binaries, as the release build does. Without it, kubectl cannot parse the server's version.
// The version is defined only in binaries/go.mod, and for older minors in its directories.
const versionFlag = "-s -w -X k8s.io/component-base/version.gitVersion="

// buildFlags are the same for every binary. VCS stamping would make the build depend on the state of this repository. The linker drops
// debug information anyway (-s -w), and -dwarf=false saves about 8% of the CPU time of a build.
var buildFlags = []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}

// tool is one binary: its package and its name.
type tool struct{ pkg, name string }

// kwok is always that of the newest minor: it does not compile with the modules of older ones, and runs next to any API server.
var kwok = tool{"sigs.k8s.io/kwok/cmd/kwok", "kwok"}

var tools = []tool{
	{"go.etcd.io/etcd/server/v3", "etcd"},
	{"k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"},
	{"k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager"},
	{"k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"},
	{"k8s.io/kubernetes/cmd/kubectl", "kubectl"},
	kwok,
}

// hostTools are the tools that real hosts run in addition. Only [BuildKubelet] builds them.
var hostTools = []tool{{"k8s.io/kubernetes/cmd/kubelet", "kubelet"}}

// Binaries are the paths of the control plane's programs.
type Binaries struct {
	Etcd, APIServer, ControllerManager, Scheduler, Kubectl, Kwok string
}

func binariesIn(dir string) Binaries {
	return Binaries{
		Etcd:              filepath.Join(dir, "etcd"),
		APIServer:         filepath.Join(dir, "kube-apiserver"),
		ControllerManager: filepath.Join(dir, "kube-controller-manager"),
		Scheduler:         filepath.Join(dir, "kube-scheduler"),
		Kubectl:           filepath.Join(dir, "kubectl"),
		Kwok:              filepath.Join(dir, "kwok"),
	}
}

// Build returns the paths of the control plane's binaries in the cache, and builds them if necessary. The cache is in lockkeeper-testbed in
// [os.UserCacheDir]. It has one directory for each combination of binaries/go.mod, go.sum, Go release, platform and flags. If the directory
// exists, Build does nothing more. Otherwise it runs `go build` for one binary after the other, which takes about six minutes on two cores
// with an empty Go build cache. It reports on log which binary it builds and how many there are, and every 15 s that the build continues.
// log may be nil.
//
// Any number of processes may call Build at once: one builds, and the others wait. When ctx ends, Build kills the build. Only new entries
// in Go's own caches remain. See [builder.pruneCache] for how long old directories are kept.
func Build(ctx context.Context, log io.Writer) (Binaries, error) {
	b, err := newToolBuilder("lockkeeper-testbed", log)
	if err != nil {
		return Binaries{}, err
	}
	b.tools, b.what, b.cost = tools, "the control plane's binaries", "some 6 minutes on 2 cores (1 when Go's build cache is warm)"
	dir, err := b.build(ctx)
	if err != nil {
		return Binaries{}, err
	}
	return binariesIn(dir), nil
}

// BuildKubelet returns the path of a kubelet of the control plane's release in the cache, in a separate directory, and builds it if
// necessary. Apart from that it works like [Build]. After Build, it takes about a minute on two cores.
func BuildKubelet(ctx context.Context, log io.Writer) (string, error) {
	b, err := newToolBuilder("lockkeeper-kubelet", log)
	if err != nil {
		return "", err
	}
	b.tools, b.what, b.cost = hostTools, "the kubelet", "a minute on 2 cores when the control plane was built before"
	dir, err := b.build(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "kubelet"), nil
}

// newToolBuilder returns a builder without tools for the cache with this name.
func newToolBuilder(cache string, log io.Writer) (builder, error) {
	root, err := os.UserCacheDir()
	if err != nil {
		return builder{}, fmt.Errorf("finding the cache for the control plane's binaries: %w", err)
	}
	src, err := moduleDir(os.Getenv(Minor))
	if err != nil {
		return builder{}, fmt.Errorf("finding the control plane's go.mod: %w", err)
	}
	newest, err := newestDir()
	if err != nil {
		return builder{}, fmt.Errorf("finding the control plane's go.mod: %w", err)
	}
	return builder{cache: filepath.Join(root, cache), src: src, newest: newest, log: newProgress(log), every: 15 * time.Second}, nil
}

// builder is one call of Build. Tests give it other paths.
type builder struct {
	tools []tool
	what  string // name of the tools in messages
	cost  string // duration of a build, for messages
	cache string // has one directory for each key
	src   string // the module that pins the binaries' sources
	// newest is that of the newest minor. What it pins of kwok is not part of the key of an older minor's binaries.
	newest string
	log    *progress
	every  time.Duration // interval between two progress reports
}

// build returns the directory with the tools.
func (b builder) build(ctx context.Context) (string, error) {
	key, err := b.key(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.cache, key)
	if b.complete(dir) {
		touch(dir)
		return dir, nil
	}
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return "", fmt.Errorf("creating the cache for %s: %w", b.what, err)
	}
	unlock, err := lockFile(ctx, filepath.Join(b.cache, "lock"), func() {
		b.log.printf("another process is building %s; waiting for it", b.what)
	})
	if err != nil {
		return "", fmt.Errorf("waiting for another build of %s: %w", b.what, err)
	}
	defer unlock()
	if b.complete(dir) {
		return dir, nil
	}
	b.pruneCache()
	if err := b.buildInto(ctx, dir); err != nil {
		return "", fmt.Errorf("building %s: %w", b.what, err)
	}
	return dir, nil
}

// key returns a name for everything on which the binaries depend.
func (b builder) key(ctx context.Context) (string, error) {
	out, err := b.goCommand(ctx, "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its version: %w", withStderr(err))
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q %q %q\n", out, buildFlags, versionFlag, b.tools)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(b.src, name))
		if err != nil {
			return "", fmt.Errorf("reading what pins the control plane's sources: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// buildInto builds in a directory next to dir and renames it to dir. So dir is either complete or absent.
func (b builder) buildInto(ctx context.Context, dir string) error {
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(b.cache, unfinished)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	gotmp, bin := filepath.Join(tmp, "gotmp"), filepath.Join(tmp, "bin")
	for _, d := range []string{gotmp, bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}

	b.log.printf("building %s of Kubernetes %s into %s: once, %s", b.what, version, dir, b.cost)
	begin := time.Now()
	for i, t := range b.tools {
		args := append([]string{"build"}, buildFlags...)
		args = append(args, "-ldflags", versionFlag+version, "-o", filepath.Join(bin, t.name), t.pkg)
		in := b
		if t == kwok {
			in.src = b.newest
		}
		cmd := in.goCommand(ctx, args...)
		cmd.Env = append(cmd.Env, "GOTMPDIR="+gotmp)
		part := fmt.Sprintf("%s (%d of %d)", t.name, i+1, len(b.tools))
		b.log.printf("building %s", part)
		if err := b.run(ctx, cmd, part, begin); err != nil {
			return err
		}
	}
	b.log.printf("built %s in %s", b.what, time.Since(begin).Round(time.Second))
	return os.Rename(bin, dir)
}

// run runs the go command that builds a part. It reports periodically that the build continues, with the time since begin. It leaves no
// compiler process behind.
func (b builder) run(ctx context.Context, cmd *exec.Cmd, part string, begin time.Time) error {
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// An interrupted go command removes its temporary files. Its child processes are in its process group.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	if err := StartChild(cmd); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(b.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.log.printf("still building %s, %s so far in all", part, time.Since(begin).Round(time.Second))
			continue
		case err := <-done:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s: go build: %w\n%s", part, err, LastLines(output.String(), 30))
			}
			return nil
		}
	}
}

// goCommand returns a go command in the module that pins the sources. It ignores environment flags that are meant for the caller's own
// build.
func (b builder) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.src
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// Minor is the environment variable that names an older minor of Kubernetes to run on, such as 1.36. Without it, that is the newest one.
const Minor = "LOCKKEEPER_KUBERNETES"

// Version returns the release of Kubernetes that a minor stands for, such as v1.36.3; "" is the newest minor.
func Version(ctx context.Context, minor string) (string, error) {
	dir, err := moduleDir(minor)
	if err != nil {
		return "", err
	}
	return builder{src: dir}.version(ctx)
}

func (b builder) version(ctx context.Context) (string, error) {
	out, err := b.goCommand(ctx, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("reading the Kubernetes version from %s: %w", filepath.Join(b.src, "go.mod"), withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// moduleDir returns the directory of the module that pins the sources of a minor's binaries.
func moduleDir(minor string) (string, error) {
	newest, err := newestDir()
	if err != nil || minor == "" {
		return newest, err
	}
	dir := filepath.Join(newest, minor)
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", fmt.Errorf("%s is %q, expected a directory of %s, or nothing for the newest minor of Kubernetes", Minor, minor, newest)
	}
	return dir, nil
}

// newestDir returns the directory of the newest minor's module. It is next to this file. This also works if this package was built with
// -trimpath and then runs somewhere in the testbed's module.
func newestDir() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Join(filepath.Dir(file), "binaries")
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "lockkeeper.dev/lockkeeper/testbed/controlplane").Output()
	if err != nil {
		return "", fmt.Errorf("it is not where this program was built, and the working directory is not in the testbed's module: %w", withStderr(err))
	}
	return filepath.Join(strings.TrimSpace(string(out)), "binaries"), nil
}

// withStderr adds a command's standard error output to its exit error.
func withStderr(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, LastLines(string(exit.Stderr), 10))
	}
	return err
}
