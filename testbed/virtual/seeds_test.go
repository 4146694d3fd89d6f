package virtual

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/rig"
)

const (
	planLength = 40 * time.Minute
	// forSeeds and forHostile are how long `make test` runs seeds, in real time. Together they are a minute.
	forSeeds, forHostile = 40 * time.Second, 20 * time.Second
	// reduceWithin bounds the search for a smaller plan that fails in the same way, in real time.
	reduceWithin = 2 * time.Minute
	// soakEnds is how long before the test's deadline (-timeout) a soak begins its last runs, in real time.
	soakEnds = 5 * time.Minute
)

// tally is a campaign: the next seed, and what its runs add up to.
type tally struct {
	began time.Time

	mu                                      sync.Mutex
	next                                    uint64
	runs, failed, faults, requests, reboots int
	hostTime                                time.Duration
}

// take returns the next seed, unless the campaign is over.
func (c *tally) take(over func() bool) (seed uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over() {
		return 0, false
	}
	c.next++
	return c.next - 1, true
}

func (c *tally) add(hosts int, r *Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs++
	for _, n := range r.Faults {
		c.faults += n
	}
	c.requests, c.reboots = c.requests+r.Requests, c.reboots+r.Reboots
	c.hostTime += r.Took * time.Duration(hosts)
	if r.Why != "" {
		c.failed++
	}
}

// TestSeeds runs fleets under faults made from seeds: no rule may be broken, and every fleet must arrive. make test runs as
// many seeds as fit into its time. LOCKKEEPER_SOAK is the number of faults to reach instead, LOCKKEEPER_SEED the first seed,
// and LOCKKEEPER_RUNS the number of runs. With -short, it runs only if LOCKKEEPER_RUNS is set, and does not reduce the plan of
// a run that fails.
func TestSeeds(t *testing.T) { campaign(t, "virtual", forSeeds, NewPlan) }

// TestHostile is TestSeeds with a host that lies or a thief with the coordinator's credential, and without what
// docs/security.md says that they can do; see [Fleet.finish] for what must hold.
func TestHostile(t *testing.T) { campaign(t, "hostile", forHostile, hostilePlan) }

func campaign(t *testing.T, name string, within time.Duration, plan func(uint64, Shape) Plan) {
	first, runs := rig.Number(t, "LOCKKEEPER_SEED", 1), rig.Number(t, "LOCKKEEPER_RUNS", 0)
	if testing.Short() && runs == 0 {
		t.Skip("it takes a minute")
	}
	soak := rig.Number(t, "LOCKKEEPER_SOAK", 0)
	c := &tally{began: time.Now(), next: first}
	deadline, bounded := t.Deadline()
	over := func() bool {
		switch {
		case runs > 0:
			return c.next-first >= runs
		case soak > 0:
			return c.faults >= int(soak) || bounded && time.Until(deadline) < soakEnds
		}
		return time.Since(c.began) > within
	}
	workers := 1
	if soak > 0 || runs > 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for {
				seed, ok := c.take(over)
				if !ok {
					return
				}
				t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
					o := scenario(seed)
					p := plan(seed, o.shape(planLength))
					a := p.attack()
					if a.Thief || len(a.Liars) > 0 {
						o.Clients = nil
						o.Canary = 0 // a canary that lies delays the others for as long as it wants, and a thief writes any record
					}
					if a.Thief {
						o.Blackout = span{} // a thief grants turns at any time
					}
					res := run(t, o, p, false)
					c.add(o.Hosts, &res)
					if res.Why != "" {
						explain(t, o, p, &res)
					}
				})
			}
		})
	}
	working.Wait()
	took := time.Since(c.began)
	fmt.Printf("%s: seeds %d to %d: %d runs, %d failed, %d faults (%.0f a minute), %d requests, %d reboots, %.0f hours of hosts in %v\n",
		name, first, c.next-1, c.runs, c.failed, c.faults, float64(c.faults)/took.Minutes(), c.requests, c.reboots, c.hostTime.Hours(), took.Round(time.Second))
	if runs == 0 && c.faults < int(soak) {
		t.Errorf("the test's deadline came after %d faults, expected %d", c.faults, soak)
	}
}

// explain fails the test with what is needed to see why a run failed.
func explain(t *testing.T, o Options, p Plan, res *Result) {
	t.Errorf("%s\nrun it again with LOCKKEEPER_SEED=%d LOCKKEEPER_RUNS=1", res.Why, p.Seed)
	if testing.Short() {
		return
	}
	t.Log(reproduce(p, res, o.shape(0).Hosts, func(p Plan, logged bool) Result { return run(t, o, p, logged) }))
}

// freshRuns is how many times reproduce runs a reduced plan to get the log of a run that fails.
const freshRuns = 3

// reproduce returns a plan that is as small as possible and fails with the same rule, with the requests that matter of a run that failed, and
// its log. Two runs of a plan may differ, so it says of which run they are. first is the run of the plan that failed.
func reproduce(p Plan, first *Result, hosts []string, run func(p Plan, logged bool) Result) string {
	var failed Result // the last run that failed with the rule: Reduce returns its plan
	failures := 0
	smaller, why, tries := Reduce(p, func(p Plan) (bool, string) {
		r := run(p, false)
		if r.Why != "" && (failures == 0 || ruleOf(r.Why) == ruleOf(failed.Why)) {
			failed = r
			failures++
		}
		return r.Why != "", r.Why
	}, Reduction{Repeats: 2, Within: reduceWithin})
	if why == "" {
		return fmt.Sprintf("it did not fail again in %d runs, so this is everything of the run that failed; the plan was\n%s\nits requests and faults:\n%s",
			tries, p, first.trace)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the search for a smaller plan took %d runs, of which %d failed with the rule %s. It found this plan of %d faults, of %d, which failed:\n%s\n%s\n",
		tries, failures, ruleOf(why), len(smaller.Faults), len(p.Faults), why, smaller)
	for i := range freshRuns {
		if r := run(smaller, true); ruleOf(r.Why) == ruleOf(why) {
			fmt.Fprintf(&b, "The plan was run again, with a log, and run %d of at most %d failed as well:\n%s\nThe requests and faults of that run:\n", i+1, freshRuns, r.Why)
			failed = r
			break
		}
	}
	if failed.log == nil {
		fmt.Fprintf(&b, "The plan was run %d times again, with a log, and no run failed with the rule. So the requests and faults are those of the run that failed, which has no log:\n", freshRuns)
	}
	b.WriteString(failed.trace.format(failed.trace.essential(hosts, time.Now().Add(10*365*24*time.Hour), 100)))
	if failed.log != nil {
		fmt.Fprintf(&b, "Its log:\n%s", strings.Join(failed.log, "\n"))
	}
	return b.String()
}
