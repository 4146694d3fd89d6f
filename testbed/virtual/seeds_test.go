package virtual

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q, expected a number", name, text)
	}
	return n
}

// TestSeeds runs fleets under faults made from seeds. No rule may be broken, and every fleet must arrive.
func TestSeeds(t *testing.T) {
	first, count := number(t, "LOCKKEEPER_SEED", 1), number(t, "LOCKKEEPER_RUNS", 20)
	began, faults, requests, reboots, took := time.Now(), 0, 0, 0, time.Duration(0)
	for seed := first; seed < first+count; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			o := scenario(seed)
			p := NewPlan(seed, o.shape(40*time.Minute, false))
			res := run(t, o, p, os.Getenv("LOCKKEEPER_LOG") != "")
			for _, n := range res.Faults {
				faults += n
			}
			requests, reboots, took = requests+res.Requests, reboots+res.Reboots, took+res.Took*time.Duration(o.Hosts)
			if res.Why == "" {
				return
			}
			t.Errorf("%s\n%s", res.Why, p)
			if os.Getenv("LOCKKEEPER_LOG") != "" {
				t.Log("\n" + strings.Join(res.log, "\n"))
				t.Log("\n" + res.trace.String())
			}
		})
	}
	real := time.Since(began)
	fmt.Printf("virtual: seeds %d to %d: %d faults (%.0f a minute), %d requests, %d reboots, %v of host time in %v\n",
		first, first+count-1, faults, float64(faults)/real.Minutes(), requests, reboots, took.Round(time.Minute), real.Round(time.Second))
}
