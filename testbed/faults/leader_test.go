package faults

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// roundsSeed and defaultRounds are the settings of `make test`.
	roundsSeed, defaultRounds = 20265, 2
	// roundsPerFleet is how many rounds one fleet plays.
	roundsPerFleet = 10
)

// round is one rollout through the whole fleet, with its strokes.
type round struct {
	*leaderFleet
	stroke *stroke // the current one
	trap   *trap
	caught *faultproxy.Request
	old    *simhost.Host  // the leader that was taken away
	before string         // its term
	backup map[string]any // the spec of the Lease at that time, for strokes that restore it
	// The functions that release what is held back: the successor's writes, its view, and the proxies of the old
	// leader.
	slow, stale, cut, revived []func()
	cordoned                  []string
	staged                    map[string]bool                       // the hosts to update in this round
	counts                    struct{ cached, quorum atomic.Int32 } // lists of Nodes by a successor with an old view
}

// TestRounds plays random rounds in which leaders are taken away.
func TestRounds(t *testing.T) {
	t.Parallel()
	cp := pool.Take(t)
	seed, rounds := rig.Number(t, "LOCKKEEPER_SEED", roundsSeed), rig.Number(t, "LOCKKEEPER_SOAK", defaultRounds)
	first, last := uint64(0), rounds
	if only := rig.Number(t, "LOCKKEEPER_ROUND", 0); only > 0 { // from 1
		first, last = only-1, only
	}
	played, turns, violations, failed := 0, 0, 0, 0
	for first < last {
		until, started := min(last, first+roundsPerFleet), false
		passed := t.Run(fmt.Sprintf("rounds-%d-to-%d", first+1, until), func(t *testing.T) {
			f := newLeaderFleet(t, cp, leaderBinary, 1+int(first/roundsPerFleet%2))
			started = true
			defer func() {
				report := f.close()
				violations += report.Count()
				for _, n := range report.Turns {
					turns += n
				}
				if report.Count() > 0 {
					t.Errorf("the referee found %d violations", report.Count())
				}
			}()
			for first < until && !t.Failed() {
				strokes := composeRound(seed, first)
				first++
				begin := time.Now()
				t.Logf("ROUND %d of seed %d", first, seed)
				played++
				r := &round{leaderFleet: f}
				r.run(strokes)
				t.Logf("round %d took %v", first, time.Since(begin).Round(time.Millisecond))
			}
		})
		if !started {
			break // the next fleet would fail too
		}
		if !passed {
			failed++ // the next round uses a new fleet
		}
	}
	summary = fmt.Sprintf("rounds: seed %d, %d rounds, %d turns, %d violations, %d failed", seed, played, turns, violations, failed)
}

// composeRound composes the round with this number. It deals the kind of harm, the moment and the change of the Lease
// from decks that it shuffles again when they are empty, so that a few rounds contain all kinds. The rest is random.
func composeRound(seed, number uint64) (strokes []*stroke) {
	rng := rand.New(rand.NewPCG(seed, number))
	deal := func(deck, card, size uint64) int {
		return rand.New(rand.NewPCG(seed, 1<<63+deck<<32+card/size)).Perm(int(size))[card%size]
	}
	// Every other round has two strokes.
	for card := number + number/2; card < number+1+(number+1)/2; card++ {
		s := &stroke{
			how: how(deal(1, card, 4)), at: at(deal(2, card, 7)), nth: 1 + rng.IntN(3), lease: meddlings[deal(3, card, uint64(len(meddlings)))],
			slow: rng.IntN(3) == 0, stale: rng.IntN(3) == 0, cordon: rng.IntN(4) == 0, linger: rng.IntN(12),
		}
		// Not for a leader that is cut off: its writes would arrive while the Lease names its term, and would be
		// valid.
		s.revive = s.how == stopped && rng.IntN(3) == 0
		if s.how == stays && s.lease.do == nil {
			s.lease = meddlings[1+rng.IntN(len(meddlings)-1)]
		}
		strokes = append(strokes, s)
	}
	return strokes
}

// run plays the strokes during a rollout through the whole fleet, and waits for its end.
func (r *round) run(strokes []*stroke) {
	r.T.Helper()
	r.begin()
	defer r.release(&r.revived)
	defer r.back()
	for _, h := range r.Fleet.Hosts {
		r.stage(h.Name())
	}
	for _, s := range strokes {
		r.play(s)
	}
	r.finish()
}

// begin starts a round.
func (r *round) begin() {
	r.stroke, r.staged = &stroke{}, map[string]bool{}
	r.update++
}

// stage stages the round's update on some hosts.
func (r *round) stage(names ...string) {
	r.T.Helper()
	for _, name := range names {
		r.staged[name] = true
		r.Referee.WantMade(name)
		r.Must(r.Fleet.Host(name).StageUpdate(r.version()))
	}
}

// finish waits until every host is updated and back, and reads the referee's report.
func (r *round) finish() {
	r.T.Helper()
	late := time.Now().Add(recovered)
	tell := time.Now().Add(slow)
	var missing []string
	done := sees(recovered, func() bool {
		missing = nil
		for _, h := range r.Fleet.Hosts {
			if why := r.missing(h); why != "" {
				missing = append(missing, h.Name()+" "+why)
			}
		}
		if time.Now().After(tell) {
			tell = time.Now().Add(slow)
			r.T.Logf("still missing, %v left: %s", time.Until(late).Round(time.Second), strings.Join(missing, "; "))
		}
		return len(missing) == 0
	})
	if !done {
		r.T.Fatalf("%v: %v after the leader came back: %s", errPatience, recovered, strings.Join(missing, "; "))
	}
	r.until("a leader", func() bool { return r.HostOf(r.Epoch()) != nil })
	ctx, cancel := within(rig.Soon)
	defer cancel()
	r.Must(r.WaitWork(ctx))
	r.Sync()
}

// missing describes why a host is not yet updated and back, or returns "".
func (r *round) missing(h *simhost.Host) string {
	n := r.node(h.Name())
	switch {
	case h.BootID() == "":
		return "is down"
	case r.staged[h.Name()] != (h.Version() == r.version()) || n.State != v1alpha1.StateIdle || n.BootID != h.BootID() || !n.Ready || n.Unschedulable || n.Mark ||
		n.Wants != v1alpha1.WantsNothing || !n.HostReported() || n.Held != "" || len(n.Problems) > 0:
		return fmt.Sprintf("runs %s and is %s (held %q, ready %t, unschedulable %t, mark %t, wants %q, ack %s, problems %v), status %q",
			h.Version(), n.State, n.Held, n.Ready, n.Unschedulable, n.Mark, n.Wants, n.Ack, n.Problems, h.Notify().Status)
	}
	return ""
}
