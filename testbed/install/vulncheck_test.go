package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVulncheck runs `make vulncheck` with a go command that answers for govulncheck. A check that was skipped must not look
// like one that passed, and a finding must fail even if the other module cannot be checked.
func TestVulncheck(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	const top = "../.."
	const root, testbed = "lockkeeper.dev/lockkeeper", "lockkeeper.dev/lockkeeper/testbed"
	checked := " was checked: it calls nothing with a known vulnerability"
	for name, c := range map[string]struct {
		// Exit statuses: of questions to the database, one after the other, and of the check of each module.
		database       []int
		root, testbed  int
		fails          bool
		says, saysNone []string
	}{
		"nothing found": {database: []int{0, 0}, says: []string{root + checked, testbed + checked}, saysNone: []string{"SKIPPED", "FAILED"}},
		"no network": {database: []int{1, 1}, says: []string{"SKIPPED: " + root + " was not checked", "SKIPPED: " + testbed + " was not checked", "no such host"},
			saysNone: []string{"was checked", "FAILED"}},
		"found in the root module": {database: []int{0, 0}, root: 3, fails: true, says: []string{"FAILED: " + root + " calls", testbed + checked}},
		"found in the testbed":     {database: []int{0, 0}, testbed: 3, fails: true, says: []string{root + checked, "FAILED: " + testbed + " calls"}},
		"found, then the network is gone": {database: []int{0, 1}, root: 3, fails: true,
			says: []string{"FAILED: " + root + " calls", "SKIPPED: " + testbed}, saysNone: []string{"was checked"}},
		"the network goes during the check": {database: []int{0, 1, 1}, root: 1,
			says: []string{"SKIPPED: " + root, "SKIPPED: " + testbed}, saysNone: []string{"was checked", "FAILED"}},
		"the check itself fails": {database: []int{0, 0, 0}, root: 1, fails: true,
			says: []string{"FAILED: " + root + " could not be checked: govulncheck ended with status 1", testbed + checked}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			answers := strings.Trim(fmt.Sprint(c.database), "[]")
			script := fmt.Sprintf(`#!/bin/sh
module=%[1]s status=%[4]d
[ "$(basename "$PWD")" != testbed ] || module=%[2]s status=%[5]d
case "$*" in
"list -m") echo "$module" ;;
*govulncheck*-mode=query*)
	asked=$(cat %[3]s/asked 2>/dev/null || echo 0)
	echo $((asked + 1)) >%[3]s/asked
	set -- %[6]s
	shift "$asked"
	[ "$1" = 0 ] || echo "dial tcp: lookup vuln.go.dev: no such host" >&2
	exit "$1" ;;
*govulncheck*./...) exit $status ;;
esac
`, root, testbed, dir, c.root, c.testbed, answers)
			fake := filepath.Join(dir, "go")
			if err := os.WriteFile(fake, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "vulncheck", "GO="+fake)
			cmd.Dir = top
			cmd.Env = append(os.Environ(), "MAKEFLAGS=") // not those of a make that runs this test
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("make vulncheck: %v", err)
			}
			for _, want := range c.says {
				if !strings.Contains(string(out), want) {
					t.Errorf("it does not say %q", want)
				}
			}
			for _, not := range c.saysNone {
				if strings.Contains(string(out), not) {
					t.Errorf("it says %q", not)
				}
			}
			if t.Failed() {
				t.Logf("it said:\n%s", out)
			}
		})
	}
}
