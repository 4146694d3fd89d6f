package rollout_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// A host that lies about its boot, its zone and its wants gets the turns that are left when everyone else had theirs, and not
// more than its policy allows in a day. With the queue in the order of the hosts' own words it had 200 turns in ten hours, and
// the honest ones none.
func TestLyingHostStarvesNoOne(t *testing.T) {
	if testing.Short() {
		t.Skip("a day of a whole fleet")
	}
	for name, order := range map[string][]v1alpha1.OrderKey{"default": nil, "oldest boot": {v1alpha1.OrderLastTurn, v1alpha1.OrderOldestBoot}} {
		c := newCluster()
		if order != nil {
			p := c.policies[builtIn]
			p.Order = order
			c.policies[builtIn] = p
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(c.command([]string{"node", "liar", "zone=a"}))
		liar := c.hosts["liar"]
		liar.claims = c.now.AddDate(-10, 0, 0)
		honest := []string{"n1", "n2", "n3", "n4"}
		for _, n := range honest {
			must(c.command([]string{"node", n, "zone=b"}))
		}
		c.run(time.Minute, nil)
		began, turns := c.now, 0
		want := func() {
			turns++
			must(c.command([]string{"update", "liar", fmt.Sprintf("5.%d", turns)}))
		}
		want()
		for _, n := range honest {
			must(c.command([]string{"update", n, "4.2"}))
		}
		var finished time.Time // when the honest ones had their turns
		for c.now.Before(began.Add(10 * time.Hour)) {
			c.run(time.Minute, nil)
			if liar.pending == "" && c.fact("liar").State == v1alpha1.StateIdle {
				want()
			}
			if finished.IsZero() && !slices.ContainsFunc(honest, func(n string) bool { return c.hosts[n].version != "4.2" }) {
				finished = c.now
			}
		}
		if finished.IsZero() || finished.Sub(began) > time.Hour {
			t.Errorf("%s: the honest hosts had their turns by %v", name, finished)
		}
		if got := liar.boots - 1; got != c.policies[builtIn].MaxTurnsPerDay {
			t.Errorf("%s: the liar had %d turns in ten hours, expected the %d of a day", name, got, c.policies[builtIn].MaxTurnsPerDay)
		}
		if held := c.fact("liar").Held; held != v1alpha1.ReasonTurnLimit {
			t.Errorf("%s: the liar is held with %q", name, held)
		}
		// The next day it has turns again.
		c.run(14*time.Hour, nil)
		if c.run(time.Hour, func() bool { return c.fact("liar").State != v1alpha1.StateIdle }); c.fact("liar").State == v1alpha1.StateIdle {
			t.Errorf("%s: no turn after a day", name)
		}
		for _, b := range c.broken {
			t.Error(b)
		}
	}
}

// A host that marks its own Node again and again is given back each time. It takes one slot; but the fleet does not settle after
// each of these turns, or nothing would be granted to anyone.
func TestHostThatMarksItselfStarvesNoOne(t *testing.T) {
	c := newCluster()
	must := func(words ...string) {
		t.Helper()
		if err := c.command(words); err != nil {
			t.Fatal(err)
		}
	}
	must("policy", "budget=2", "settle=1m")
	for _, n := range []string{"liar", "n1", "n2", "n3"} {
		must("node", n)
	}
	c.run(5*time.Minute, nil)
	honest := []string{"n1", "n2", "n3"}
	for _, n := range honest {
		must("update", n, "4.2")
	}
	for range 120 {
		if n := c.nodes["liar"]; c.fact("liar").State == v1alpha1.StateIdle {
			n.Annotations[v1alpha1.AnnotationCordon], n.Spec.Unschedulable = "t0", true
			c.bump(n)
		}
		c.run(30*time.Second, nil)
	}
	for _, n := range honest {
		if c.hosts[n].version != "4.2" {
			t.Errorf("after an hour %s runs %s and is held with %q", n, c.hosts[n].version, c.fact(n).Held)
		}
	}
	for _, b := range c.broken {
		t.Error(b)
	}
}
