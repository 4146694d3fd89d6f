package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// defaultSeed and defaultCampaigns are what `make test` runs.
	defaultSeed, defaultCampaigns = 20263, 8
	// perCampaign is how many faults a campaign has: so many that eight campaigns have all kinds in them.
	perCampaign = 5
	// perFleet is how many campaigns one fleet goes through.
	perFleet = 4
	// defaultJobs and maxJobs: how many control planes there are at once.
	defaultJobs, maxJobs = 2, 16
	// lateMoment bounds the wait for the state in which a fault is to fall.
	lateMoment = 2 * time.Second
	// recovered bounds the end of a rollout after all faults were lifted.
	recovered = 5 * time.Minute
	// slow is how often a recovery that takes long tells what it waits for.
	slow = 15 * time.Second
)

// tally is what all campaigns came to.
type tally struct {
	sync.Mutex
	turns, violations, failed, played int
	met                               map[string]int
}

// TestCampaigns lets random faults meet rollouts. LOCKKEEPER_JOBS of them run side by side, each on a control plane of its own:
// what a campaign is follows from the seed and its number alone.
func TestCampaigns(t *testing.T) {
	t.Parallel()
	seed, count := rig.Number(t, "LOCKKEEPER_SEED", defaultSeed), rig.Number(t, "LOCKKEEPER_SOAK", defaultCampaigns)
	soak := os.Getenv("LOCKKEEPER_SOAK") != ""
	first, last := uint64(0), count
	if only := rig.Number(t, "LOCKKEEPER_CAMPAIGN", 0); only > 0 {
		first, last = only-1, only
	}
	jobs := rig.Number(t, "LOCKKEEPER_JOBS", defaultJobs)
	if jobs < 1 || jobs > maxJobs {
		t.Fatalf("LOCKKEEPER_JOBS=%d: expected 1 to %d", jobs, maxJobs)
	}
	sum := &tally{met: map[string]int{}}
	var next atomic.Uint64
	next.Store(first)
	var workers sync.WaitGroup
	for range jobs {
		on := campaignPool.Take(t)
		workers.Go(func() {
			for {
				from := next.Add(perFleet) - perFleet
				if from >= last {
					return
				}
				sum.play(t, on, seed, from, min(last, from+perFleet), soak)
			}
		})
	}
	workers.Wait()
	for _, k := range kinds {
		t.Logf("%4d times: %s", sum.met[k.name], k.name)
	}
	line := fmt.Sprintf("campaigns: seed %d, %d campaigns, %d turns, %d violations", seed, sum.played, sum.turns, sum.violations)
	if sum.failed > 0 {
		line += fmt.Sprintf(", %d failed", sum.failed)
	}
	fmt.Println(line)
}

// play has the campaigns from first to before last, on one fleet, or on a new one after each that failed.
func (sum *tally) play(t *testing.T, on *controlplane.ControlPlane, seed, first, last uint64, soak bool) {
	for first < last {
		passed := t.Run(fmt.Sprintf("campaigns-%d-to-%d", first+1, last), func(t *testing.T) {
			f := newFleet(t, on, soak)
			defer func() {
				report := f.close()
				sum.Lock()
				defer sum.Unlock()
				sum.violations += report.Count()
				for _, n := range report.Turns {
					sum.turns += n
				}
			}()
			for ; first < last; first++ {
				c := compose(f, seed, first, soak)
				t.Logf("campaign %d of seed %d: %s", first+1, seed, c)
				c.run()
				sum.Lock()
				sum.played++
				for name, n := range c.met {
					sum.met[name] += n
				}
				sum.Unlock()
				if t.Failed() {
					return
				}
			}
		})
		if !passed {
			sum.Lock()
			sum.failed++
			sum.Unlock()
			first++ // the campaign that failed; the next one gets a new fleet
		}
	}
}

// campaign is one rollout and what happens to it.
type campaign struct {
	*fleet
	rng   *rand.Rand
	soak  bool
	steps []step
	lifts []lift
	met   map[string]int
	// sentinels are the boots in which a host's sentinel was written.
	sentinels map[string]string
}

