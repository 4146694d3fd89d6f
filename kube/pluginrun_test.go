package kube

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestPluginSaysTooMuch checks that the output of a plugin is read to its end, but kept only up to a limit.
func TestPluginSaysTooMuch(t *testing.T) {
	const flood = "head -c 10485760 /dev/zero | tr '\\0' s; head -c 10485760 /dev/zero | tr '\\0' w >&2\n"
	says, words := &bounded{most: 1000}, &bounded{most: 100}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", flood)
	cmd.Stdout, cmd.Stderr = says, words
	must(t, cmd.Run())
	if got := string(says.Bytes()); got != strings.Repeat("s", 1000) {
		t.Errorf("%d bytes of the output are kept, expected the first 1000", len(got))
	}
	if got := words.String(); got != strings.Repeat("w", 100) {
		t.Errorf("%d bytes of the messages are kept, expected the first 100", len(got))
	}
	b := &bounded{most: 10}
	if n, err := io.Copy(b, strings.NewReader("0123456789abcdef")); n != 16 || err != nil || b.String() != "0123456789" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}

	p, _ := scripted(t, flood, nil)
	p.bound = time.Minute
	want := "credential plugin mint: what it printed (1048576 bytes) is not an ExecCredential: " + strings.Repeat("w", 300) + "…"
	if _, err := p.credential(t.Context()); err == nil || err.Error() != want {
		t.Errorf("%.200v\n\texpected %.200s", err, want)
	}
}

// TestPluginGivesAnExpiredCredential checks that a credential that is already expired counts as a failure with a pause.
func TestPluginGivesAnExpiredCredential(t *testing.T) {
	p, dir := scripted(t, "echo x >>runs\necho 'from the cache' >&2\n"+gives("t", `,"expirationTimestamp":"2020-01-01T00:00:00Z"`), nil)
	p.gap = time.Hour
	for range 5 {
		if _, err := p.credential(t.Context()); err == nil || err.Error() != "credential plugin mint: the credential that it provided has expired already: from the cache" {
			t.Error(err)
		}
	}
	if runs := read(t, dir+"/runs"); runs != "x\n" {
		t.Errorf("the plugin ran %d times within the pause", len(runs)/2)
	}
}

// TestPluginLeavesAProcess checks that child processes of a plugin end with it, and that its output is still used.
func TestPluginLeavesAProcess(t *testing.T) {
	for name, holds := range map[string]string{"apart": " </dev/null >/dev/null 2>&1", "at its output": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, dir := scripted(t, "sleep 300"+holds+" &\necho $! >child\n"+gives("s3cret", ""), nil)
			p.bound = time.Minute
			if m, err := p.credential(t.Context()); err != nil || m.token != "s3cret" {
				t.Errorf("%+v, %v", m, err)
			}
			child := strings.TrimSpace(read(t, dir+"/child"))
			// A zombie has no command line.
			for end := time.Now().Add(time.Minute); readIf("/proc/"+child+"/cmdline") != ""; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the child process still runs")
				}
			}
		})
	}
}

// readIf returns the text of a file, or "" if it does not exist.
func readIf(name string) string {
	text, _ := os.ReadFile(name)
	return string(text)
}
