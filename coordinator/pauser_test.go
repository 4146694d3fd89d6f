package coordinator

import (
	"testing"
	"time"
)

// TestPauser checks the pauses after decisions. Each decision begins after the pause, or after the time for which the loop waited for
// something else, if that is longer.
func TestPauser(t *testing.T) {
	type decision struct{ waited, took, want time.Duration } // ms
	for name, c := range map[string][]decision{
		"one":                              {{0, 20, -80}},
		"one that takes long":              {{0, 150, 50}},
		"in a row":                         {{0, 40, -60}, {0, 40, -20}, {0, 40, 20}, {0, 40, 40}, {0, 40, 40}},
		"long ones in a row":               {{0, 500, 400}, {0, 500, 500}, {0, 500, 500}},
		"some that take too long":          {{0, 5000, 1000}, {0, 5000, 1000}},
		"it waited for something else":     {{0, 40, -60}, {10, 40, -30}, {20, 40, -10}, {40, 40, -10}, {40, 40, -10}, {100, 40, -60}},
		"it waited longer than it decided": {{0, 40, -60}, {5000, 40, -60}, {0, 40, -20}},
		"it waited out the pause":          {{0, 150, 50}, {70, 20, 0}},
	} {
		var p pauser
		now := time.Unix(1e9, 0)
		var pause time.Duration
		for i, d := range c {
			began := now.Add(max(pause, d.waited*time.Millisecond, 0))
			now = began.Add(d.took * time.Millisecond)
			if pause = p.after(began, now); pause != d.want*time.Millisecond {
				t.Errorf("%s: a pause of %v after decision %d, expected %v", name, pause, i, d.want*time.Millisecond)
			}
		}
	}
}

// TestHalfACPU checks that a fleet that changes all the time costs at most half a CPU, however long a decision about it takes.
func TestHalfACPU(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 30 * time.Millisecond, 99 * time.Millisecond, 101 * time.Millisecond, time.Second} {
		var p pauser
		start := time.Unix(1e9, 0)
		now, decided := start, time.Duration(0)
		for now.Sub(start) < time.Hour {
			began := now
			now = now.Add(took)
			decided += took
			now = now.Add(max(p.after(began, now), 0))
		}
		if most := now.Sub(start)/2 + withoutPause; decided > most {
			t.Errorf("decisions of %v: decided for %v, expected at most %v", took, decided, most)
		}
	}
}