// step is one fault of a campaign.
type step struct {
	kind *kind
	// at is the state in which some node's turn is to be, "" for at once.
	at v1alpha1.State
	// who it is done to.
	who who
	// stays is how many writes to Nodes it lasts, if it is one that lasts; 0 for until the end.
	stays int
	seed  uint64 // for what the fault itself chooses
}

func (s step) String() string {
	at := "at once"
	if s.at != "" {
		at = "in " + string(s.at)
	}
	return fmt.Sprintf("%s, %s to %s", at, s.kind.name, s.who)
}

type who int

const (
	itself who = iota // the node whose turn it is
	another
	whoLeads
)

func (w who) String() string {
	return [...]string{"the node in its turn", "another node", "the coordinator's"}[w]
}

type lift struct {
	name string
	do   func()
	// by is at how many writes it is lifted.
	by int
}

// states are those in which faults fall.
var states = []v1alpha1.State{
	"", v1alpha1.StateBeforeDrain, v1alpha1.StateDraining, v1alpha1.StateDraining, v1alpha1.StateBeforeReboot,
	v1alpha1.StateRebooting, v1alpha1.StateRebooting, v1alpha1.StateBeforeUncordon, v1alpha1.StateUncordoning,
}

// compose makes the campaign of a number. The kinds are dealt like cards, from a deck that is shuffled when it is used up, so that
// a few campaigns have all of them; where and for how long each falls is chance.
func compose(f *fleet, seed, number uint64, soak bool) *campaign {
	rng := rand.New(rand.NewPCG(seed, number))
	c := &campaign{fleet: f, rng: rng, soak: soak, met: map[string]int{}, sentinels: map[string]string{}}
	for i := range uint64(perCampaign) {
		card := number*perCampaign + i
		deck := rand.New(rand.NewPCG(seed, 1<<63+card/uint64(len(kinds)))).Perm(len(kinds))
		s := step{
			kind: &kinds[deck[card%uint64(len(kinds))]], at: states[rng.IntN(len(states))], who: who(rng.IntN(3)),
			stays: rng.IntN(25), seed: rng.Uint64(),
		}
		if in := s.kind.in; len(in) > 0 {
			s.at, s.who = in[rng.IntN(len(in))], itself
		}
		if s.kind.lasts {
			s.stays = 0
		}
		c.steps = append(c.steps, s)
	}
	return c
}

func (c *campaign) String() string {
	var all []string
	for _, s := range c.steps {
		all = append(all, s.String())
	}
	return strings.Join(all, "; ")
}

func (c *campaign) run() {
	t := c.T
	c.update++
	for _, h := range c.Fleet.Hosts {
		c.Referee.WantMade(h.Name())
		c.Must(h.StageUpdate(c.version()))
	}
	for _, s := range c.steps {
		c.liftDue()
		at := c.book.find(lateMoment, func(n *turn.Node) bool { return n.State == s.at || s.at == "" })
		h := c.target(s, at)
		c.rng = rand.New(rand.NewPCG(s.seed, 1))
		what, undo := s.kind.do(c, h)
		if what == "" {
			t.Logf("no occasion: %s (%s)", s.kind.name, h.Name())
			continue
		}
		t.Logf("FAULT (%s): %s: %s", s, h.Name(), what)
		c.met[s.kind.name]++
		if undo != nil {
			by := 0
			if s.stays > 0 {
				by = c.Referee.Report().NodeEvents + s.stays
			}
			c.lifts = append(c.lifts, lift{s.kind.name + " on " + h.Name(), undo, by})
		}
	}
	c.wait()
	for len(c.lifts) > 0 {
		c.liftOne(0)
	}
	t.Log("all faults are lifted")
	c.recover()
}

