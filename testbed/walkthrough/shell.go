package walkthrough

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Host is what ssh and scp reach as root.
type Host interface {
	// Run runs a command line and returns its output, both streams together, and its exit status. An error means that the host
	// could not run the command, and fails the step.
	Run(ctx context.Context, command string) (output string, exit int, err error)
	// Put writes a file with the mode of the file that scp copies.
	Put(ctx context.Context, path string, data []byte, mode os.FileMode) error
}

// A Failure is a command that did not exit with 0.
type Failure struct {
	Command string
	Exit    int
}

// Result is the result of a step.
type Result struct {
	Output   string // of all its commands, both streams
	Failures []Failure
}

// A Shell runs steps, one after the other. The caller must close it.
type Shell struct {
	dir       string // the directory that commands run in
	env       []string
	hosts     *hosts
	variables string
}

// stepWithin limits one step.
const stepWithin = 3 * time.Minute

// failedFile is the file in which a step's bash records the commands that failed.
const failedFile = ".failed"

// Start creates a shell. Its commands run in dir, which the caller owns, and can call programs, a map from names to paths.
// Their environment contains only env, a PATH and a HOME. The test binary itself acts as ssh and scp, see [Main].
func Start(dir string, programs map[string]string, env []string, byName map[string]Host) (*Shell, error) {
	bin := filepath.Join(dir, ".bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, fmt.Errorf("starting a shell: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("starting a shell: %w", err)
	}
	links := map[string]string{"ssh": self, "scp": self}
	maps.Copy(links, programs)
	for name, path := range links {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			return nil, fmt.Errorf("starting a shell: %w", err)
		}
	}
	h, err := serve(filepath.Join(dir, ".hosts"), byName)
	if err != nil {
		return nil, fmt.Errorf("starting a shell: %w", err)
	}
	return &Shell{dir: dir, hosts: h, env: append([]string{
		"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + dir, socketEnv + "=" + filepath.Join(dir, ".hosts"),
	}, env...)}, nil
}

// Close stops the shell.
func (s *Shell) Close() error { return s.hosts.close() }

// Run runs a step. A command that fails is not an error: it is in the result, and the commands after it run too, as they do for
// a user who types them. The error says that the step could not be run, or that a host could not do what it asked for.
func (s *Shell) Run(ctx context.Context, step Step) (Result, error) {
	if step.sets() {
		s.variables += step.Text
		return Result{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	noted := filepath.Join(s.dir, failedFile)
	if err := os.WriteFile(noted, nil, 0o600); err != nil {
		return Result{}, fmt.Errorf("running %q: %w", step.Title, err)
	}
	// A pipe fails with any of its commands; the trap sees each command, also in loops.
	head := "set -u -E -o pipefail\ntrap 'printf \"%d %s\\n\" \"$?\" \"${BASH_COMMAND%%$'\\''\\n'\\''*}\" >>" + failedFile + "' ERR\n"
	cmd := exec.CommandContext(ctx, "bash", "-c", head+s.variables+step.Text)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && ctx.Err() == nil {
		err = nil
	}
	result := Result{Output: out.String()}
	text, readErr := os.ReadFile(noted)
	for line := range strings.Lines(string(text)) {
		var f Failure
		if _, err := fmt.Sscanf(line, "%d", &f.Exit); err != nil {
			return result, fmt.Errorf("running %q: what failed in it: %w", step.Title, err)
		}
		_, f.Command, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		result.Failures = append(result.Failures, f)
	}
	if err := errors.Join(err, readErr, s.hosts.trouble()); err != nil {
		return result, fmt.Errorf("running %q: %w; its output:\n%s", step.Title, err, result.Output)
	}
	return result, nil
}
