package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// epoch is the only term of a simulation.
const epoch = "simulated"

// sim is one run.
type sim struct {
	*Fleet
	decide func(rollout.Snapshot) rollout.Outcome
	now    time.Time
	nodes  []turn.Node // in the order of hosts
	hosts  []*host
	at     map[string]*host // by the node's name
	gates  map[string]rollout.Gate

	queue           events
	events, planned int
	// todo lists the hosts with something new to see. dirty is set if the leader has something new to see.
	todo  []*host
	dirty bool
	again time.Time // the latest time of the leader's next decision
	turns int

	watch
	book
}

// event is something that happens at a moment of the run.
type event struct {
	at time.Time
	no int // orders events at the same moment by the time of planning
	do func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].no < q[j].no
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

// Run rolls the fleet until no events are left, or until its limit. It returns an error if a limit was broken, with the
// moment and next to the Report so far, or if ctx ended.
func Run(ctx context.Context, f *Fleet) (*Report, error) {
	return run(ctx, f, rollout.Decide)
}

func run(ctx context.Context, f *Fleet, decide func(rollout.Snapshot) rollout.Outcome) (*Report, error) {
	s := &sim{Fleet: f, decide: decide, now: f.Start, at: map[string]*host{}, gates: map[string]rollout.Gate{}}
	s.tally = make([]tally, len(f.Policies))
	s.makeHosts()
	s.expect()
	s.makeGates()
	s.dirty = true
	end := f.Start.Add(f.Limit.Duration)
	for {
		if err := s.instant(ctx); err != nil {
			return s.report(), err
		}
		next := s.next()
		if next.IsZero() || next.After(end) {
			return s.report(), nil
		}
		s.now = next
		for len(s.queue) > 0 && !s.queue[0].at.After(s.now) {
			s.events++
			heap.Pop(&s.queue).(event).do()
		}
		if !s.again.IsZero() && !s.again.After(s.now) {
			s.dirty = true
		}
	}
}

// next returns the time of the next event, or the zero time if there is none.
func (s *sim) next() time.Time {
	next := s.again
	if len(s.queue) > 0 && (next.IsZero() || s.queue[0].at.Before(next)) {
		next = s.queue[0].at
	}
	return next
}

// atRest limits the decisions in one instant: each state of a turn needs one.
const atRest = 100

// instant lets the leader and the hosts act until none has anything to do at this moment.
func (s *sim) instant(ctx context.Context) error {
	for range atRest {
		if err := ctx.Err(); err != nil {
			return err
		}
		for len(s.todo) > 0 {
			h := s.todo[0]
			s.todo = s.todo[1:]
			if err := s.act(h); err != nil {
				return err
			}
		}
		if s.broken != nil {
			return s.broken
		}
		if !s.dirty {
			return nil
		}
		s.dirty = false
		if err := s.lead(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: the fleet does not become idle", s.stamp())
}

// stamp returns the current time for messages.
func (s *sim) stamp() string { return s.now.UTC().Format(time.RFC3339) }

// in schedules an event after d. A time between two multiples of the resolution is rounded to one of them at random, so
// that the mean stays correct.
func (s *sim) in(d time.Duration, dice *rand.Rand, do func()) {
	grain := s.Resolution.Duration
	after := s.now.Add(d).Sub(s.Start)
	whole := after.Truncate(grain)
	if part := after - whole; part > 0 && dice.Float64() < float64(part)/float64(grain) {
		whole += grain
	}
	s.plan(s.Start.Add(max(whole, s.now.Sub(s.Start))), do)
}

// plan schedules an event at a time that is not before now.
func (s *sim) plan(at time.Time, do func()) {
	s.planned++
	heap.Push(&s.queue, event{at, s.planned, do})
}

// coarse returns the first multiple of the resolution at or after t.
func (s *sim) coarse(t time.Time) time.Time {
	grain := s.Resolution.Duration
	after := t.Sub(s.Start)
	return s.Start.Add((after + grain - 1).Truncate(grain))
}

// makeGates sets all gates as they are at the start, and schedules when they close and open.
func (s *sim) makeGates() {
	for i := range s.Policies {
		for _, g := range s.Policies[i].Gates {
			s.setGate(s.Policies[i].Name, g.Name)
		}
	}
	for _, g := range s.Gates {
		for _, c := range g.Closed {
			set := func() { s.setGate(g.Policy, g.Gate) }
			s.plan(c.From.in(s.Start), set)
			if c.To.said() {
				s.plan(c.To.in(s.Start), set)
			}
		}
	}
}

// setGate opens or closes the gate, as the fleet's file says for now. Intervals may touch and overlap.
func (s *sim) setGate(policy, name string) {
	gate := rollout.Gate{Open: true}
	for _, g := range s.Gates {
		for _, c := range g.Closed {
			if g.Policy == policy && g.Gate == name && c.holds(s.now, s.Start) {
				gate = rollout.Gate{Detail: cmp.Or(c.Because, "the fleet's file closes it")}
			}
		}
	}
	s.gates[rollout.GateKey(policy, name)], s.dirty = gate, true
}
