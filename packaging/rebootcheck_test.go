package packaging

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the tools print, by their sources: dnf-plugins-core 4.3, dnf5's needs_restarting plugin, and
// `rpm-ostree status`.
const (
	dnf4Needed = "Core libraries or services have been updated since boot-up:\n  * kernel\n\n" +
		"Reboot is required to fully utilize these updates.\nMore information: https://access.redhat.com/solutions/27943\n"
	dnf4NotNeeded = "No core libraries or services have been updated since boot-up.\nReboot should not be necessary.\n"
	dnf5Needed    = "[\n  {\n    \"type\":\"reboot\",\n    \"reboot_required\":true,\n    \"packages\":[\n      \"kernel-core\"\n    ],\n" +
		"    \"documentation\":\"https://access.redhat.com/solutions/27943\"\n  }\n]\n"
	dnf5NotNeeded = "[\n  {\n    \"type\":\"reboot\",\n    \"reboot_required\":false,\n    \"packages\":[],\n" +
		"    \"documentation\":\"https://access.redhat.com/solutions/27943\"\n  }\n]\n"
	ostreePending = "State: idle\nDeployments:\n  fedora:fedora/x86_64/coreos/stable\n                  Version: 44.2 (2026-11-20T01:02:03Z)\n" +
		"\n* fedora:fedora/x86_64/coreos/stable\n                  Version: 44.1 (2026-11-01T01:02:03Z)\n"
	ostreeNothing = "State: idle\nDeployments:\n* fedora:fedora/x86_64/coreos/stable\n                  Version: 44.1 (2026-11-01T01:02:03Z)\n"

	ours, others = "Created by lockkeeper-reboot-check.\n", "*** System restart required ***\n"
)

// TestRebootCheck runs the example with stand-ins for the tools. Each answer is tried without a
// sentinel, with the script's own, and with another program's; a tool that hangs only with the
// script's own.
func TestRebootCheck(t *testing.T) {
	const yes, no, unknown = "yes", "no", "unknown"
	for _, tc := range []struct {
		name, tool string
		stub       string // the tool, as a shell script; $OUT is the text
		out        string
		is         string
	}{
		{"needed", "dnf", `cat "$OUT"; exit 1`, dnf4Needed, yes},
		{"not needed", "dnf", `cat "$OUT"`, dnf4NotNeeded, no},
		{"an error without text", "dnf", `echo 'Error: Failed to download metadata' >&2; exit 1`, "", unknown},
		{"an error after the text", "dnf", `cat "$OUT"; exit 1`, dnf4NotNeeded, unknown},
		{"needed, and exit status 0", "dnf", `cat "$OUT"`, dnf4Needed, unknown},
		{"killed", "dnf", `cat "$OUT"; kill -9 $$`, dnf4Needed, unknown},
		{"nothing", "dnf", `exit 0`, "", unknown},
		{"no such command", "dnf", `echo 'No such command: needs-restarting.' >&2; exit 1`, "", unknown},
		{"garbage", "dnf", `head -c 3000 /dev/urandom; exit 1`, "", unknown},
		{"the answer inside a line", "dnf", `echo "warning: Reboot should not be necessary. (cached)"`, "", unknown},
		{"an answer before 64 KiB of noise", "dnf", `cat "$OUT"; head -c 200000 /dev/zero | tr '\0' x; exit 0`, dnf4NotNeeded, unknown},
		{"an exit status in the text", "dnf", `echo 'exit status 0'; cat "$OUT"; exit 3`, dnf4NotNeeded, unknown},
		{"hangs", "dnf", `cat "$OUT"; sleep 60`, dnf4NotNeeded, unknown},
		{"hangs and ignores signals", "dnf", `trap '' TERM; cat "$OUT"; sleep 60; sleep 60`, dnf4NotNeeded, unknown},

		{"needed", "dnf5", `cat "$OUT"; exit 1`, dnf5Needed, yes},
		{"not needed", "dnf5", `cat "$OUT"`, dnf5NotNeeded, no},
		{"not needed, in one line", "dnf5", `echo '[{"type": "reboot", "reboot_required" : false}]'`, "", no},
		{"an error", "dnf5", `echo 'Cannot download repomd.xml' >&2; exit 1`, "", unknown},
		{"an error after the text", "dnf5", `cat "$OUT"; exit 1`, dnf5NotNeeded, unknown},
		{"no JSON", "dnf5", `cat "$OUT"`, dnf4NotNeeded, unknown},
		{"two answers", "dnf5", `cat "$OUT" "$OUT"`, dnf5NotNeeded, unknown},
		{"no such option", "dnf5", `echo 'Unknown argument "--json"' >&2; exit 2`, "", unknown},
		{"hangs", "dnf5", `sleep 60`, "", unknown},

		{"pending", "rpm-ostree", `cat "$OUT"; exit 77`, ostreePending, yes},
		{"nothing", "rpm-ostree", `cat "$OUT"`, ostreeNothing, no},
		{"an error", "rpm-ostree", `echo 'error: Could not connect' >&2; exit 1`, "", unknown},
		{"garbage", "rpm-ostree", `echo hello`, "", unknown},
		{"77 without a text", "rpm-ostree", `exit 77`, "", unknown},
		{"hangs", "rpm-ostree", `sleep 60`, "", unknown},

		{"the tool is missing", "dnf5", "", "", unknown},
		{"no such tool", "yum", "", "", unknown},
	} {
		t.Run(tc.tool+"/"+tc.name, func(t *testing.T) {
			t.Parallel()
			c := newRebootCheck(t, tc.tool, tc.stub, tc.out)
			all := []string{"", ours, others}
			if strings.HasPrefix(tc.name, "hangs") {
				all = all[1:2] // it takes seconds
			}
			for _, before := range all {
				c.put(before)
				exit, text := c.run()
				want, wantExit := before, 0
				switch {
				case tc.is == unknown:
					wantExit = 1
				case tc.is == yes && before == "":
					want = ours
				case tc.is == no && before == ours:
					want = ""
				}
				if got := c.get(); got != want || exit != wantExit {
					t.Errorf("before: %q, after: %q, expected %q; exit status %d, expected %d\n%s", before, got, want, exit, wantExit, text)
				}
				if !strings.Contains(text, c.sentinel) || len(text) > 6000 {
					t.Errorf("it does not say in a few lines what happened to the sentinel:\n%.6000s", text)
				}
			}
		})
	}
}

