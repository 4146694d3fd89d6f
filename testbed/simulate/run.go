package simulate

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	labelHostname     = corev1.LabelHostname
	labelZone         = corev1.LabelTopologyZone
	labelControlPlane = turn.LabelControlPlane

	// epoch is the one term of a simulation.
	epoch = "simulated"
)

// sim is one run.
type sim struct {
	*Fleet
	decide func(rollout.Snapshot) rollout.Outcome
	now    time.Time
	nodes  []turn.Node // in the order of hosts
	hosts  []*host
	at     map[string]*host // by node's name
	gates  map[string]rollout.Gate
	dice   *rand.Rand // what belongs to no host

	queue           events
	events, planned int
	// todo are the hosts that have something to see; dirty says that the leader
	// has.
	todo  []*host
	dirty bool
	again time.Time // when the leader wants to decide at the latest
	turns int

	watch
	book
}

// event is something that happens at a moment.
type event struct {
	at time.Time
	no int // of two at one moment the one that was planned first
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

// Run rolls the fleet until nothing is left to happen, or its limit. The error
// is a promise that was broken, with the moment, next to the Report of what
// happened until then; or ctx's.
func Run(ctx context.Context, f *Fleet) (*Report, error) {
	return run(ctx, f, rollout.Decide)
}

func run(ctx context.Context, f *Fleet, decide func(rollout.Snapshot) rollout.Outcome) (*Report, error) {
	s := &sim{
		Fleet: f, decide: decide, now: f.Start, at: map[string]*host{}, gates: map[string]rollout.Gate{},
		dice: rand.New(rand.NewPCG(f.Seed, 0)),
	}
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

// next is the moment at which something happens next; the zero time is never.
func (s *sim) next() time.Time {
	next := s.again
	if len(s.queue) > 0 && (next.IsZero() || s.queue[0].at.Before(next)) {
		next = s.queue[0].at
	}
	return next
}

// atRest bounds the decisions of one instant: each state of a turn takes one.
const atRest = 100

// instant lets everyone act until no one has anything to do at this moment.
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
	return fmt.Errorf("%s: the fleet never comes to rest", s.stamp())
}

// stamp is the moment for messages.
func (s *sim) stamp() string { return s.now.UTC().Format(time.RFC3339) }

// in plans something for d from now, on the grain of time: a moment between two
// grains falls on one of them by chance, so that the mean stays.
func (s *sim) in(d time.Duration, dice *rand.Rand, do func()) {
	grain := s.Resolution.Duration
	after := s.now.Add(d).Sub(s.Start)
	whole := after.Truncate(grain)
	if part := after - whole; part > 0 && dice.Float64() < float64(part)/float64(grain) {
		whole += grain
	}
	s.plan(s.Start.Add(max(whole, s.now.Sub(s.Start))), do)
}

// plan plans something for a moment, which is not before now.
func (s *sim) plan(at time.Time, do func()) {
	s.planned++
	heap.Push(&s.queue, event{at, s.planned, do})
}

// coarse is the first grain at t or after.
func (s *sim) coarse(t time.Time) time.Time {
	grain := s.Resolution.Duration
	after := t.Sub(s.Start)
	return s.Start.Add((after + grain - 1).Truncate(grain))
}

// makeGates opens all gates and plans when they close.
func (s *sim) makeGates() {
	for i := range s.Policies {
		for _, g := range s.Policies[i].Gates {
			s.gates[rollout.GateKey(s.Policies[i].Name, g.Name)] = rollout.Gate{Open: true}
		}
	}
	for _, g := range s.Gates {
		for _, c := range g.Closed {
			set := func(gate rollout.Gate) func() {
				return func() { s.gates[rollout.GateKey(g.Policy, g.Gate)], s.dirty = gate, true }
			}
			because := c.Because
			if because == "" {
				because = "the fleet's file closes it"
			}
			s.plan(c.From.in(s.Start), set(rollout.Gate{Detail: because}))
			if c.To.said() {
				s.plan(c.To.in(s.Start), set(rollout.Gate{Open: true}))
			}
		}
	}
}
