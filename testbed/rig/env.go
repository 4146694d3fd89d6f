package rig

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Test is the part of [testing.T] that this package uses.
type Test interface {
	Helper()
	Failed() bool
	Error(args ...any)
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Binary is for a TestMain: it builds lockkeeper with the race detector and returns its path. It ends the process if that fails. The
// variable LK names another build, to see the tests fail with a binary that has a bug.
func Binary() string {
	path := os.Getenv("LK")
	if path != "" {
		return path
	}
	path, err := simhost.BuildLockkeeperRace(context.Background(), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return path
}

// Number reads what a campaign is asked for from the environment: LOCKKEEPER_SEED, LOCKKEEPER_SOAK (how many) and such. An empty or
// missing one is fallback; one that is no number ends the test.
func Number(t Test, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, text, err)
	}
	return n
}
