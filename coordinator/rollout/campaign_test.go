package rollout_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

var (
	seed  = flag.Uint64("seed", 1, "the first seed of the campaigns")
	seeds = flag.Int("seeds", 0, "how many campaigns to run; 0 is a sample")
)

// TestCampaign runs a small cluster under random updates, cancels, crashes,
// stale leaders, lost and late writes and admins. No promise may be broken on
// the way; and when all of that is over the cluster has to come to rest with
// every host updated and given back, by itself.
func TestCampaign(t *testing.T) { campaigns(t, 100, false) }

// TestCampaignOfEdits is the same with people who edit and remove the
// coordinator's keys. What they may break is not held against the cores; that
// the cluster comes to rest, with no cordon of ours left behind, is.
func TestCampaignOfEdits(t *testing.T) { campaigns(t, 100, true) }

func campaigns(t *testing.T, sample int, edits bool) {
	if *seeds > 0 {
		sample = *seeds
	} else if testing.Short() {
		sample /= 5
	}
	turns, reboots := 0, 0
	for i := range sample {
		c := campaign(t, *seed+uint64(i), edits)
		turns += c.turns
		for _, h := range c.hosts {
			reboots += len(h.reboots)
		}
		if t.Failed() {
			return
		}
	}
	if turns < 5*sample || reboots < 3*sample {
		t.Errorf("%d turns and %d reboots in %d campaigns, too few to prove anything", turns, reboots, sample)
	}
}

func campaign(t *testing.T, seed uint64, edits bool) *cluster {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 9))
	c := newCluster()
	c.edited = edits
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	if err := c.setPolicy([]string{fmt.Sprint("budget=", 1+r.IntN(2)), "failed=1", fmt.Sprintf("settle=%ds", 2*r.IntN(2)), "draining=5m"}); err != nil {
		t.Fatal(err)
	}
	if r.IntN(3) == 0 {
		if err := c.setPolicy([]string{"before-drain=lb,5m," + one("Wait", "Continue", "Abort"), "before-uncordon=lb-back,5m,Wait"}); err != nil {
			t.Fatal(err)
		}
	}
	policies := r.IntN(2) == 0
	if policies {
		if err := c.setPolicy([]string{"web", "select=pool:web", "failed=1", "settle=2s", "draining=5m", "budget=" + one("1", "2", "50%", "100%"), "total=" + one("none", "1", "2", "50%")}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1 + r.IntN(3) {
		words := []string{"zone=" + one("a", "b"), "pool=" + one("web", "db")}
		if r.IntN(3) == 0 {
			words = append(words, "control-plane")
		}
		if err := c.addNode(fmt.Sprintf("n%d", i+1), words); err != nil {
			t.Fatal(err)
		}
	}
	epoch, version := 0, 1
	for round := range 50 {
		if round%12 == 11 {
			calm(c) // or the cluster is soon paused, dead and cordoned altogether
		}
		args := fault(r, c, &epoch, &version, edits)
		if policies && r.IntN(4) == 0 {
			args = policyFault(r, c)
		}
		if err := c.command(args); err != nil {
			t.Fatalf("seed %d: %s: %v", seed, strings.Join(args, " "), err)
		}
		confirmHooks(r, c)
		// On for a while; often no further than the next few writes.
		limit, writes := time.Duration(r.IntN(12))*tick, c.version+1+r.IntN(6)
		if r.IntN(2) == 0 {
			c.run(limit, func() bool { return c.version >= writes })
		} else {
			c.run(limit, nil)
		}
		if len(c.broken) > 0 && !edits {
			t.Fatalf("seed %d: %s\n%s", seed, c.broken[0], strings.Join(c.log, "\n"))
		}
	}
	calm(c)
	why := ""
	for range 30 {
		for _, name := range c.names() {
			if n := c.fact(name); n.State.InTurn() {
				c.nodes[name].Annotations[v1alpha1.AnnotationRetry] = n.Turn
			} else if n.Last != nil {
				c.nodes[name].Annotations[v1alpha1.AnnotationRetry] = n.Last.Turn
			}
			c.bump(c.nodes[name])
		}
		for range 60 {
			confirmHooks(nil, c) // well within their timeout
			c.run(time.Minute, func() bool { return c.atRest() == "" })
		}
		if why = c.atRest(); why == "" {
			break
		}
	}
	if why != "" || len(c.broken) > 0 && !edits {
		t.Fatalf("seed %d: not at rest: %s\n%s\n%s", seed, why, strings.Join(c.broken, "\n"), strings.Join(c.log, "\n"))
	}
	return c
}

// fault makes up the next thing that happens.
func fault(r *rand.Rand, c *cluster, epoch, version *int, edits bool) []string {
	names := slices.Sorted(maps.Keys(c.hosts))
	n := names[r.IntN(len(names))]
	h := c.hosts[n]
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	leader := func() []string {
		*epoch++
		return []string{"leader", fmt.Sprintf("e%d", *epoch)}
	}
	if c.nodes[n] == nil {
		return []string{"create", n}
	}
	kinds := 19
	if edits {
		kinds = 22
	}
	switch r.IntN(kinds) {
	default:
		*version++
		return []string{"update", n, fmt.Sprintf("5.%d", *version)}
	case 4:
		return []string{"cancel", n}
	case 5:
		if !h.up {
			return []string{"advance", "1m"}
		}
		return []string{one("crash", "rollback"), n}
	case 6:
		return []string{one("kill", "start", "start"), n}
	case 7:
		return []string{one("block", "unblock"), n}
	case 8:
		return []string{one("sick", "well"), n}
	case 9:
		if c.nodes[n].Spec.Unschedulable {
			return []string{"uncordon", n}
		}
		return []string{"cordon", n}
	case 10:
		return []string{one("pause", "resume", "resume"), n}
	case 11:
		return []string{one("detach", "attach", "attach"), n, one("", `{"force":true}`)}
	case 12:
		return []string{"managed", n, one("false", "absent", "absent")}
	case 13:
		return leader()
	case 14:
		return []string{one("stop", "go", "go")}
	case 15:
		return []string{"lease", one("gone", "back", "back")}
	case 16:
		if len(c.taken) > 0 && r.IntN(2) == 0 {
			for _, e := range slices.Sorted(maps.Keys(c.taken)) {
				if e != c.lease.Holder && c.decided(e, n) {
					return []string{"late", e, n}
				}
			}
		}
		return []string{"snapshot", c.lease.Holder}
	case 17:
		if len(c.uncertain) > 0 {
			for name := range c.uncertain {
				return []string{"found", name}
			}
		}
		c.lose = one("dropped", "landed")
		return []string{"advance", "10s"}
	case 18:
		if r.IntN(3) == 0 {
			return []string{"delete", n}
		}
		return []string{one("unread", "read", "read"), n}
	case 19:
		return []string{"edit", n, "state", one("", "idle", "paused", "flooding", "draining", "rebooting", "uncordoning")}
	case 20:
		return []string{"edit", n, "grant", one("", "{}", `{"turn":"x","epoch":"y","nodeUID":"z","wants":"reboot"}`)}
	case 21:
		if r.IntN(4) == 0 {
			return []string{"edit", n, "cordon"} // whoever removes the mark takes the cordon over
		}
		return []string{"edit", n, one("turn", "ack", "last", "host"), one("", "x")}
	}
}

// policyFault makes up what becomes of the policies, or of who they select.
func policyFault(r *rand.Rand, c *cluster) []string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	names := slices.Sorted(maps.Keys(c.hosts))
	n := names[r.IntN(len(names))]
	name := one(builtIn, "web")
	switch r.IntN(5) {
	case 0:
		if c.nodes[n] != nil {
			return []string{"label", n, "pool", one("web", "db")}
		}
	case 1:
		return []string{"gate", name, "replicas", one("open", "open", "closed", "unasked")}
	case 2:
		if r.IntN(3) == 0 {
			return []string{"policy", name, "gone"}
		}
	}
	args := []string{"policy", name, one("budget=1", "budget=2", "budget=50%", "budget=100%", "total=none", "total=1", "total=50%", "paused=true", "paused=false",
		"observe=true", "observe=false", "invalid=true", "invalid=false", "window=none", "window=12:00+20m", "blackout=none", "blackout=12:05-12:25", "after=none", "after=web:0s", "after=web:5m", "after="+builtIn+":2m", "close=Cancel", "close=Finish", "gate=none", "gate=replicas",
		"drain=Force", "drain=Abort", "detach=true")}
	if _, known := c.policies[name]; !known {
		args = append(args, "failed=1", "settle=2s", "draining=5m")
		if name == "web" {
			args = append(args, "select=pool:web")
		}
	}
	return args
}

