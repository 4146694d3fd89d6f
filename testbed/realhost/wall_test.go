package realhost

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestWarningsReachTerminalsOutOfTheSandbox checks, under a real systemd, that the sandbox of the packaged unit lets
// lockkeeper write its warning to the terminal of another user. The unit may only write, and only if that user allows
// messages.
func TestWarningsReachTerminalsOutOfTheSandbox(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/lockkeeper.service")
	must(t, err)
	_, sandbox, found := strings.Cut(string(unit), "# The sandbox.")
	sandbox, _, ended := strings.Cut(sandbox, "[Install]")
	if !found || !ended || !strings.Contains(sandbox, "DevicePolicy=") {
		t.Fatal("the unit's sandbox was not found")
	}
	h := start(t, "wall-", 1)[0]
	shell := func(script string) string {
		t.Helper()
		out, err := h.Exec(soon(t), "sh", "-c", script)
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return out
	}
	must(t, h.WriteFile(soon(t), "/etc/systemd/system/sandboxed.service",
		[]byte("[Service]\nType=oneshot\nExecStart=/bin/sh -e /etc/sandboxed.sh\n#"+sandbox), 0o644))
	shell("systemctl daemon-reload")
	// This is the terminal of another user. All its output goes to a file.
	shell(`systemd-run --quiet --unit=somebody --uid=nobody script -q -f -c 'tty; sleep 600' /tmp/shown`)
	words := strings.Fields(shell(`for i in $(seq 600); do grep -o '/dev/pts/[0-9]*' /tmp/shown && exit; sleep 0.1; done; exit 1`))
	tty := words[len(words)-1]
	t.Log(shell("ls -l " + tty))
	sandboxed := func(script string) error {
		must(t, h.WriteFile(soon(t), "/etc/sandboxed.sh", []byte(script+"\n"), 0o644))
		_, err := h.Exec(soon(t), "systemctl", "start", "sandboxed.service")
		if err != nil {
			journal, journalErr := h.Journal(soon(t), "sandboxed.service")
			err = errors.Join(fmt.Errorf("%w\n%s", err, journal), journalErr)
		}
		return err
	}
	must(t, sandboxed("echo you are warned >"+tty))
	shell(`for i in $(seq 600); do grep -q 'you are warned' /tmp/shown && exit; sleep 0.1; done; cat /tmp/shown; exit 1`)
	if sandboxed("head -c1 "+tty) == nil {
		t.Error("the unit may read what the user types")
	}
	shell("chmod 0600 " + tty)
	if sandboxed("echo and again >"+tty) == nil {
		t.Error("the unit may write to a terminal whose owner refuses messages")
	}
}
