package faults

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// aimedGuest is the host whose turn an aimed round needs. It is the first one in rollout order and not a candidate.
const aimedGuest = "node-3"

// other is a host after aimedGuest in rollout order.
const other = "node-4"

// aim is a round at the one moment that one clause exists for.
type aim struct {
	name   string
	stroke stroke
	// stage stages the updates.
	stage func(r *round)
	// hit reports whether a round of the unchanged product reached the moment. A round that did not proves nothing and
	// is repeated.
	hit func(r *round) bool
	// mutation removes the clause. caught is the violation that follows.
	mutation simhost.Mutation
	caught   referee.Rule
}

var aims = []*aim{
	{
		// A grant of the old leader lands when its successor leads. The host reads its Node, and after that the
		// Lease.
		name:   "the epoch check at the commit",
		stroke: stroke{how: stopped, at: grant, nth: 1, slow: true, sure: true},
		stage:  func(r *round) { r.stage(aimedGuest) },
		hit: func(r *round) bool {
			code, _ := r.arrived()
			return code == http.StatusOK && r.Referee.Report().LateGrants > 0
		},
		mutation: simhost.Mutation{
			File: "node/step/commit.go",
			Old:  "if n.Grant.Epoch != o.Fresh.Lease.Holder {",
			New:  "if false && n.Grant.Epoch != o.Fresh.Lease.Holder {",
		},
		caught: referee.Fence,
	},
	{
		// A host's commit is in flight when the leader is taken away. Because of an admin's cordon, the successor
		// finds one node more unavailable than the budget allows, and backs the turn out. Then the commit arrives.
		name:   "the commit's resourceVersion",
		stroke: stroke{how: stopped, at: commit, nth: 1, cordon: true, sure: true},
		stage:  func(r *round) { r.stage(aimedGuest) },
		hit: func(r *round) bool {
			code, _ := r.arrived()
			return code == http.StatusConflict
		},
		mutation: simhost.Mutation{
			File: "kube/patch.go",
			Old:  `	meta := map[string]any{"resourceVersion": p.ResourceVersion}` + "\n",
			New: `	meta := map[string]any{"resourceVersion": p.ResourceVersion}
	if ack := p.Annotations["lockkeeper.dev/ack"]; ack != nil && len(*ack) > 10 && (*ack)[len(*ack)-10:] == "/committed" {
		delete(meta, "resourceVersion")
	}
`,
		},
		caught: referee.Commit,
	},
	{
		// A node got its turn and has committed when the leader is taken away. The successor's caches are older than
		// that.
		name:   "the first list from the quorum",
		stroke: stroke{how: stopped, at: committed, stale: true, sure: true},
		stage: func(r *round) {
			// All other nodes want something, and nothing is granted, when the cache starts to lag.
			r.Stop("until all want something")
			r.wants(r.others()...)
			_, r.stroke.since = r.list()
			r.wants(aimedGuest)
			r.Stop(nil)
		},
		hit: func(r *round) bool {
			if cached := r.counts.cached.Load(); cached > 0 {
				r.T.Errorf("%d lists of Nodes by the successor came from a cache", cached)
			}
			return r.counts.quorum.Load() > 0
		},
		mutation: simhost.Mutation{
			File: "kube/watch.go",
			Old:  `	o.ResourceVersion, o.ResourceVersionMatch = "", ""` + "\n",
			New:  `	o.ResourceVersion, o.ResourceVersionMatch = "0", ""` + "\n",
		},
		caught: referee.Budget,
	},
	{
		// An admin restores the old leader's term in the Lease, for example from a backup. The old leader continues
		// with a view that lacks the turn that its successor has granted.
		name: "a term ends when the Lease has run out",
		stroke: stroke{how: stopped, at: renewed, nth: 1, revive: true, sure: true, meanwhile: func(r *round) {
			r.wants(aimedGuest)
			r.Stop(nil)
			r.until(aimedGuest+" to have committed", func() bool { n := r.node(aimedGuest); return n.Mark })
		}},
		stage: func(r *round) {
			r.Stop("until the leader is away")
			r.wants(other)
		},
		hit: func(r *round) bool {
			// The lock must have ended the term, not a failed request. The log arrives through a pipe, after the
			// Lease has changed.
			return sees(chance, func() bool {
				return strings.Contains(r.old.LogTail(200), "the Lease had run out when it was read again")
			})
		},
		mutation: simhost.Mutation{
			File: "coordinator/lock.go",
			Old:  "	case record.LeaderTransitions != l.transitions:\n",
			New:  "	case true:\n	case record.LeaderTransitions != l.transitions:\n",
		},
		caught: referee.Budget,
	},
}

