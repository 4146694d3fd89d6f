package rig

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

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

// Number reads a number from the environment: LOCKKEEPER_SEED, LOCKKEEPER_SOAK (how many) and such. An empty or missing one is
// fallback; anything else that is not a number ends the test.
func Number(t *testing.T, name string, fallback uint64) uint64 {
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
