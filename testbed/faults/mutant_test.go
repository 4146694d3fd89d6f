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

// leaderGuest is the host whose turn an aimed round is about: the first one in order, and no candidate's.
const aimedGuest = "node-3"

// other is another one, behind it in order.
const other = "node-4"

// An aim is a round at the one moment that one clause is there for.
type aim struct {
	name   string
	stroke stroke
	// stage stages the updates.
	stage func(r *round)
	// hit reports whether a round of the product itself met its moment. One that did not proves nothing and is played again.
	hit func(r *round) bool
	// mutation leaves the clause out, caught is the promise that breaks then.
	mutation simhost.Mutation
	caught   referee.Rule
}

var aims = []*aim{
	{
		// A grant of the old leader's lands when its successor leads. The host reads its Node, and the Lease after it.
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
		// A host's commit is on its way when its leader goes. The successor finds one node more unavailable than the budget
		// allows, a person's cordon, and backs the turn out. Then the commit arrives.
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
		// A node was granted its turn and has committed when the leader goes. What caches show the successor is from before.
		name:   "the first list from the quorum",
		stroke: stroke{how: stopped, at: committed, stale: true, sure: true},
		stage: func(r *round) {
			// All others want something, and nothing is granted, when the cache falls behind.
			r.Stop("until all want something")
			r.wants(r.others()...)
			_, r.stroke.since = r.list()
			r.wants(aimedGuest)
			r.Stop(nil)
		},
		hit: func(r *round) bool {
			if cached := r.counts.cached.Load(); cached > 0 {
				r.T.Errorf("the successor listed Nodes %d times from a cache", cached)
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
		// A person names the old leader's term in the Lease again, from a backup for one. It continues with a view in which the
		// turn that its successor has granted is not.
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
			// The lock has ended the term, and not a request that failed. The log comes through a pipe, after the Lease has changed.
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

// wants stages updates under a stop, and waits until it holds the nodes.
func (r *round) wants(names ...string) {
	r.T.Helper()
	r.stage(names...)
	r.until("them to want a reboot, and to be held", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			n := r.node(name)
			return n.Wants != v1alpha1.WantsReboot || n.Held != v1alpha1.ReasonStopped
		})
	})
}

// others are all hosts but the guest.
func (r *round) others() (names []string) {
	for _, h := range r.Fleet.Hosts {
		if h.Name() != aimedGuest {
			names = append(names, h.Name())
		}
	}
	return names
}

// aimed plays the round up to where the old leader is back, and reports what the referee has seen by then.
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

// tries is how often a round is aimed: on a busy machine the moment may be over before it is met.
const tries = 3

// TestAims has the product pass what its mutants do not.
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
			t.Errorf("%d rounds did not meet the moment that %s is there for", tries, a.name)
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
			return true // there is nothing to be waited for any more
		}
		if r.finish(); hit {
			return true
		}
	}
	return false
}

// TestMutants leaves one clause out of the product, each in its turn, and plays the round that is aimed at it.
func TestMutants(t *testing.T) {
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
				t.Errorf("without %s the referee saw no violation of %s: %v", a.name, a.caught, f.Referee.Report().Violations)
			}
		})
	}
}
