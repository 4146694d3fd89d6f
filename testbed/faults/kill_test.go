package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// TestEveryClassIsSeen plays the scenarios without a kill. Each write must have a class, and each class must occur in
// the scenario that the table names.
func TestEveryClassIsSeen(t *testing.T) {
	t.Parallel()
	f := newKillFleet(t)
	for _, s := range scenarios {
		f.leads()
		f.seen()
		f.run(s, nil)
		seen := f.seen()
		t.Logf("%s: %v", s.name, seen)
		for _, c := range classes {
			if c.in == s && seen[c.name] == 0 {
				t.Errorf("%s: no write of the class %q", s.name, c.name)
			}
		}
	}
}

// side is how many fleets share the points.
const side = 2

// TestKillAtEveryWrite kills the writer of one write in each turn. A soak run (LOCKKEEPER_SOAK) visits every point.
// Otherwise the test visits a sixth of them, selected by LOCKKEEPER_SEED, and always those where a commit took effect
// and its writer does not know.
func TestKillAtEveryWrite(t *testing.T) {
	t.Parallel()
	seed := rig.Number(t, "LOCKKEEPER_SEED", killSeed)
	t.Logf("LOCKKEEPER_SEED=%d", seed)
	points, all := choose(rand.New(rand.NewPCG(seed, 0)), os.Getenv("LOCKKEEPER_SOAK") != "")
	begin := time.Now()
	var visited atomic.Int64
	for i := range side {
		t.Run(fmt.Sprint("fleet-", i+1), func(t *testing.T) {
			t.Parallel()
			f := newKillFleet(t)
			for ; i < len(points); i += side {
				f.visit(t, points[i], fmt.Sprintf("%d of %d", i+1, len(points)), seed)
				visited.Add(1)
			}
		})
	}
	t.Cleanup(func() { // runs after the referees' verdicts
		if n := visited.Load(); !t.Failed() && n == int64(len(points)) {
			fmt.Printf("kill points: seed %d, %d of %d visited in %s, %d turns, 0 violations\n",
				seed, n, all, time.Since(begin).Round(time.Second), n)
		}
	})
}

// visit plays the scenario that leads to a point, and kills there.
func (f *killFleet) visit(t *testing.T, p target, which string, seed uint64) {
	t.Helper()
	passed := t.Run(p.String(), func(t *testing.T) {
		f.T = t
		t.Logf("%s, in %s", which, p.in.name)
		f.leads()
		f.run(p.in, &p.point)
	})
	if f.T = t; !passed {
		t.Fatalf("killed at %s; LOCKKEEPER_SEED=%d", p.point, seed)
	}
}

// target is a point with the scenario that leads to it.
type target struct {
	point
	in *scenario
}

// choose returns the points to visit, in random order, and the number of all points.
func choose(rng *rand.Rand, every bool) (chosen []target, all int) {
	var rest []target
	for _, c := range classes {
		for _, m := range moments {
			all++
			if p := (target{point{c.name, m}, c.in}); every || c.commits && m == unanswered {
				chosen = append(chosen, p)
			} else {
				rest = append(rest, p)
			}
		}
	}
	rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	chosen = append(chosen, rest[:max(0, min(len(rest), (all+5)/6-len(chosen)))]...)
	rng.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return chosen, all
}

// killSeed selects the sample of `make test`. It is constant, so that a new failure is caused by the change under test.
const killSeed = 20261121
