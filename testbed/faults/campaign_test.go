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
	// defaultSeed and defaultCampaigns are the settings of `make test`.
	defaultSeed, defaultCampaigns = 20263, 2
	// perCampaign is the number of faults in a campaign: enough for eight campaigns to contain all kinds.
	perCampaign = 5
	// perFleet is how many campaigns one fleet plays.
	perFleet = 4
	// defaultJobs and maxJobs are numbers of concurrent control planes.
	defaultJobs, maxJobs = 2, 16
	// lateMoment bounds the wait for the state at which a fault is injected.
	lateMoment = 2 * time.Second
	// recovered bounds the end of a rollout after all faults were lifted.
	recovered = 5 * time.Minute
	// slow is the interval at which a slow recovery logs what it waits for.
	slow = 15 * time.Second
)

// tally is the sum of all campaigns.
type tally struct {
	sync.Mutex
	turns, violations, failed, played int
	met                               map[string]int
}

// TestCampaigns injects random faults into rollouts. LOCKKEEPER_JOBS campaigns run concurrently, each on its own
// control plane. The seed and the number of a campaign alone define the campaign.
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

// play plays the campaigns from first up to but not including last, on one fleet, and on a new one after each failure.
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
			first++ // skips the failed campaign; the next one uses a new fleet
		}
	}
}

// campaign is one rollout and its faults.
type campaign struct {
	*fleet
	rng   *rand.Rand
	soak  bool
	steps []step
	lifts []lift
	met   map[string]int
	// sentinels records the boots in which a host's sentinel was written.
	sentinels map[string]string
}

// step is one fault of a campaign.
type step struct {
	kind *kind
	// at is the state that some node's turn must have, or "" for any time.
	at v1alpha1.State
	// who selects the host of the fault.
	who who
	// stays is the number of writes to Nodes for which a lasting fault stays; 0 means until the end.
	stays int
	seed  uint64 // for the choices of the fault itself
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
	// by is the number of writes at which the fault is lifted.
	by int
}

// states lists the states in which faults happen.
var states = []v1alpha1.State{
	"", v1alpha1.StateBeforeDrain, v1alpha1.StateDraining, v1alpha1.StateDraining, v1alpha1.StateBeforeReboot,
	v1alpha1.StateRebooting, v1alpha1.StateRebooting, v1alpha1.StateBeforeUncordon, v1alpha1.StateUncordoning,
}

// compose composes the campaign with this number. It deals the kinds from a deck that it shuffles again when the deck
// is empty, so that a few campaigns contain all kinds. The place and the duration of each fault are random.
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

// target returns the host for a fault.
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

// wait gives lasting faults some time.
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

// recover waits until every host is updated and back. It does what an admin, the engine or the service manager would do
// after a fault: it stages an update again that was lost in a crash, and clears a failed turn.
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

// missing describes why a host is not yet updated and back, or returns "".
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
			return err.Error() // a reboot happened in between
		}
		return "its update was staged again"
	case (n.Held == v1alpha1.ReasonFailed || n.State == v1alpha1.StateIdle && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed) &&
		n.Retry != c.failed(&n):
		c.patch(h.Name(), map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationRetry: c.failed(&n)}}})
		return "is cleared"
	case h.Version() != c.version() || n.State != v1alpha1.StateIdle || n.BootID != h.BootID() || !n.Ready || n.Unschedulable || n.Mark ||
		n.Wants != v1alpha1.WantsNothing || !n.HostReported() || len(n.Problems) > 0:
		return fmt.Sprintf("runs %s and is %s (held %q, ready %t, unschedulable %t, mark %t, wants %q, ack %s, problems %v), status %q",
			h.Version(), n.State, n.Held, n.Ready, n.Unschedulable, n.Mark, n.Wants, n.Ack, n.Problems, h.Notify().Status)
	}
	return ""
}

// failed returns the id of the failed turn.
func (c *campaign) failed(n *turn.Node) string {
	if n.State == v1alpha1.StateIdle && n.Last != nil {
		return n.Last.Turn
	}
	return n.Turn
}
