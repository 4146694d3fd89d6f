//go:build linux && !noagent

package cli

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestLimitRuntime checks how many CPUs a host and a leader use, and that an admin who sets the variables of Go's runtime has
// the last word.
func TestLimitRuntime(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(0), debug.SetGCPercent(100)
	defer func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}()
	leaders := min(2, runtime.NumCPU())
	for _, c := range []struct {
		gogc, gomaxprocs                   string
		percent, start, leads, leadsNoMore int
	}{
		{"", "", 50, 1, leaders, 1},
		{"200", "3", 100, 3, 3, 3}, // the runtime itself has read them, when the process began
	} {
		t.Setenv("GOGC", c.gogc)
		t.Setenv("GOMAXPROCS", c.gomaxprocs)
		runtime.GOMAXPROCS(3)
		debug.SetGCPercent(100)
		limitRuntime()
		got := []int{debug.SetGCPercent(100), runtime.GOMAXPROCS(0), 0, 0}
		limitProcs(true)
		got[2] = runtime.GOMAXPROCS(0)
		limitProcs(false)
		got[3] = runtime.GOMAXPROCS(0)
		for i, want := range []int{c.percent, c.start, c.leads, c.leadsNoMore} {
			if got[i] != want {
				t.Errorf("GOGC=%q GOMAXPROCS=%q: got %d, expected GC percent %d, then %d CPUs, as a leader %d, and then %d",
					c.gogc, c.gomaxprocs, got, c.percent, c.start, c.leads, c.leadsNoMore)
				break
			}
		}
	}
}
