package explore

import "testing"

func TestPlanted(t *testing.T) {
	two := Config{Nodes: 2, Budget: 1, Faults: 1, Kinds: allKinds, Stale: 1}
	for _, p := range []struct {
		bug    Bug
		change func(*Config)
	}{
		{CachedList, func(c *Config) { c.Lag, c.Kinds = true, kindsOf(crashLeader) }},
		{ForeignPromoted, func(c *Config) { c.Hooks = true; c.Kinds = kindsOf(takeOver) }},
		{BootOfGrant, func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crash, restage) }},
		{MarkLeftBehind, func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(strip, age) }},
		{NoBootInAcks, func(c *Config) {}},
		{DoneInTwoWrites, func(c *Config) { c.Only = []string{"budget", "one reboot per turn", "progress"} }},
		{ClockRestarts, func(c *Config) { c.Faults, c.Kinds = 2, kindsOf(crashLeader, age) }},
		{TermSurvives, func(c *Config) {
			c.Faults, c.Kinds = 2, kindsOf(blankLease)
			c.Only = []string{"budget", "epoch", "slot", "progress"}
		}},
	} {
		c := two
		c.Bug = p.bug
		p.change(&c)
		r := Explore(c, 1)
		t.Log(p.bug, r)
		if r.Violation != nil {
			t.Log(r.Violation)
		}
	}
}
