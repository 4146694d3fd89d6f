package coordinator

import (
	"testing"
	"time"
)

// TestRests has decisions that take as long as given, and begin as soon as they may, or after the time for which the loop has waited
// for something else, if that is longer.
func TestRests(t *testing.T) {
	type decision struct{ waited, took, want time.Duration } // all ms
	for name, c := range map[string][]decision{
		"one":                                   {{0, 20, -80}},
		"one that takes long":                   {{0, 150, 50}},
		"one that takes longer than any pause":  {{0, 500, 100}, {0, 500, 100}},
		"in a row, a tenth of a second is lent": {{0, 40, -60}, {0, 40, -20}, {0, 40, 20}, {0, 40, 40}, {0, 40, 40}},
		"what it waited for counts":             {{0, 40, -60}, {10, 40, -30}, {20, 40, -10}, {40, 40, -10}, {40, 40, -10}, {100, 40, -60}},
		"what it waited for is not saved":       {{0, 40, -60}, {5000, 40, -60}, {0, 40, -20}},
		"after a pause that it waited out":      {{0, 150, 50}, {70, 20, 0}},
	} {
		var r rests
		now := time.Unix(1e9, 0)
		var pause time.Duration
		for i, d := range c {
			began := now.Add(max(pause, d.waited*time.Millisecond, 0))
			now = began.Add(d.took * time.Millisecond)
			if pause = r.after(began, now); pause != d.want*time.Millisecond {
				t.Errorf("%s: pauses %v after decision %d, expected %v", name, pause, i, d.want*time.Millisecond)
			}
		}
	}
}
