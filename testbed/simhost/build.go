package simhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// keepBuilds is how long an unused binary stays in the cache.
const keepBuilds = 48 * time.Hour

// BuildLockkeeper builds the lockkeeper binary from the source tree that contains this testbed, static and with -trimpath, and returns its
// path in the user's cache. A process builds once; a later call returns the same path or the same error. log may be nil. A binary stays in
// the cache for two days after its last use, so that a run of another source tree does not delete a binary in use.
func BuildLockkeeper(ctx context.Context, log io.Writer) (string, error) {
	return plainBuild.get(ctx, log)
}

// RaceOptions is what to set GORACE to for a binary with the race detector. The first race ends it. Without the second option it would sleep for
// a second whenever it ends, and so in each reboot of its host.
const RaceOptions = "halt_on_error=1 atexit_sleep_ms=0"

// BuildLockkeeperRace is BuildLockkeeper with the race detector, which needs a C compiler. The binary logs a race and exits with status 66.
// Its build reuses the libraries in Go's cache from the tests that `make test` builds with -race.
func BuildLockkeeperRace(ctx context.Context, log io.Writer) (string, error) {
	return raceBuild.get(ctx, log)
}

// Mutation is one change of the product's source: it replaces the text Old with New. Old must occur exactly once.
type Mutation struct {
	File     string // relative to the product's module
	Old, New string
}

// BuildMutant is BuildLockkeeper with the mutation applied. It does not change the source files. It fails if Old does
// not occur exactly once, so that a developer who changes that source has to update the mutation. Each call builds.
func BuildMutant(ctx context.Context, log io.Writer, m Mutation) (string, error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("building a mutant of %s: %w", m.File, err) }
	src, err := rootModule(ctx)
	if err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp("", "lockkeeper-mutant-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(src, dir)
	if err != nil {
		return fail(err)
	}
	b := &onceBuild{env: plainBuild.env, flags: append([]string{"-overlay=" + overlay}, plainBuild.flags...)}
	return b.get(ctx, log)
}

// overlay writes the overlay file with which go build reads the mutated file, and returns its path.
func (m Mutation) overlay(src, dir string) (string, error) {
	file := filepath.Join(src, filepath.FromSlash(m.File))
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return "", fmt.Errorf("the text %q occurs %d times, expected once", m.Old, n)
	}
	mutated := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(text), m.Old, m.New, 1)), 0o644); err != nil {
		return "", err
	}
	doc, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, doc, 0o644)
}

var (
	plainBuild = &onceBuild{env: []string{"CGO_ENABLED=0"}, flags: []string{"-trimpath"}}
	raceBuild  = &onceBuild{env: []string{"CGO_ENABLED=1"}, flags: []string{"-race", "-trimpath"}}
)

type onceBuild struct {
	env, flags []string

	mu   sync.Mutex
	done bool
	path string
	err  error
}

func (b *onceBuild) get(ctx context.Context, log io.Writer) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return b.path, b.err
	}
	path, err := b.build(ctx, log)
	if err != nil {
		err = fmt.Errorf("building lockkeeper: %w", err)
	}
	if ctx.Err() == nil { // a cancel by the caller is not an error of the source tree
		b.done, b.path, b.err = true, path, err
	}
	return path, err
}

func (b *onceBuild) build(ctx context.Context, log io.Writer) (string, error) {
	src, err := rootModule(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache: %w", err)
	}
	cache = filepath.Join(cache, "lockkeeper-simhost")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "unfinished-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if log != nil {
		fmt.Fprintf(log, "simhost: building lockkeeper %s\n", strings.Join(b.flags, " "))
	}
	args := append([]string{"build", "-buildvcs=false"}, b.flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", filepath.Join(tmp, "lockkeeper"), ".")...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	cmd.Env = append(cmd.Env, b.env...)
	// go starts processes in its own process group, which ends with the context.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil {
		return "", context.Cause(ctx)
	} else if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, controlplane.LastLines(string(out), 30))
	}
	return store(cache, tmp)
}

// store moves the directory with a new binary to its path in the cache, which its content determines, unless the cache already has it.
func store(cache, tmp string) (string, error) {
	data, err := os.ReadFile(filepath.Join(tmp, "lockkeeper"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	dir := filepath.Join(cache, hex.EncodeToString(sum[:8]))
	path := filepath.Join(dir, "lockkeeper")
	if err := os.Rename(tmp, dir); err != nil {
		if _, there := os.Stat(path); there != nil {
			return "", err
		}
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(cache)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > keepBuilds {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
	return path, nil
}

// rootModule finds lockkeeper's source: two directories above this file or, if this package was built with -trimpath,
// through the module in the working directory.
func rootModule(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Dir(filepath.Dir(filepath.Dir(file)))
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "lockkeeper.dev/lockkeeper").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, controlplane.LastLines(string(exit.Stderr), 5))
	}
	if err != nil {
		return "", fmt.Errorf("finding the source: it is not at the path of the build, and the working directory is not in a module that contains or requires it: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
