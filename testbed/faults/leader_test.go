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
	// leaderDefaultSeed and defaultRounds are what `make test` runs.
	roundsSeed, defaultRounds = 20265, 5
	// leaderPerFleet is how many rounds one fleet goes through.
	roundsPerFleet = 10
)

// A round is one rollout through the whole fleet, and the strokes that meet it.
type round struct {
	*leaderFleet
	stroke *stroke // the present one
	trap   *trap
	caught *faultproxy.Request
	old    *simhost.Host  // the leader that is away
	before string         // its term
	backup map[string]any // the Lease's spec then, if it is to be put back
	// What is held: the successor's writes, what it sees, the old leader's wires.
	slow, stale, cut, revived []func()
	cordoned                  []string
	staged                    map[string]bool                       // the hosts that are to be updated in this round
	counts                    struct{ cached, quorum atomic.Int32 } // lists of Nodes by a successor with an old view
}

// TestRounds has rounds of the leader's absence, by chance.
func TestRounds(t *testing.T) {
	t.Parallel()
	cp := pool.Take(t)
	seed, rounds := rig.Number(t, "LOCKKEEPER_SEED", roundsSeed), rig.Number(t, "LOCKKEEPER_SOAK", defaultRounds)
	first, last := uint64(0), rounds
	if only := rig.Number(t, "LOCKKEEPER_ROUND", 0); only > 0 { // counted from 1
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
					t.Errorf("the referee saw %d violations", report.Count())
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
			break // the next fleet would not either
		}
		if !passed {
			failed++ // the next round gets a new fleet
		}
	}
	summary = fmt.Sprintf("rounds: seed %d, %d rounds, %d turns, %d violations, %d failed", seed, played, turns, violations, failed)
}

// leaderCompose makes the round of a number. What happens to the leader, when, and what a person does to the Lease, are dealt like cards from
// decks that are shuffled when they are used up, so that few rounds have all kinds; the rest is chance.
func composeRound(seed, number uint64) (strokes []*stroke) {
	rng := rand.New(rand.NewPCG(seed, number))
	deal := func(deck, card, size uint64) int {
		return rand.New(rand.NewPCG(seed, 1<<63+deck<<32+card/size)).Perm(int(size))[card%size]
	}
	// Every other round has two.
	for card := number + number/2; card < number+1+(number+1)/2; card++ {
		s := &stroke{
			how: how(deal(1, card, 4)), at: at(deal(2, card, 7)), nth: 1 + rng.IntN(3), lease: meddlings[deal(3, card, uint64(len(meddlings)))],
			slow: rng.IntN(3) == 0, stale: rng.IntN(3) == 0, cordon: rng.IntN(4) == 0, linger: rng.IntN(12),
		}
		// Not with one that is cut off: its writes would arrive while the Lease names their term, and be as good as new.
		s.revive = s.how == stopped && rng.IntN(3) == 0
		if s.how == stays && s.lease.do == nil {
			s.lease = meddlings[1+rng.IntN(len(meddlings)-1)]
		}
		strokes = append(strokes, s)
	}
	return strokes
}

// run plays the strokes in a rollout through the whole fleet, and waits for its end.
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

// begin begins a round.
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

// finish waits until every host is updated and back, and hears what the referee says.
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
			r.T.Logf("still, for %v at most: %s", time.Until(late).Round(time.Second), strings.Join(missing, "; "))
		}
		return len(missing) == 0
	})
	if !done {
		r.T.Fatalf("%v: %v after the leader came back: %s", errPatience, recovered, strings.Join(missing, "; "))
	}
	r.until("somebody to lead", func() bool { return r.HostOf(r.Epoch()) != nil })
	ctx, cancel := within(rig.Soon)
	defer cancel()
	r.Must(r.WaitWork(ctx))
	r.Sync()
}

// missing says what keeps a host from being updated and back, "" for nothing.
func (r *round) missing(h *simhost.Host) string {
	n := r.node(h.Name())
	switch {
	case h.BootID() == "":
		return "is down"
	case r.staged[h.Name()] != (h.Version() == r.version()) || n.State != v1alpha1.StateIdle || n.BootID != h.BootID() || !n.Ready || n.Unschedulable || n.Mark ||
		n.Wants != v1alpha1.WantsNothing || !n.HostReported() || n.Held != "" || len(n.Problems) > 0:
		return fmt.Sprintf("runs %s and is %s (held %q, ready %t, unschedulable %t, mark %t, wants %q, ack %s, problems %v), and says %q",
			h.Version(), n.State, n.Held, n.Ready, n.Unschedulable, n.Mark, n.Wants, n.Ack, n.Problems, h.Notify().Status)
	}
	return ""
}
