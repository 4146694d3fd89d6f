package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBashCompletionRunsNothing completes a word that contains commands. It comes from the cluster: a user who can write
// grants could otherwise run commands as the user who presses the tab key.
func TestBashCompletionRunsNothing(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err) // make needs it too
	}
	dir := t.TempDir()
	const hostile = "backup$(touch${IFS}$RAN)`touch${IFS}$RAN`"
	stub := "#!/bin/sh\nprintf '%s\\t\\n' '" + hostile + "' backup other\n"
	if err := os.WriteFile(filepath.Join(dir, "lockkeeper"), []byte(stub), 0o700); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(dir, "ran")
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "-uec", `source completions/lockkeeper.bash
		COMP_WORDS=(lockkeeper confirm n1 b) COMP_CWORD=3; _lockkeeper; printf '%s\n' "${COMPREPLY[@]}"`)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "RAN="+ran)
	out, err := cmd.CombinedOutput()
	if want := hostile + "\nbackup"; err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%v, it offers\n%s\nexpected\n%s", err, out, want)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a command in the word was run")
	}
}
