package virtual

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// TestClock checks that a turn that waits in its drain is called overdue neither too early nor too late (the rule Overdue), among stops,
// pauses, changes of leaders, a Lease that someone has blanked, and refused writes of a leader.
func TestClock(t *testing.T) {
	first, runs := rig.Number(t, "LOCKKEEPER_SEED", 1), rig.Number(t, "LOCKKEEPER_RUNS", 12)
	if rig.Number(t, "LOCKKEEPER_SOAK", 0) > 0 {
		runs = 400
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0x636c6f636b))
			timeout, onTimeout := time.Duration(5+r.IntN(5))*time.Minute, v1alpha1.OnTimeoutWait
			if r.IntN(3) == 0 {
				onTimeout = v1alpha1.OnTimeoutAbort
			}
			inBubble(t, Options{Hosts: 3, Candidates: 2, Workloads: 1, Lag: 20 * time.Second, Late: 80 * time.Second, Plan: plan(t, stopsOfClocks(r)), Policy: func(s *v1alpha1.DisruptionPolicySpec) {
				s.Drain.Timeout.Duration, s.Drain.OnTimeout = timeout, onTimeout
				s.Rollout.MaxUnavailable = intstr.FromInt32(3) // a leader that crashes does not end the turn
				s.Rollout.BackoffMax.Duration, s.Rollout.MaxTurnsPerDay = time.Minute, 48
			}}, func(t *testing.T, f *Fleet) {
				f.BlockDrains("n3")
				time.Sleep(time.Minute) // until the pod runs
				f.Start()
				f.Stage("n3", "2.0.0")
				time.Sleep(time.Hour)
				f.Clean()
				if why := f.Arrive(2 * time.Hour); why != "" {
					t.Error(why)
				}
			})
		})
	}
}

// stopsOfClocks returns faults that stop the clock of the turn of n3, or that change what its leader knows about it.
func stopsOfClocks(r *rand.Rand) string {
	seconds := func(least, most int) time.Duration { return time.Duration(least+r.IntN(most-least)) * time.Second }
	leader := func() string { return fmt.Sprintf("n%d", 1+r.IntN(2)) }
	kinds := []func() string{
		func() string { return fmt.Sprintf("stop for=%v mode=annotation", seconds(20, 600)) },
		func() string { return fmt.Sprintf("stop for=%v mode=delete", seconds(20, 600)) },
		func() string { return fmt.Sprintf("intent n3 for=%v mode=paused", seconds(20, 900)) },
		func() string { return "kill " + leader() },
		func() string { return fmt.Sprintf("crash %s for=%v", leader(), seconds(30, 600)) },
		func() string { return "lease mode=blank" },
		func() string { return "lease mode=steal" },
	}
	var faults []string
	at := time.Minute
	for range 2 + r.IntN(3) {
		at += seconds(10, 200)
		faults = append(faults, fmt.Sprintf("%v %s", at, kinds[r.IntN(len(kinds))]()))
	}
	if r.IntN(3) == 0 { // for a minute, which is less than Late
		faults = append(faults, fmt.Sprintf("*#%d:coordinator,patch,nodes refuse mode=403 times=%d", 1+r.IntN(20), 1+r.IntN(2)))
	}
	slices.Sort(faults)
	return strings.Join(faults, "\n")
}