// target is the host that a fault is done to.
func (c *campaign) target(s step, at string) *simhost.Host {
	h := c.Fleet.Host(at)
	if h == nil || s.at == "" {
		h = c.Fleet.Hosts[s.seed%hosts]
	}
	switch s.who {
	case another:
		for i, other := range c.Fleet.Hosts {
			if other == h {
				return c.Fleet.Hosts[(i+1+int(s.seed%(hosts-1)))%hosts]
			}
		}
	case whoLeads:
		if l := c.leading(); l != nil {
			return l
		}
	}
	return h
}

// wait lets what lasts last a while.
func (c *campaign) wait() {
	late := time.NewTimer(2 * lateMoment)
	defer late.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for len(c.lifts) > 0 {
		c.liftDue()
		select {
		case <-late.C:
			return
		case <-tick.C:
		}
	}
}

func (c *campaign) liftDue() {
	now := c.Referee.Report().NodeEvents
	for i := 0; i < len(c.lifts); {
		if l := c.lifts[i]; l.by > 0 && l.by <= now {
			c.liftOne(i)
			continue
		}
		i++
	}
}

func (c *campaign) liftOne(i int) {
	l := c.lifts[i]
	c.lifts = append(c.lifts[:i], c.lifts[i+1:]...)
	c.T.Logf("OVER: %s", l.name)
	l.do()
}

// recover waits until every host is updated and back. What a fault took away comes back by what a person, the engine or the
// service manager would do: an update that was lost in a crash is staged again, a turn that failed is cleared.
func (c *campaign) recover() {
	late := time.NewTimer(recovered)
	defer late.Stop()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	tell := time.NewTicker(slow)
	defer tell.Stop()
	for {
		var missing []string
		for _, h := range c.Fleet.Hosts {
			if why := c.missing(h); why != "" {
				missing = append(missing, h.Name()+" "+why)
			}
		}
		if len(missing) == 0 {
			break
		}
		select {
		case <-late.C:
			c.T.Fatalf("%v: %v after all faults were lifted: %s", errPatience, recovered, strings.Join(missing, "; "))
		case <-tell.C:
			c.T.Logf("still: %s", strings.Join(missing, "; "))
		case <-tick.C:
		}
	}
	ctx, cancel := within(rig.Soon)
	defer cancel()
	c.Must(c.WaitWork(ctx))
	c.Must(c.Referee.Sync(ctx))
	if report := c.Referee.Report(); report.Count() > 0 {
		c.T.Errorf("the referee: %v", report.Violations)
	}
}

// missing says what keeps a host from being updated and back, "" for nothing.
func (c *campaign) missing(h *simhost.Host) string {
	n, ok := c.now(h.Name())
	status, runs := h.Engine().Status()
	switch {
	case !ok:
		return "cannot be read"
	case h.BootID() == "":
		return "is down"
	case h.Version() != c.version() && runs && status.Operation == simhost.OpIdle && n.BootID == h.BootID():
		c.Referee.WantMade(h.Name())
		if err := h.StageUpdate(c.version()); err != nil {
			return err.Error() // a reboot came in between
		}
		return "has its update staged again"
	case (n.Held == v1alpha1.ReasonFailed || n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed) &&
		n.Retry != c.failed(&n):
		c.patch(h.Name(), map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationRetry: c.failed(&n)}}})
		return "is cleared"
	case h.Version() != c.version() || n.State != v1alpha1.StateIdle || n.BootID != h.BootID() || !n.Ready || n.Unschedulable || n.Mark ||
		n.Wants != v1alpha1.WantsNothing || !n.HostReported() || len(n.Problems) > 0:
		return fmt.Sprintf("runs %s and is %s (held %q, ready %t, unschedulable %t, mark %t, wants %q, ack %s, problems %v), and says %q",
			h.Version(), n.State, n.Held, n.Ready, n.Unschedulable, n.Mark, n.Wants, n.Ack, n.Problems, h.Notify().Status)
	}
	return ""
}

// failed is the turn that failed.
func (c *campaign) failed(n *turn.Node) string {
	if n.State == v1alpha1.StateIdle && n.Last != nil {
		return n.Last.Turn
	}
	return n.Turn
}
