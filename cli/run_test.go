//go:build linux && !noagent

package cli

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
)

// TestLimitRuntime checks how many CPUs a host and the leaders of a small and a large fleet use, and that an admin who sets the
// variables of Go's runtime has the last word.
func TestLimitRuntime(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(0), debug.SetGCPercent(100)
	defer func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}()
	leaders := min(2, runtime.NumCPU())
	for _, c := range []struct {
		gogc, gomaxprocs                 string
		percent, start, small, large, no int
	}{
		{"", "", 50, 1, 1, leaders, 1},
		{"200", "3", 100, 3, 3, 3, 3}, // the runtime itself has read them, when the process began
	} {
		t.Setenv("GOGC", c.gogc)
		t.Setenv("GOMAXPROCS", c.gomaxprocs)
		runtime.GOMAXPROCS(3)
		debug.SetGCPercent(100)
		limitRuntime()
		got := []int{debug.SetGCPercent(100), runtime.GOMAXPROCS(0)}
		for _, nodes := range []int{999, 1000, 0} {
			limitProcs(nodes)
			got = append(got, runtime.GOMAXPROCS(0))
		}
		if want := []int{c.percent, c.start, c.small, c.large, c.no}; !slices.Equal(got, want) {
			t.Errorf("GOGC=%q GOMAXPROCS=%q: got %d, expected %d: the GC percent, the CPUs at the start, of the leader of 999 and of 1000 Nodes, and when it leads no more",
				c.gogc, c.gomaxprocs, got, want)
		}
	}
}
