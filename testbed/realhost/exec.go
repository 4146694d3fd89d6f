package realhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// ExecError is the error of a command on a host that failed.
type ExecError struct {
	Host   string
	Args   []string
	Status int // its exit status
	Output string
}

func (e *ExecError) Error() string {
	return fmt.Sprintf("on %s: %s: exit status %d: %s", e.Host, strings.Join(e.Args, " "), e.Status, controlplane.LastLines(e.Output, 20))
}

// Exec runs a command as root on the host and returns what it wrote to standard output and standard error, which may be
// megabytes. An exit status other than 0 is an [ExecError]; 127 means that the program does not exist. The command ends
// with ctx or with the boot.
func (h *Host) Exec(ctx context.Context, args ...string) (string, error) {
	return h.execInput(ctx, nil, args...)
}

func (h *Host) execInput(ctx context.Context, input []byte, args ...string) (string, error) {
	b := h.current()
	if b == nil {
		return "", fmt.Errorf("running %s on %s: %w", args[0], h.opts.Name, errDown)
	}
	cmd := command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if input != nil {
		cmd.Stdin = bytes.NewReader(input)
	}
	err := b.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		return out.String(), &ExecError{Host: h.opts.Name, Args: args, Status: exit.ExitCode(), Output: out.String()}
	}
	if err != nil {
		return out.String(), fmt.Errorf("running %s on %s: %w", strings.Join(args, " "), h.opts.Name, cause(ctx, err))
	}
	return out.String(), nil
}

// command returns a command for [boot.start], to run as root on the host. It ends with ctx.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := groupCommand(ctx, "/usr/bin/env", append([]string{"--"}, args...)...) // env finds the program on the host
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=",
	}
	return cmd
}

// start starts a command in the host's namespaces, but not in the host's cgroups. nsenter does not work here. In a
// shutdown, systemd stops and continues every process. nsenter stops itself when its child stops, and no process
// continues nsenter. So its dead child is never reaped, and systemd waits 90 s for the child.
func (b *boot) start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		started <- func() error {
			host, err := unix.PidfdOpen(b.pid, 0)
			if err != nil {
				return fmt.Errorf("finding the host's systemd: %w", err)
			}
			defer unix.Close(host)
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leaving the machine's root: %w", err)
			}
			const all = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP
			if err := unix.Setns(host, all); err != nil {
				return fmt.Errorf("entering the host's namespaces: %w", err)
			}
			return cmd.Start()
		}()
	}()
	return <-started
}

// WriteFile writes a file on the host, whether the host is up or down, and creates missing directories. While the host
// is up, the file is replaced atomically.
func (h *Host) WriteFile(ctx context.Context, name string, data []byte, mode os.FileMode) error {
	if !path.IsAbs(name) {
		return fmt.Errorf("writing %s on %s: the path is not absolute", name, h.opts.Name)
	}
	if h.current() == nil {
		return h.writeUpper(name, data, mode)
	}
	if data == nil {
		data = []byte{}
	}
	script := `set -e; mkdir -p "$(dirname "$1")"; cat >"$1.new"; chmod "$2" "$1.new"; mv "$1.new" "$1"`
	_, err := h.execInput(ctx, data, "sh", "-c", script, "sh", name, fmt.Sprintf("%o", mode.Perm()))
	return err
}

// CopyIn copies the machine's file from to the path to on the host, with its permissions; see [Host.WriteFile].
func (h *Host) CopyIn(ctx context.Context, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying to %s: %w", h.opts.Name, err)
	}
	info, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("copying to %s: %w", h.opts.Name, err)
	}
	return h.WriteFile(ctx, to, data, info.Mode().Perm())
}

// Journal returns the log of a unit on this host over all boots, or the whole journal for "".
func (h *Host) Journal(ctx context.Context, unit string) (string, error) {
	args := []string{"journalctl", "--no-pager", "--output=short-iso-precise"}
	if unit != "" {
		args = append(args, "--unit="+unit)
	}
	return h.Exec(ctx, args...)
}