// wants stages updates during a stop, and waits until the stop holds the nodes.
func (r *round) wants(names ...string) {
	r.T.Helper()
	r.stage(names...)
	r.until("the nodes to want a reboot and to be held", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			n := r.node(name)
			return n.Wants != v1alpha1.WantsReboot || n.Held != v1alpha1.ReasonStopped
		})
	})
}

// others returns all hosts except the guest.
func (r *round) others() (names []string) {
	for _, h := range r.Fleet.Hosts {
		if h.Name() != aimedGuest {
			names = append(names, h.Name())
		}
	}
	return names
}

// aimed plays the round until the old leader is back, and returns the referee's report at that time.
func (a *aim) aimed(r *round) referee.Report {
	r.T.Helper()
	r.begin()
	s := a.stroke
	r.stroke = &s
	a.stage(r)
	r.play(&s)
	r.Sync()
	return r.Referee.Report()
}

// tries is how often an aimed round is repeated: on a busy machine it may miss its moment.
const tries = 3

// TestAims checks that the product passes the rounds that its mutants fail.
func TestAims(t *testing.T) {
	t.Parallel()
	f := newLeaderFleet(t, pool.Take(t), leaderBinary, 1)
	defer func() {
		if report := f.close(); report.Count() > 0 {
			t.Errorf("the referee saw %d violations", report.Count())
		}
	}()
	for _, a := range aims {
		if hit := f.try(func(r *round) bool {
			t.Logf("AIM: %s", a.name)
			a.aimed(r)
			return a.hit(r)
		}); !hit {
			t.Errorf("%d rounds missed the moment that %s exists for", tries, a.name)
		}
		if t.Failed() {
			return
		}
	}
}

// try plays aimed rounds to their end until one hits.
func (f *leaderFleet) try(play func(r *round) bool) bool {
	for range tries {
		r := &round{leaderFleet: f}
		hit := func() bool {
			defer r.release(&r.revived)
			defer r.back()
			return play(r)
		}()
		if report := f.Referee.Report(); hit && report.Count() > 0 {
			return true // the test has failed already
		}
		if r.finish(); hit {
			return true
		}
	}
	return false
}

// TestMutants removes one clause of the product at a time, and plays the round that is aimed at it.
func TestMutants(t *testing.T) {
	if os.Getenv("LOCKKEEPER_SOAK") == "" {
		t.Skip("only in make soak: the virtual fleet has these bugs planted too")
	}
	t.Parallel()
	for _, a := range aims {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := within(10 * rig.Soon)
			defer cancel()
			mutant, err := simhost.BuildMutant(ctx, os.Stderr, a.mutation)
			if err != nil {
				t.Fatal(err)
			}
			f := newLeaderFleet(t, pool.Take(t), mutant, 1)
			defer f.close()
			if caught := f.try(func(r *round) bool {
				report := a.aimed(r)
				return report.Broke(a.caught)
			}); caught {
				t.Logf("CAUGHT: %s", f.Referee.Report().Violations[0])
			} else {
				t.Errorf("without %s the referee found no violation of %s: %v", a.name, a.caught, f.Referee.Report().Violations)
			}
		})
	}
}
