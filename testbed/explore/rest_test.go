package explore

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/safety.md")

// TestRests checks that a turn does wait for each cause in Rests: a cause for which none waits would let a defect pass.
func TestRests(t *testing.T) {
	found := map[string]int{}
	for _, c := range []Config{
		{Hooks: true, Wait: true},
		{Faults: 1, Kinds: kindsOf(latePod, sicken, pause, stop, guard)},
		{Faults: 1, Kinds: kindsOf(takeOver), Hooks: true, MaxStates: 6000},
		{Faults: 1, Kinds: kindsOf(blockPod), Blocks: BlocksHold, Wait: true, MaxStates: 6000},
		{Plan: ByClient},
	} {
		c.Nodes, c.Budget, c.Stale = 2, 1, 1
		r := Explore(c, 1)
		t.Log(r)
		if r.Violation != nil {
			t.Errorf("broken property: %v", r.Violation)
		}
		for cause, turns := range r.Held {
			found[cause] += turns
		}
	}
	for _, rest := range Rests() {
		if found[rest.Cause] == 0 {
			t.Errorf("no turn waits because %s", rest.Cause)
		}
	}
}

// TestSafetyPage compares the table in docs/safety.md with Rests, or writes it with -update.
func TestSafetyPage(t *testing.T) {
	comparePage(t, "../../docs/safety.md", "waits", restTable())
}

func restTable() string {
	var b strings.Builder
	b.WriteString("| a turn waits because | it ends when | held | states |\n| --- | --- | --- | --- |\n")
	for _, r := range Rests() {
		states := []string{}
		for _, s := range r.States {
			states = append(states, string(s))
		}
		if r.States == nil {
			states = []string{"any"}
		}
		held := []string{}
		for _, reason := range r.Held {
			held = append(held, "`"+string(reason)+"`")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Cause, r.End, strings.Join(held, ", "), strings.Join(states, ", "))
	}
	return b.String()
}
