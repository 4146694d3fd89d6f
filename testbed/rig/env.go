package rig

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Binary builds lockkeeper and returns its path, with the race detector if race is set, and in a soak run. With the detector, hosts take several
// times as much CPU time. TestMain calls it. Binary ends the process if the build fails. It sets GORACE for the commands that the tests run. If the
// environment variable LK is set, Binary returns that path instead, so that you can run the tests against a binary with a known bug.
func Binary(race bool) string {
	os.Setenv("GORACE", simhost.RaceOptions) // this process has read its own before
	if path := os.Getenv("LK"); path != "" {
		return path
	}
	build := simhost.BuildLockkeeper
	if race || os.Getenv("LOCKKEEPER_SOAK") != "" {
		build = simhost.BuildLockkeeperRace
	}
	path, err := build(context.Background(), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return path
}

// Number reads a number from the environment, such as LOCKKEEPER_SEED, or LOCKKEEPER_SOAK for a count. It returns fallback if the variable is empty
// or missing, and ends the test if the value is not a number.
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

// SoakOnly leaves the test to `make soak`, because package virtual covers in `make test` what it is for.
func SoakOnly(t *testing.T) {
	t.Helper()
	if os.Getenv("LOCKKEEPER_SOAK") == "" {
		t.Skip("only in make soak: in make test the virtual fleet does the same, at every request")
	}
}

// Sample plays about one in n of the tests that call it, which LOCKKEEPER_SEED chooses by their names. `make soak` plays all of them.
func Sample(t *testing.T, n uint32) {
	t.Helper()
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %s", Number(t, "LOCKKEEPER_SEED", 1), t.Name())
	if os.Getenv("LOCKKEEPER_SOAK") == "" && h.Sum32()%n != 0 {
		t.Skip("LOCKKEEPER_SEED does not choose it; make soak plays all of its kind")
	}
}