// TestRebootCheckChoosesTheTool checks that dnf5 is asked where it is installed, and dnf elsewhere.
func TestRebootCheckChoosesTheTool(t *testing.T) {
	if _, err := os.Stat("/run/ostree-booted"); err == nil {
		t.Skip("left out: this machine is one of rpm-ostree's")
	}
	c := newRebootCheck(t, "dnf", `[ "$*" = "needs-restarting -r" ] && cat "$OUT"; exit 1`, dnf4Needed)
	c.tool = ""
	if exit, text := c.run(); exit != 0 || c.get() != ours {
		t.Errorf("with dnf: exit status %d\n%s", exit, text)
	}
	c.stub("dnf5", `[ "$*" = "needs-restarting --json" ] && echo '{"reboot_required":false}'`)
	if exit, text := c.run(); exit != 0 || c.get() != "" {
		t.Errorf("with dnf5: exit status %d\n%s", exit, text)
	}
}

// TestRebootCheckCannotWrite checks that a sentinel that cannot be created is an error.
func TestRebootCheckCannotWrite(t *testing.T) {
	c := newRebootCheck(t, "dnf", `cat "$OUT"; exit 1`, dnf4Needed)
	c.sentinel = filepath.Join(c.dir, "missing", "reboot-required")
	if exit, text := c.run(); exit != 1 || !strings.Contains(text, "cannot be created") {
		t.Errorf("exit status %d\n%s", exit, text)
	}
}

// A rebootCheck is the script with a directory of its own and one tool.
type rebootCheck struct {
	t              *testing.T
	dir, tool, out string
	sentinel       string
}

func newRebootCheck(t *testing.T, tool, stub, out string) *rebootCheck {
	dir := t.TempDir()
	c := &rebootCheck{t: t, dir: dir, tool: tool, out: filepath.Join(dir, "out"), sentinel: filepath.Join(dir, "reboot-required")}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.WriteFile(c.out, []byte(out), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat", "grep", "head", "rm", "tail", "timeout", "tr", "sleep"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if stub != "" {
		c.stub(tool, stub)
	}
	return c
}

func (c *rebootCheck) stub(tool, script string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, "bin", tool), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rebootCheck) put(content string) {
	c.t.Helper()
	err := os.Remove(c.sentinel)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if content != "" {
		err = errors.Join(err, os.WriteFile(c.sentinel, []byte(content), 0o644))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *rebootCheck) get() string {
	c.t.Helper()
	data, err := os.ReadFile(c.sentinel)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return string(data)
}

// run runs the script, with a second instead of two minutes for the tool.
func (c *rebootCheck) run() (exit int, text string) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "/bin/sh", "examples/reboot-check/reboot-check.sh")
	cmd.Env = []string{"PATH=" + filepath.Join(c.dir, "bin"), "OUT=" + c.out, "REBOOT_SENTINEL=" + c.sentinel, "REBOOT_TOOL=" + c.tool, "REBOOT_TIMEOUT=1", "LC_ALL=de_DE.UTF-8"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		c.t.Fatalf("%v\n%s", err, out.String())
	}
	return cmd.ProcessState.ExitCode(), out.String()
}