// decided reports whether the stale leader has something to say about the node.
func (c *cluster) decided(epoch, name string) bool {
	for _, v := range rollout.Decide(c.taken[epoch]).Verdicts {
		if v.Node == name {
			return v.Move != nil && c.nodes[name] != nil
		}
	}
	return false
}

// confirmHooks lets each hook confirm the present turn: now and then, or always
// if r is nil.
func confirmHooks(r *rand.Rand, c *cluster) {
	for _, name := range c.names() {
		n := c.fact(name)
		if n.Grant == nil || r != nil && r.IntN(3) > 0 {
			continue
		}
		for _, h := range n.Grant.Terms.Hooks(n.State) {
			c.nodes[name].Annotations[v1alpha1.HookAnnotation(h.Name)] = n.Turn
			c.bump(c.nodes[name])
		}
	}
}

// calm ends everything that people and machines had in the way.
func calm(c *cluster) {
	c.lose = ""
	clear(c.uncertain)
	c.lease.Exists, c.lease.Stopped = true, false
	c.leads = true
	c.lease.Holder += ".x"
	c.logf("# calm")
	if _, known := c.policies[builtIn]; !known {
		c.policies[builtIn] = newPolicy(builtIn, 0, nil)
	}
	for name, p := range c.policies {
		p.Paused, p.Observe, p.Problems, p.Windows, p.Blackouts, p.Gates, p.After, p.MaxUnavailableTotal = false, false, nil, nil, nil, nil, nil, nil
		c.policies[name] = p
	}
	for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
		h := c.hosts[name]
		if c.nodes[name] == nil {
			c.create(name, c.now)
		}
		n := c.nodes[name]
		h.process, h.stuck, h.unhealthy, h.unread = true, false, false, false
		if _, ours := n.Annotations[v1alpha1.AnnotationCordon]; !ours {
			// What people cordoned, or took over cordoned, takes a slot of the budget.
			h.adminCordon, n.Spec.Unschedulable = false, false
		}
		for _, key := range []string{v1alpha1.AnnotationPaused, v1alpha1.AnnotationDetached} {
			delete(n.Annotations, key)
		}
		delete(n.Labels, v1alpha1.LabelManaged)
		if n.Labels[v1alpha1.LabelState] == "flooding" {
			delete(n.Labels, v1alpha1.LabelState) // as its reason's doc says
		}
		c.bump(n)
	}
}
