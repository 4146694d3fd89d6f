package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// leaderKillSeed and leaderKills are the settings of `make test`.
	leaderKillSeed, leaderKills = 20271, 4
	// restartDelay is RestartSec of lockkeeper.service.
	restartDelay = time.Second
	// takenOverWithin bounds a takeover. The Lease lasts for 30 s, so a takeover that waits for its end takes longer.
	takenOverWithin = 15 * time.Second
)

// TestKilledLeaders kills one leader after the other, at random moments of rollouts. The process that is started again in its place
// frees the Lease. The Lease has its default duration.
func TestKilledLeaders(t *testing.T) {
	t.Parallel()
	seed, kills := rig.Number(t, "LOCKKEEPER_SEED", leaderKillSeed), rig.Number(t, "LOCKKEEPER_SOAK", leaderKills)
	s := rig.Play(t, pool.Take(t), rig.Options{
		Policy: "rollout: {settle: 1s, maxTurnsPerDay: 48}",
		Fleet: simhost.FleetOptions{
			Hosts: 3, Coordinators: 2,
			Host: simhost.Options{
				Binary: leaderBinary, RestartDelay: restartDelay, DownTime: 100 * time.Millisecond,
				Config: func(c simhost.Config) {
					c.Set("lease", "duration", 30*time.Second)
					c.Set("lease", "renew_deadline", 20*time.Second)
					c.Set("lease", "retry_period", 5*time.Second)
				},
			},
		},
	})
	rng := rand.New(rand.NewPCG(seed, 0))
	var took []time.Duration
	seen := map[string]bool{} // the terms whose process was killed
	updates := -1             // the last one that was staged
	for uint64(len(took)) < kills {
		if update := len(took) / 4; update > updates {
			if updates >= 0 {
				s.Must(s.Fleet.WaitUpdated(s.Within(2*rig.Rolled), fmt.Sprintf("5.%d.0", updates)))
			}
			updates = update
			s.Must(s.Fleet.StageUpdate(fmt.Sprintf("5.%d.0", updates)))
		}
		epoch := s.Epoch()
		s.Eventually("a leader", func(context.Context) (bool, error) {
			epoch = s.Epoch()
			return epoch != "", nil
		})
		if seen[epoch] {
			t.Fatalf("the term %s continues after its process was killed", epoch)
		}
		leader := s.HostOf(epoch)
		// The fleet's state is what it happens to be after a random time.
		wait := time.NewTimer(time.Duration(rng.Int64N(int64(2 * time.Second))))
		<-wait.C
		if s.Epoch() != epoch {
			continue // its host has rebooted
		}
		boot, began := leader.BootID(), time.Now()
		if err := leader.Signal(syscall.SIGKILL); err != nil {
			continue // its host reboots
		}
		seen[epoch] = true
		s.EventuallyWithin(time.Minute, "another term after "+epoch, func(context.Context) (bool, error) {
			now := s.Epoch()
			return now != "" && now != epoch, nil
		})
		if leader.BootID() != boot {
			continue // it was killed while its host went down, and the Lease had to expire: in another boot no process knows that it is dead
		}
		took = append(took, time.Since(began))
		if last := took[len(took)-1]; last > takenOverWithin {
			t.Errorf("another term began %v after the leader %s was killed, expected at most %v", last, epoch, takenOverWithin)
		}
	}
	s.Must(s.Fleet.WaitUpdated(s.Within(2*rig.Rolled), fmt.Sprintf("5.%d.0", updates)))
	slices.Sort(took)
	at := func(q int) string {
		return took[min(len(took)-1, q*len(took)/100)].Round(10 * time.Millisecond).String()
	}
	t.Logf("killed leaders: seed %d, %d rounds, takeover: %s", seed, len(took),
		strings.Join([]string{"fastest " + at(0), "median " + at(50), "p90 " + at(90), "p99 " + at(99), "slowest " + at(100)}, ", "))
}
