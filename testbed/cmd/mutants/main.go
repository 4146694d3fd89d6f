// Command mutants is `make mutants`: it runs gremlins, which breaks the pure packages in one place at a time, and reports how many of
// the broken packages fail their own unit tests. It fails if fewer than 97 % do, or if one that passes is not listed in
// equivalent.txt with the reason why nothing can tell it from the original.
//
// gremlins calls the go command, and finds this program in its place (gocommand.go). It knows neither Kubernetes nor lockkeeper.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is a package that is mutated.
type target struct {
	dir  string // in the repository
	only string // a regular expression for the files to mutate; empty means all that are written by hand
}

// targets lists the packages that decide something, the fastest first.
var targets = []target{
	{dir: "node/turn"},
	{dir: "api/v1alpha1"},
	{dir: "policy"},
	{dir: "node/step"},
	{dir: "drain", only: `^(schedule|select|classify)\.go$`},
	{dir: "cli/migrate"},
	{dir: "coordinator/forecast"},
	{dir: "coordinator/rollout"},
}

// leastPercent is how many of all mutants have to be killed, those in equivalent.txt included.
const leastPercent = 97

// operators are gremlins' flags for all of its operators.
var operators = strings.Fields(`--arithmetic-base --conditionals-boundary --conditionals-negation --invert-assignments --invert-bitwise
	--invert-bwassign --increment-decrement --invert-logical --invert-loopctrl --invert-negatives --remove-self-assignments`)

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(goCommand(os.Args[1:]))
	}
	cache := flag.String("cache", "", "a build cache to keep; without it, the build cache is removed at the end")
	root := flag.String("root", ".", "the repository")
	gremlins := flag.String("gremlins", "", "gremlins' executable")
	packages := flag.String("packages", "", "mutate only these, separated by spaces; a file of a package mutates only this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *root, *gremlins, *cache, strings.Fields(*packages)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run mutates the packages, or all targets, and prints a line for each.
func run(ctx context.Context, root, gremlins, cache string, packages []string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	chosen, err := choose(packages)
	if err != nil {
		return err
	}
	known, err := readEquivalent(filepath.Join(root, "testbed/cmd/mutants/equivalent.txt"))
	if err != nil {
		return err
	}
	bin, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	env, err := environment(bin, cmp.Or(cache, filepath.Join(bin, "cache")))
	if err != nil {
		return err
	}
	var total score
	var wrong []string
	for _, t := range chosen {
		started := time.Now()
		found, err := mutate(ctx, root, gremlins, env, known, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.dir, err)
		}
		s := count(found)
		fmt.Printf("%-22s %s, %s\n", t.dir, s, time.Since(started).Round(time.Second))
		total = score{total.killed + s.killed, total.lived + s.lived, total.invalid + s.invalid}
		unlisted, stale := compare(t, found, known)
		if wrong = append(wrong, stale...); unlisted > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d mutants live, and equivalent.txt does not say why", t.dir, unlisted))
		}
	}
	fmt.Printf("%-22s %s\n", "all", total)
	if total.percent() < leastPercent {
		wrong = append(wrong, fmt.Sprintf("%.1f %% are killed, and %d %% have to be", total.percent(), leastPercent))
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\nmutants: "))
	}
	return nil
}

// choose returns the targets that were asked for.
func choose(packages []string) ([]target, error) {
	if len(packages) == 0 {
		return targets, nil
	}
	var chosen []target
	for _, p := range packages {
		i := slices.IndexFunc(targets, func(t target) bool { return t.dir == strings.TrimSuffix(p, "/") || t.dir == filepath.Dir(p) })
		if i < 0 {
			return nil, fmt.Errorf("%s is not one of the packages that are mutated", p)
		}
		t := targets[i]
		if strings.HasSuffix(p, ".go") {
			t.only = "^" + regexp.QuoteMeta(filepath.Base(p)) + "$"
		}
		chosen = append(chosen, t)
	}
	return chosen, nil
}

// mutant is one change that gremlins made to the source.
type mutant struct {
	key    // what it is called in equivalent.txt
	status string
	line   int
}

// resultLine matches what gremlins prints of each mutant.
var resultLine = regexp.MustCompile(`^\s*([A-Z ]+) ([A-Z_]+) at (\S+):(\d+):(\d+)$`)

// mutate runs gremlins on one package and returns all mutants. It prints those that live, and are not known to, as they are found.
func mutate(ctx context.Context, root, gremlins string, env []string, known map[key]int, t target) ([]mutant, error) {
	// The real time limit is goCommand's.
	args := append([]string{"unleash", "--workers", strconv.Itoa(runtime.NumCPU()), "--timeout-coefficient", "1000"}, operators...)
	files, err := source(root, t.dir)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if strings.HasPrefix(name, "zz_") || t.only != "" && !regexp.MustCompile(t.only).MatchString(name) {
			args = append(args, "--exclude-files", "^"+regexp.QuoteMeta(name)+"$")
		}
	}
	// gremlins also mutates the packages below this one, which are not this one's business.
	args = append(args, "--exclude-files", "/", "./"+t.dir)
	cmd := exec.CommandContext(ctx, gremlins, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(env, packageVariable+"="+t.dir), os.Stderr
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, 10*time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var found []mutant
	for lines := bufio.NewScanner(out); lines.Scan(); {
		match := resultLine.FindStringSubmatch(lines.Text())
		if match == nil {
			if strings.Contains(lines.Text(), "FAIL") || strings.Contains(lines.Text(), "rror") {
				fmt.Println(lines.Text())
			}
			continue
		}
		m, err := newMutant(t.dir, files, match[1:])
		if err != nil {
			return nil, err
		}
		if found = append(found, m); m.alive() && known[m.key] == 0 {
			fmt.Printf("%s:%d: %s lives: %s\n", m.file, m.line, m.operator, m.text)
		}
	}
	return found, cmd.Wait()
}

// alive reports whether the tests pass with the mutant.
func (m mutant) alive() bool { return m.status != killed && m.status != notViable }

// What gremlins calls a mutant that fails the tests, and one that does not compile.
const (
	killed    = "KILLED"
	notViable = "NOT VIABLE"
)

// score counts mutants.
type score struct{ killed, lived, invalid int }

func count(found []mutant) score {
	var s score
	for _, m := range found {
		switch {
		case m.alive():
			s.lived++
		case m.status == killed:
			s.killed++
		default:
			s.invalid++
		}
	}
	return s
}

// percent returns how many of the mutants that compile were killed.
func (s score) percent() float64 { return 100 * float64(s.killed) / float64(max(1, s.killed+s.lived)) }

func (s score) String() string {
	return fmt.Sprintf("%5.1f %%: %4d of %4d mutants killed, %3d alive (%d more do not compile)", s.percent(), s.killed, s.killed+s.lived, s.lived, s.invalid)
}
