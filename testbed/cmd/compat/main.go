// Command compat runs the main parts of the test bed on several minors of Kubernetes, and prints a table of what passed, for README.md.
//
//	go run ./cmd/compat MINOR…
//
// A MINOR is a directory of controlplane/binaries such as 1.36, or "newest". Each one takes some 20 minutes, and 7 more the first time. What
// the parts print goes to standard error.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// part is one column of the table. Its command runs in the test bed's module.
type part struct {
	title   string
	command []string
}

var parts = []part{
	{"`make demo`", []string{"go", "run", "./cmd/demo"}},
	{"installation, recipes", []string{"go", "test", "-count", "1", "-timeout", "30m", "./install"}},
	{"identities", []string{"go", "test", "-count", "1", "-timeout", "30m", "./identity"}},
	{"real hosts roll", []string{"go", "test", "-v", "-count", "1", "-timeout", "30m", "-run", "TestFleet/(Install|NobodyCoordinates|RollsThroughAnUpdate)$", "./e2e"}},
}

// newest is the minor of controlplane/binaries itself.
const newest = "newest"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, `compat: expected the minors of Kubernetes to run on, such as "newest 1.36"`)
		os.Exit(64)
	}
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
}

// run prints the table. The error says that a part failed, or that ctx has ended.
func run(ctx context.Context, minors []string) error {
	versions := make([]string, len(minors))
	for i, minor := range minors {
		if minor == newest {
			minor = ""
		}
		v, err := controlplane.Version(ctx, minor)
		if err != nil {
			return err
		}
		versions[i], minors[i] = v, minor
	}
	var table strings.Builder
	head, rule := "| Kubernetes |", "| --- |"
	for _, p := range parts {
		head, rule = head+" "+p.title+" |", rule+" --- |"
	}
	fmt.Fprintf(&table, "%s\n%s\n", head, rule)
	failed := 0
	for i, minor := range minors {
		fmt.Fprintf(&table, "| %s |", strings.TrimPrefix(versions[i], "v"))
		for _, p := range parts {
			fmt.Fprintf(os.Stderr, "compat: Kubernetes %s: %s: %s\n", versions[i], p.title, strings.Join(p.command, " "))
			began := time.Now()
			result := p.run(ctx, minor)
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted; until then:\n%s", table.String())
			}
			if result == broken {
				failed++
			}
			fmt.Fprintf(os.Stderr, "compat: Kubernetes %s: %s: %s after %s\n", versions[i], p.title, result, time.Since(began).Round(time.Second))
			fmt.Fprintf(&table, " %s |", result)
		}
		table.WriteString("\n")
	}
	fmt.Print(table.String())
	if failed > 0 {
		return fmt.Errorf("%d parts failed", failed)
	}
	return nil
}

const (
	passed  = "passed"
	broken  = "failed"
	leftOut = "not run"
)

// run runs a part on a minor.
func (p part) run(ctx context.Context, minor string) string {
	cmd := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	cmd.Env = append(os.Environ(), controlplane.Minor+"="+minor)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stderr, &said), os.Stderr
	// Each part removes what it has made when it is interrupted.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	switch err := cmd.Run(); {
	case err != nil:
		return broken
	case strings.Contains(said.String(), "LEFT OUT: installation, roll-out"):
		return leftOut // there are no real hosts on this machine
	}
	return passed
}
