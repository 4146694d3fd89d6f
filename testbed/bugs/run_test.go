package bugs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// goCommand runs the go command in a directory.
func goCommand(t *testing.T, dir string, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Minute
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// binaries are test binaries with all bugs, by the directory of their package.
type binaries struct {
	overlay string
	dir     string
	built   map[string]string
	passed  map[string]bool // by directory and test
}

// fleetDir is the package of the virtual fleet. Its campaigns get so many seeds to find a bug; LOCKKEEPER_RUNS is another number.
const fleetDir, fleetRuns = "testbed/virtual", "40"

// bound is how long the tests of a package may take.
const bound = 30 * time.Minute

// run runs a test of a package, or all, with a bug; -1 stands for no bug. out is "" if the tests pass.
func (b *binaries) run(t *testing.T, dir, test string, number int) (out string) {
	t.Helper()
	binary := b.built[dir]
	if binary == "" {
		at, name := root, "./"+dir
		if rest, ok := strings.CutPrefix(dir, "testbed/"); ok {
			at, name = filepath.Join(root, "testbed"), "./"+rest
		}
		binary = filepath.Join(b.dir, strings.ReplaceAll(dir, "/", "_")+".test")
		if out, err := goCommand(t, at, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+b.overlay, "-o", binary, name); err != nil {
			t.Fatalf("building the tests of %s: %v\n%s", dir, err, out)
		}
		b.built[dir] = binary
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.short", "-test.failfast", "-test.timeout", bound.String())
	cmd.Env = os.Environ()
	if dir == fleetDir {
		cmd.Env = append(cmd.Env, "LOCKKEEPER_SEED=1", "LOCKKEEPER_RUNS="+cmp.Or(os.Getenv("LOCKKEEPER_RUNS"), fleetRuns))
	}
	if test != "" {
		cmd.Args = append(cmd.Args, "-test.run", "^"+test+"$")
	}
	cmd.Dir = filepath.Join(root, dir)
	if cmd.WaitDelay = time.Minute; number >= 0 {
		cmd.Env = append(cmd.Env, switchName+"="+strconv.Itoa(number))
	}
	text, err := cmd.CombinedOutput()
	switch {
	case err == nil && strings.Contains(string(text), "no tests to run"):
		t.Fatalf("%s has no test %s", dir, test)
	case err == nil:
		return ""
	}
	return fmt.Sprintf("%v\n%s", err, text)
}

// broke is the rule that a seed of the virtual fleet broke.
var broke = regexp.MustCompile(`(?m)seeds_test.go:\d+: (.*)`)

var outcomes = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^--- FAIL: (\w+)`),
	regexp.MustCompile(`(?m)^\t+(Test\w+)\S* \(\S+\)$`), // a test that timed out
	regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)$`),
}

// finds runs the tests of a package with a bug, and returns which of them finds it, or "". Tests that fail without a bug find
// none.
func (b *binaries) finds(t *testing.T, dir, test string, number int) string {
	t.Helper()
	if key := dir + " " + test; !b.passed[key] {
		if out := b.run(t, dir, test, -1); out != "" {
			t.Errorf("without a bug, %s fails: %s", key, out)
			return ""
		}
		b.passed[key] = true
	}
	out := b.run(t, dir, test, number)
	if out == "" {
		return ""
	}
	for _, by := range outcomes {
		if m := by.FindStringSubmatch(out); m != nil {
			by := "./" + dir + " " + m[1]
			if m := broke.FindStringSubmatch(out); m != nil {
				by += ": " + m[1][:min(len(m[1]), 120)]
			}
			return by
		}
	}
	t.Errorf("the tests of %s did not run: %s", dir, out)
	return ""
}

// importers returns the packages of the product that import a package.
func importers(t *testing.T, dir string) []string {
	t.Helper()
	const module = "lockkeeper.dev/lockkeeper/"
	out, err := goCommand(t, root, "list", "-f", `{{.ImportPath}}: {{join .Imports " "}}`, "./...")
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	var all []string
	for line := range strings.Lines(out) {
		name, imports, _ := strings.Cut(line, ": ")
		if rest, ok := strings.CutPrefix(name, module); ok && slices.Contains(strings.Fields(imports), module+dir) {
			all = append(all, rest)
		}
	}
	return all
}

// TestBugs switches on one bug after the other, and fails for each that its test does not find.
func TestBugs(t *testing.T) {
	only, run := os.LookupEnv("LOCKKEEPER_BUGS")
	if !run {
		t.Skip("set LOCKKEEPER_BUGS to a part of the names of bugs, or to nothing for all: make bugs")
	}
	all := bugs(t)
	tests := binaries{plant(t, all), t.TempDir(), map[string]string{}, map[string]bool{}}
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	survivors, total := 0, 0
	for i, b := range all {
		if !strings.Contains(b.where+" "+b.name+" "+b.dir, only) {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, b.dir)); err != nil {
			t.Errorf("%s: %s: it cannot be run: %v", b.where, b.name, err)
			continue
		}
		total++
		began, dirs := time.Now(), []string{b.dir}
		if b.dir == "" {
			dir := filepath.Dir(b.file)
			dirs = append([]string{dir}, importers(t, dir)...)
		}
		by := ""
		for _, dir := range dirs {
			if by = tests.finds(t, dir, b.test, i); by != "" {
				break
			}
		}
		if by == "" {
			survivors++
			by = "SURVIVED"
			t.Errorf("%s: no test finds that %s", b.where, b.name)
		}
		fmt.Fprintf(rows, "%s\t%s\t%.0f s\n", b.name, by, time.Since(began).Seconds())
		t.Logf("%s: %s: %s", b.where, b.name, by)
	}
	if total == 0 {
		t.Fatalf("no bug's name contains %q", only)
	}
	rows.Flush()
	t.Logf("%d bugs, %d survived:\n%s", total, survivors, &table)
}
