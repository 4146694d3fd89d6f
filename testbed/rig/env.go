package rig

import (
	"os"
	"strconv"
)

// Test is what is needed of a test here.
type Test interface {
	Helper()
	Fatalf(format string, args ...any)
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
